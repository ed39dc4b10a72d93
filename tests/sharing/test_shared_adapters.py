"""Shared adapters name a base model that others can load, and their cards load it."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from conftest import RunKit
from huggingface_hub import ModelCard, constants
from safetensors.torch import load_file, save_file
from support.cards import body, run_card, run_code
from support.hub_server import HubServer
from support.labeling_runs import recipe, write_rows
from support.repositories import folder_files, publish
from transformers import AutoModelForSequenceClassification

from kit import load_recipe, train
from kit.pretrained.folder import weights_dir
from kit.pretrained.loading import load_model

BASE, NAME = "tester/base", "tester/adapter"
ROWS = {
    split: [{"text": text, "label": text[0]} for text in ("ab", "ba", "c a", "cab")]
    for split in ("train", "validation")
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a tiny encoder, and its data."""
    folder = tmp_path_factory.mktemp("world")
    write_rows(folder / "data", **ROWS)
    train(recipe(folder, "classification", {"path": str(folder / "data")}), folder / "base")
    return folder


def adapted(workspace: Path, folder: Path, pretrained: object) -> Path:
    """The run of an adapter on top of a base model."""
    data, sections = (
        {"path": str(workspace / "data")},
        {"model": {"pretrained": str(pretrained)}, "peft": {"method": "lora"}},
    )
    return train(recipe(folder, "classification", data, **sections), folder / "run").folder


def test_an_adapter_names_its_base_model_on_the_hub(
    hub: HubServer, workspace: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = publish(hub, BASE, workspace / "base" / "model")
    run = adapted(workspace, tmp_path, BASE)
    saved = json.loads((run / "model" / "adapter_config.json").read_text())
    assert (saved["base_model_name_or_path"], saved["revision"]) == (BASE, commit)
    for path, content in folder_files(run).items():
        assert constants.HF_HUB_CACHE.encode() not in content, f"{path} has the path of the cache"

    ready = tmp_path / "ready"
    done = kit_here("push", run, NAME, "--dry-run", "--keep", ready)
    assert done.returncode == 0, done.stderr
    assert "loaded without kit, it computes what the run does (logits)" in done.stderr
    data = ModelCard.load(ready / "README.md").data
    assert (data.base_model, data.library_name) == (BASE, "peft")

    # the base model moves on, and the Hub is unreachable: the card's code loads what is in the cache
    publish(hub, NAME, ready)
    weights_dir(NAME)
    hub.put(BASE, {"config.json": b"{}"})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    requests = len(hub.log)
    (code,) = [token.content for token in body((ready / "README.md").read_text()) if token.info == "python"]
    names = run_code(code, "card")
    assert len(hub.log) == requests
    inputs = names["pipe"].tokenizer(["ab c"], return_tensors="pt")
    with torch.inference_mode():
        expected = load_model(AutoModelForSequenceClassification, run)(**inputs).logits
        torch.testing.assert_close(names["adapted"](**inputs).logits, expected)
    assert names["pipe"]("ab c")[0]["label"] in "abc"


@pytest.mark.soak
def test_an_adapter_of_a_local_base_model_is_pushed_with_the_id_of_its_base(
    hub: HubServer, workspace: Path, tmp_path: Path, kit_here: RunKit
) -> None:
    run = adapted(workspace, tmp_path, os.path.relpath(workspace / "base"))
    base = (workspace / "base" / "model").resolve()
    saved = json.loads((run / "model" / "adapter_config.json").read_text())
    assert (saved["base_model_name_or_path"], saved["revision"]) == (str(base), None)
    (card,) = run_card(run)
    assert "logits" in card["adapted"](**card["inputs"])

    refused = kit_here("push", run, NAME)
    assert (refused.returncode, hub.log) == (2, []), refused.stderr
    message = " ".join(refused.stderr.split())
    assert f"the base model of the adapter is the folder '{base}', which exists on this machine only" in message
    assert "hub.base_model=OWNER/NAME" in message
    assert f"`kit merge {run} --output FOLDER`" in message
    assert "expected OWNER/NAME" in kit_here("push", run, NAME, "hub.base_model=base").stderr

    # the id of another model does not pass
    other = tmp_path / "other"
    shutil.copytree(base, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: tensor + 0.1 for name, tensor in weights.items()}, other / "model.safetensors", {"format": "pt"})
    publish(hub, "tester/other", other)
    refused = kit_here("push", run, NAME, "hub.base_model=tester/other")
    assert refused.returncode == 2
    assert "nothing was published: loaded without kit, the model computes other logits" in refused.stderr

    commit = publish(hub, BASE, base)
    ready = tmp_path / "ready"
    done = kit_here("push", run, NAME, f"hub.base_model={BASE}", "--dry-run", "--keep", ready)
    assert done.returncode == 0, done.stderr
    saved = json.loads((ready / "adapter_config.json").read_text())
    assert (saved["base_model_name_or_path"], saved["revision"]) == (BASE, commit)
    card = (ready / "README.md").read_text()
    assert f'    "{BASE}",\n    revision="{commit}",\n' in card
    assert ModelCard(card).data.base_model == BASE
    assert load_recipe(ready / "recipe.yaml").model.pretrained == f"{BASE}@{commit}"
    for path, content in folder_files(ready).items():
        assert str(workspace).encode() not in content, f"{path} has a path of this machine"


@pytest.mark.parametrize("base", ["../base", "/models/base", ""])
def test_an_adapter_of_peft_alone_needs_a_base_model_on_the_hub(tmp_path: Path, kit_here: RunKit, base: str) -> None:
    settings = {"peft_type": "LORA", "task_type": "SEQ_CLS", "base_model_name_or_path": base}
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(settings))
    save_file({"lora_A": torch.zeros(1)}, tmp_path / "adapter" / "adapter_model.safetensors")
    done = kit_here("push", "adapter", NAME, "--dry-run")
    assert done.returncode == 2
    assert f"the folder {base!r}" in done.stderr
    assert "(base_model_name_or_path in adapter_config.json: OWNER/NAME)" in " ".join(done.stderr.split())
