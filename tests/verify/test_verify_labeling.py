"""The proofs for fine-tuned models pass for every task, and fail for models broken on purpose."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.labeling_runs import KINDS, recipe, trained, write_rows
from transformers import BertForSequenceClassification

from kit.runs.verify import verify
from kit.tasks.families.labeling.objectives import LabelObjective
from kit.tasks.families.labeling.proofs import PROOFS


def failed(target: Path) -> set[str]:
    return {check.name for check in verify(target) if not check.passed}


@pytest.mark.soak
def test_runs_of_every_kind_are_proved(tmp_path: Path, kit_here: Any) -> None:
    for kind in KINDS:
        run = trained(tmp_path / kind, kind).folder
        checks = verify(run)
        assert [check.name for check in checks] == ["data", *(proof.name for proof in PROOFS)]
        assert [check for check in checks if not check.passed] == [], kind
    done = kit_here("verify", run)
    assert done.returncode == 0
    assert "0 of 8 rows differ" in done.stdout


@pytest.mark.parametrize(
    "model",
    [
        {"type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
        {"type": "xlnet", "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16, "summary_type": "first"},
        {"type": "distilbert", "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 64},
    ],
)
def test_new_models_of_a_recipe_are_proved(tmp_path: Path, model: dict[str, Any]) -> None:
    rows = [{"text": text, "label": label} for text, label in [("aa b", "x"), ("c dd a b", "y"), ("d", "z"), ("", "x")]]
    data = {"path": str(write_rows(tmp_path / "data", train=rows * 3, validation=rows)), "class_weights": "balanced"}
    recipe(tmp_path, "classification", data, model=model, train={"label_smoothing_factor": 0.1})
    assert failed(tmp_path / "classification.yaml") == set()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), "classification").folder


def test_model_that_reads_padding_fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BertForSequenceClassification.forward

    def without_mask(self: Any, attention_mask: Any = None, **inputs: Any) -> Any:
        return whole(self, **inputs)

    monkeypatch.setattr(BertForSequenceClassification, "forward", without_mask)
    assert failed(run) == {"padding", "pipeline"}  # evaluation reads batches, the pipeline one text at a time


def test_wrong_loss_fails(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: LabelObjective, batch: Any, totals: torch.Tensor) -> torch.Tensor:
        return self.summed_loss(self.output(batch), batch, training=True) / len(batch["labels"])

    monkeypatch.setattr(LabelObjective, "forward", forward)
    assert failed(run) == {"accumulation"}
    monkeypatch.setattr(LabelObjective, "forward", lambda self, batch, totals: 2 * forward(self, batch, totals))
    assert failed(run) == {"loss", "accumulation"}


def test_labels_in_another_order_fail(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    names = config["id2label"]
    changed = {**config, "id2label": {"0": names["1"], "1": names["0"], **{k: names[k] for k in list(names)[2:]}}}
    from kit.tasks.families.labeling import proofs as fine_tuning

    def load_reordered(task: str, model: str, **options: Any) -> Any:
        (tmp_path / "model").mkdir()
        for file in Path(model).iterdir():
            (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
        (tmp_path / "model" / "config.json").write_text(json.dumps(changed), encoding="utf-8")
        return whole(task, str(tmp_path / "model"), **options)

    whole = fine_tuning.pipeline
    monkeypatch.setattr(fine_tuning, "pipeline", load_reordered)
    assert failed(run) == {"pipeline"}
