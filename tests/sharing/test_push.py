"""`kit push`: runs, data, adapters and every model class survive a round trip."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.hub_server import HubServer
from support.hub_state import READER, TOKEN, Fault
from support.repositories import NAME, folder_files, prove_here, push_folder, repo_files

import kit.sharing.proof
from kit.errors import HubError
from kit.hub import download as hub_download
from kit.hub.upload import Destination


@pytest.mark.slow
def test_a_run_is_pushed_evaluated_used_and_repeated(
    hub: HubServer, trained: Path, kit_here: RunKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the CLI; after the push, only the name on the Hub is used."""
    from huggingface_hub import ModelCard

    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "model" / "pytorch_model.bin").write_bytes(b"a pickle")
    with monkeypatch.context() as once:
        once.setattr(kit.sharing.proof, "check_run", lambda *about: "checked below")
        listed = kit_here("push", run, NAME, "hub.license=apache-2.0", "hub.language=[en,de,fr]", "--dry-run")
    assert listed.returncode == 0, listed.stderr
    assert not hub.log
    refused = kit_here("push", run, NAME, "train.max_steps=1")
    assert (refused.returncode, "Keys that can be changed here: hub.license, " in refused.stderr) == (2, True)
    done = kit_here("push", run, NAME, "hub.license=apache-2.0", "hub.language=[en,de,fr]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/{NAME}"
    assert "loaded without kit, it computes what the run does" in done.stderr
    assert "4 answers of its pipeline" in done.stderr
    assert "left out: pytorch_model.bin" in done.stderr
    files = repo_files(hub)
    assert {line.split()[-1]: int(line.split()[0].replace(",", "")) for line in listed.stdout.splitlines()} == {
        name: len(content) for name, content in files.items()
    }
    needed = {
        "model.safetensors",
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "recipe.yaml",
        "README.md",
    }
    assert needed | {"modeling_rnn_seq2seq.py", "text_to_text.py", "target_tokenizer.json"} <= files.keys()
    assert "plots/loss.png" in files
    data = ModelCard(files["README.md"].decode()).data
    assert (data.license, data.language, data.model_name) == ("apache-2.0", ["en", "de", "fr"], "dates")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    measured = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results}
    assert measured["test", "exact_match"] == pytest.approx(results["test"]["exact_match"], abs=1e-4)
    assert f'model = "{NAME}"' in files["README.md"].decode()

    shutil.rmtree(run)
    evaluated = kit_here("eval", NAME, "--json")
    assert evaluated.returncode == 0, evaluated.stderr
    assert json.loads(evaluated.stdout)["exact_match"] == results["test"]["exact_match"]
    (tmp_path / "in.txt").write_text("3 May 1984\n", encoding="utf-8")
    texts = [kit_here("generate", model, "in.txt").stdout for model in (NAME, f"{NAME}@main", trained)]
    assert texts[0] == texts[1] == texts[2] != ""
    repeated = kit_here("train", NAME, "train.max_steps=2", "eval.num_beams=1")
    assert repeated.returncode == 0, repeated.stderr
    recipe = (tmp_path / "runs" / "dates" / "recipe.yaml").read_text(encoding="utf-8")
    assert "max_steps: 2" in recipe
    assert "hidden_size: 16" in recipe


def test_a_dry_run_leaves_nothing_but_what_it_is_told_to_keep(
    hub: HubServer, trained: Path, kit_here: RunKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit.sharing.proof, "check_run", lambda *about: "not checked here")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))

    def listed(*options: object) -> dict[str, int]:
        done = kit_here("push", trained, NAME, "--dry-run", *options)
        assert done.returncode == 0, done.stderr
        assert (not hub.log, list(scratch.iterdir())) == (True, [])
        return {line.split()[-1]: int(line.split()[0].replace(",", "")) for line in done.stdout.splitlines()}

    files = listed()
    assert {"model.safetensors", "README.md", "recipe.yaml"} <= files.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scratch"]
    assert listed("--keep", "kept") == files
    kept = folder_files(tmp_path / "kept")
    assert {name: len(content) for name, content in kept.items()} == files
    again = kit_here("push", trained, NAME, "--dry-run", "--keep", "kept")
    assert (again.returncode, "is not empty" in again.stderr, "--keep" in again.stderr) == (2, True, True)
    useless = kit_here("push", trained, NAME, "--keep", "kept")
    assert (useless.returncode, "--keep has no effect without --dry-run" in useless.stderr) == (2, True)
    assert not hub.log
    assert kit_here("push", trained, NAME).returncode == 0
    assert repo_files(hub) == kept  # what was kept is what is sent


@pytest.mark.parametrize("part", ["weights", "tokens"])
def test_a_folder_that_computes_something_else_is_rejected(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """For speed, the probe runs in this process; the test above starts a real one."""
    from safetensors.torch import load_file, save_file

    changed = tmp_path / "changed"
    shutil.copytree(trained / "model", changed)
    if part == "weights":
        tensors = load_file(changed / "model.safetensors")
        name = max(tensors, key=lambda name: tensors[name].numel())
        tensors[name] += 0.01
        save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    else:
        shutil.copyfile(changed / "target_tokenizer.json", changed / "tokenizer.json")

    monkeypatch.setattr(kit.sharing.proof, "run_standalone", prove_here)
    assert "computes what the run does" in kit.sharing.proof.check_run(trained / "model", trained, trained / "model")
    with pytest.raises(HubError, match=f"the model computes other {'logits' if part == 'weights' else 'tokens'}"):
        kit.sharing.proof.check_run(changed, trained, trained / "model")


def test_exit_codes_and_secrets_of_the_command_line(
    hub: HubServer, trained: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kit.sharing.proof, "check_run", lambda *about: "not checked here")
    cases: list[tuple[list[Any], int, list[Fault]]] = [
        (["push", trained, NAME], 3, [Fault("POST|PUT", status=500, times=999, message=f"I know {TOKEN}")]),
        (["push", trained, NAME], 2, [Fault("POST", status=403, times=999, message=f"I know {TOKEN}")]),
        (["push", trained, "bad name"], 2, []),
        (["push", tmp_path, NAME], 2, []),
        (["push", trained, NAME, "train.max_steps=3"], 2, []),
        (["push", trained, NAME, f"hub.tags=[{TOKEN}]"], 2, []),
        (["push", trained, NAME, "hub.language=[german language]"], 2, []),
        (["eval", "tester/nothing"], 2, []),
        (["train", "tester/nothing"], 2, []),
        (["generate", "tester/nothing"], 2, []),
        (["train", NAME], 3, [Fault("GET", status=502, times=999, message=f"I know {TOKEN}")]),
    ]
    for arguments, code, faults in cases:
        hub.faults = faults
        hub_download.download.cache_clear()
        done = kit_here(*arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert TOKEN not in done.stderr + done.stdout, arguments
        assert "verysecret" not in done.stderr
    assert all(len(repo.commits) == 1 for repo in hub.repos.values())


# ---- data, adapters and every model ---------------------------------------------------------------------------------


def environment(hub: HubServer, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has only the address of the Hub and a token."""
    return {
        "PATH": os.environ["PATH"], "HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "fresh"), "HF_HUB_CACHE": str(tmp_path / "fresh" / "hub"), "HF_TOKEN": READER,
        "OMP_NUM_THREADS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip


@pytest.mark.soak
def test_pushed_data_can_be_trained_on(hub: HubServer, tiny_recipe: Path, kit_here: RunKit, tmp_path: Path) -> None:
    """Parallel text becomes parquet; another process trains on it by its name, and pins the commit."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split, count in (("train", 40), ("val", 5), ("test", 5)):
        for language in ("de", "en"):
            lines = "".join(f"{language} {split} {number}\n" for number in range(count))
            (corpus / f"{split}.{language}").write_text(lines, encoding="utf-8")
    done = kit_here("push", corpus, "tester/corpus", "--data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.address}/datasets/tester/corpus"
    assert {"train.parquet", "val.parquet", "test.parquet", "README.md"} == repo_files(
        hub, "tester/corpus", "dataset"
    ).keys()
    changes = ["data.source=de", "data.target=en", "data.languages=null", "data.sizes=null", "train.max_steps=1"]
    arguments = ["train", str(tiny_recipe), "data.path=tester/corpus", *changes, "eval.steps=0", "--output", "run"]
    run = subprocess.run(
        [sys.executable, "-m", "kit", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
        env={**environment(hub, tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    recipe = (tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"revision: {hub.repos['dataset', 'tester/corpus'].head.sha}" in recipe
    local = kit_here("train", tiny_recipe, f"data.path={corpus}", *changes, "eval.steps=0", "--output", "local")
    assert local.returncode == 0, local.stderr
    prints = [
        json.loads((tmp_path / name / "results.json").read_text())["data"]["fingerprints"] for name in ("run", "local")
    ]
    assert prints[0] == prints[1]


def families() -> dict[str, tuple[Any, str, dict[str, Any]]]:
    """A tiny model of each family with random weights, the class that loads it, and inputs for it."""
    import torch

    from kit import models
    from kit.sharing.proof import example_inputs
    from kit.verify.generation import perturb_parameters

    torch.manual_seed(0)
    sizes = {"vocab_size": 11, "hidden_size": 8}
    tokens = {"input_ids": torch.randint(3, 11, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    built: dict[str, Any] = {
        "rnn_seq2seq": models.RNNSeq2SeqForConditionalGeneration(models.RNNSeq2SeqConfig(**sizes)),
        "transformer_seq2seq": models.TransformerSeq2SeqForConditionalGeneration(
            models.TransformerSeq2SeqConfig(**sizes, encoder_layers=1, decoder_layers=1, num_attention_heads=2)
        ),
        "rnn_lm": models.RNNLMForCausalLM(models.RNNLMConfig(**sizes)),
        "rnn_captioner": models.RNNCaptionerForConditionalGeneration(
            models.RNNCaptionerConfig(**sizes, cnn_channels=[4], image_size=8)
        ),
        "hred": models.HREDForConditionalGeneration(models.HREDConfig(**sizes)),
        "rnn_forecaster": models.RNNForecasterForPrediction(models.RNNForecasterConfig(value_size=2, hidden_size=4)),
    }
    models_by_name = {}
    for name, model in built.items():
        perturb_parameters(model)
        reads_text = name not in ("rnn_captioner", "rnn_forecaster")
        models_by_name[name] = (model.eval(), model._auto_class, example_inputs(model, tokens if reads_text else None))
    return models_by_name


def shared_adapter(tmp_path: Path, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Push an adapter of the Transformer; returns the request to load it by its name, and what it computes here."""
    import peft
    import torch
    from transformers import AutoModelForSeq2SeqLM

    from kit.pretrained.loading import load_model
    from kit.sharing.proof import ProbeRequest
    from kit.sharing.push import build_and_check
    from kit.sharing.standalone import model_outputs

    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(load_model(AutoModelForSeq2SeqLM, tmp_path / "transformer_seq2seq"), settings)
    adapted.peft_config["default"].base_model_name_or_path = "tester/transformer_seq2seq"
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "README.md").unlink()
    ready = tmp_path / "ready"
    ready.mkdir()
    build_and_check(tmp_path / "adapter", ready, Destination("tester/adapter"), [], lambda note: None)
    assert 'base_model: "tester/transformer_seq2seq"' in (ready / "README.md").read_text(encoding="utf-8")
    push_folder(ready, Destination("tester/adapter"))
    return ProbeRequest("tester/adapter", "AutoModelForSeq2SeqLM", inputs), model_outputs(
        adapted.get_base_model().eval(), inputs
    )


def test_every_model_is_unchanged_by_a_round_trip(hub: HubServer, tmp_path: Path) -> None:
    """Pushed, and loaded by name in a process without kit and with an empty cache: bit-identical outputs."""
    import torch

    from kit.sharing.proof import ProbeRequest, run_standalone
    from kit.sharing.standalone import model_outputs

    probes, expected = [], []
    for name, (model, loader, inputs) in families().items():
        model.save_pretrained(tmp_path / name)
        (tmp_path / name / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
        push_folder(tmp_path / name, Destination(f"tester/{name}"))
        probes.append(ProbeRequest(f"tester/{name}", loader, inputs))
        expected.append(model_outputs(model, inputs))
    if find_spec("peft"):
        probe, tensors = shared_adapter(tmp_path, probes[1].inputs)
        probes.append(probe)
        expected.append(tensors)
    answers = run_standalone(probes, environment(hub, tmp_path))
    for probe, answer, tensors in zip(probes, answers, expected, strict=True):
        assert answer.tensors.keys() == tensors.keys(), probe.model
        for name, tensor in tensors.items():
            assert torch.equal(answer.tensors[name], tensor), (probe.model, name)
    assert {"logits", "beams"} <= answers[0].tensors.keys()
