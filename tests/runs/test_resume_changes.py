"""Data and recipe must not change between the start of a run and its resumption."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.recipes import write_recipe
from support.runs import rewind, weight_bytes

from kit.system.files import file_sha256

STEPS = ["train.max_steps=4", "train.save_steps=2", "eval.steps=0", "train.save_total_limit=9"]


def write_pairs(folder: Path, last: str = "zehn") -> None:
    """Parallel text, of which `last` is the end of the training data."""
    words = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", last]
    for split, lines in (("train", words), ("validation", words[:3]), ("test", words[3:6])):
        for language in ("de", "en"):
            (folder / f"{split}.{language}").write_text("".join(f"{word}\n" for word in lines), encoding="utf-8")


def write_reviews(folder: Path, last: str = "fine") -> None:
    rows = [("good", "yes"), ("bad", "no"), ("nice", "yes"), ("awful", "no"), (last, "yes")]
    for split in ("train", "validation", "test"):
        content = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        (folder / f"{split}.jsonl").write_text(content if split == "train" else content.replace(last, "fine"))


DATA: dict[str, tuple[Callable[..., None], dict[str, str]]] = {
    "translation": (write_pairs, {"source": "de", "target": "en"}),
    "classification": (write_reviews, {"text": "text", "label": "label"}),
}


@pytest.mark.parametrize("task", DATA)
def test_a_run_resumes_with_its_own_data_only(task: str, tmp_path: Path, kit_here: RunKit) -> None:
    """By its recipe file as well as by its folder, with fingerprints and without: the changed split is named."""
    write, columns = DATA[task]
    write(tmp_path)
    recipe = write_recipe(tmp_path, task, data={"path": str(tmp_path), **columns}, eval={"steps": 0, "examples": 0})
    assert kit_here("train", recipe, *STEPS, "--output", "run").returncode == 0
    run = tmp_path / "run"
    before = weight_bytes(run)
    rewind(run, 2)
    saved = (run / "recipe.yaml").read_bytes()
    write(tmp_path, last="changed")
    for named in ([recipe, *STEPS], [run], [run, "data.fingerprints=null"]):
        refused = kit_here("train", *named, "--output", "run", "--resume")
        assert refused.returncode == 2, refused.stderr
        assert "is not the data of this recipe: train changed" in refused.stderr
        assert "train into a new folder" in refused.stderr
        assert (run / "recipe.yaml").read_bytes() == saved
    write(tmp_path)
    assert kit_here("train", recipe, *STEPS, "--output", "run", "--resume").returncode == 0
    assert weight_bytes(run) == before


def edit(run: Path, old: str, new: str) -> None:
    text = (run / "recipe.yaml").read_text(encoding="utf-8")
    assert old in text
    (run / "recipe.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


EDITS = [
    ("learning_rate: 0.01", "learning_rate: 0.5", "train.learning_rate was 0.01, now 0.5"),
    ("dropout: 0.2", "dropout: 0.2\n  initializer_range: 0.5", "model.initializer_range was null, now 0.5"),
    ("  cell: gru\n", "", 'model.cell was "gru", now null'),
]


@pytest.mark.parametrize(("old", "new", "expected"), EDITS)
@pytest.mark.parametrize(
    "command",
    [("train", "run"), ("train", "run", "--resume"), ("eval", "run"), ("average", "run", "--last", "2"),
     ("push", "run", "owner/name", "--dry-run")],
    ids=" ".join,
)  # fmt: skip
def test_an_edited_recipe_is_rejected(
    run: Path, kit_here: RunKit, command: tuple[str, ...], old: str, new: str, expected: str
) -> None:
    """Its weights, figures and card would belong to another recipe than the folder names."""
    if "--resume" in command:
        (run / "results.json").unlink()
    edit(run, old, new)
    refused = kit_here(*command)
    assert refused.returncode == 2, refused.stderr
    assert expected in " ".join(refused.stderr.split())
    assert "recipe.yaml was edited after the run had been started" in " ".join(refused.stderr.split())


def test_editable_keys_may_be_edited(run: Path, kit_here: RunKit) -> None:
    edit(run, "hub:\n", "hub:\n  license: mit\n")
    edit(run, "logging_steps: 1", "logging_steps: 7")
    assert kit_here("eval", run, "--split", "validation").returncode == 0


def test_a_checkpoint_of_another_recipe_is_not_restored(run: Path, kit_here: RunKit) -> None:
    """Even if the files beside it agree."""
    (run / "results.json").unlink()
    newest = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name[5:]))
    state = json.loads((newest / "state.json").read_text(encoding="utf-8"))
    state["recipe"]["train.learning_rate"] = 0.5
    (newest / "state.json").write_text(json.dumps(state), encoding="utf-8")
    sums: dict[str, Any] = json.loads((newest / "checksums.json").read_text(encoding="utf-8"))
    (newest / "checksums.json").write_text(json.dumps(sums | {"state.json": file_sha256(newest / "state.json")}))
    refused = kit_here("train", run, "--resume")
    assert refused.returncode == 2, refused.stderr
    assert f"{newest} was trained with another recipe: train.learning_rate was 0.5, now 0.01" in refused.stderr
