"""`kit push` and downloads: one complete commit and an identical model, whatever happens to the connection."""

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
from support.hub_server import READER, TOKEN, Fault, HubServer

import kit.sharing.proof
from kit.errors import HubError, KitError, NetworkError
from kit.hub import download as hub_download
from kit.hub.upload import Destination, upload
from kit.system.redaction import redact

NAME = "tester/dates"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder with two large files and two small ones."""
    import numpy as np
    from safetensors.numpy import save_file

    path = tmp_path / "folder"
    path.mkdir()
    for number, name in enumerate(("model.safetensors", "extra.safetensors")):
        save_file({"weights": np.full(5000, number, np.float32)}, path / name)
    (path / "README.md").write_text("---\nlicense: mit\n---\n\n# A card\n", encoding="utf-8")
    (path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    return path


def push_folder(folder: Path, to: Destination | None = None) -> Any:
    return upload(folder, to or Destination(NAME), "a message", lambda line: None)


def repo_files(hub: HubServer, name: str = NAME, kind: str = "model") -> dict[str, bytes]:
    files = hub.repos[kind, name].head.files
    return {path: blob.content for path, blob in files.items() if path != ".gitattributes"}


def folder_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- one commit, or none --------------------------------------------------------------------------------------------


def test_a_folder_becomes_one_private_commit(hub: HubServer, folder: Path) -> None:
    published = push_folder(folder)
    repo = hub.repos["model", NAME]
    assert repo.private
    assert repo_files(hub) == folder_files(folder)
    assert [commit.title for commit in repo.commits] == ["initial commit", "a message"]
    assert (published.url, published.commit) == (f"{hub.address}/{NAME}", repo.head.sha)
    again = push_folder(folder)
    assert again.unchanged
    assert len(repo.commits) == 2
    assert len(hub.sent("PUT /storage")) == 2  # nothing was uploaded twice
    assert not [value for value in hub.log if TOKEN in value]


def test_the_token_of_the_login_file_is_used_and_redacted(
    hub: HubServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert redact(f"of a login: {TOKEN}") == "of a login: ***"


def test_large_files_are_uploaded_in_parts(folder: Path, hub: HubServer) -> None:
    hub.part_size = 7000
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.sent("PUT /storage/part")) == 6


TRANSIENT = {
    "refused three times": [Fault("POST .*/preupload/", times=3, status=503)],
    "while the repository is created": [Fault("POST /api/repos/create", status=500)],
    "while the metadata is checked": [Fault("POST /api/validate-yaml", status=502)],
    "too many requests": [Fault("POST .*/batch", status=429, headers={"Retry-After": "7"})],
    "storage that fails": [Fault("PUT /storage", times=2, status=500)],
    "a connection closed while uploading": [Fault("PUT /storage", kind="cut", times=2)],
    "a slow storage": [Fault("PUT /storage", kind="slow")],
    "a commit that fails": [Fault("POST .*/commit/", times=2, status=500)],
    "a commit that never arrives": [Fault("POST .*/commit/", kind="cut")],
    "a commit whose answer is lost": [Fault("POST .*/commit/", kind="lost")],
    "half an answer": [Fault("POST .*/batch", kind="cut_body")],
    "everything once": [Fault("POST|PUT", kind="cut"), Fault("POST .*/commit/", kind="lost"), Fault("GET", status=504)],
}


@pytest.mark.parametrize("faults", TRANSIENT.values(), ids=TRANSIENT)
def test_transient_failures_are_retried(hub: HubServer, folder: Path, faults: list[Fault]) -> None:
    hub.faults = [Fault(**vars(fault)) for fault in faults]
    push_folder(folder)
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.repos["model", NAME].commits) == 2
    if any(fault.headers for fault in faults):
        assert max(hub.waits) >= 7  # type: ignore[attr-defined]


PERMANENT = {
    "no answer at all": (Fault("GET|POST|PUT", kind="cut", times=999), NetworkError, "again"),
    "storage that never works": (Fault("PUT /storage", times=999, status=500), NetworkError, "nothing was changed"),
    "commits that never work": (Fault("POST .*/commit/", times=999, status=503), NetworkError, "nothing was changed"),
    "bytes that change in transit": (
        Fault("PUT /storage", times=999, status=400, message="bad checksum"), HubError, "bad checksum",
    ),
    "no write access": (Fault("POST /api/repos/create", times=999, status=403), HubError, "lacks permission"),
    "no room": (Fault("POST .*/commit/", times=999, status=507, message="quota"), HubError, "quota"),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "kind", "message"), PERMANENT.values(), ids=PERMANENT)
def test_permanent_failures_are_one_message_and_no_commit(
    hub: HubServer, folder: Path, fault: Fault, kind: type[KitError], message: str
) -> None:
    hub.faults = [Fault(**vars(fault))]
    with pytest.raises(kind, match=message) as caught:
        push_folder(folder)
    assert "\n" not in str(caught.value)
    assert all(len(repo.commits) == 1 for repo in hub.repos.values())
    hub.faults = []
    before = len(hub.sent("PUT /storage"))
    known = len(hub.objects)
    push_folder(folder)  # the same command again
    assert repo_files(hub) == folder_files(folder)
    assert len(hub.sent("PUT /storage")) - before == 2 - known  # what had arrived is not uploaded again


def test_an_interrupted_upload_resumes(hub: HubServer, folder: Path) -> None:
    hub.faults = [Fault("PUT /storage", kind="cut", times=999, skip=1)]
    with pytest.raises(NetworkError):
        push_folder(folder)
    assert len(hub.objects) == 1
    (arrived,) = hub.objects
    hub.faults = []
    hub.log.clear()
    push_folder(folder)
    assert len(hub.sent("PUT /storage")) == 1
    assert not hub.sent(arrived)
    assert repo_files(hub) == folder_files(folder)


def test_a_concurrent_commit_of_somebody_else_is_kept(hub: HubServer, folder: Path) -> None:
    push_folder(folder)
    (folder / "config.json").write_text("{}", encoding="utf-8")

    def commit_concurrently(line: str) -> None:
        hub.put(NAME, {"config.json": b"[]"})

    hub.faults = [Fault("POST .*/commit/", status=500)]
    with pytest.raises(NetworkError, match="changed by somebody else"):
        upload(folder, Destination(NAME), "mine", commit_concurrently)
    assert repo_files(hub)["config.json"] == b"[]"


def test_visibility_never_changes_by_mistake(hub: HubServer, folder: Path) -> None:
    hub.put(NAME, {"README.md": b"mine"})
    with pytest.raises(HubError, match="already exists and is public: confirm with --public"):
        push_folder(folder)
    hub.put("tester/hidden", {"README.md": b"mine"}, private=True)
    with pytest.raises(HubError, match="is private: remove --public"):
        push_folder(folder, Destination("tester/hidden", public=True))
    assert not hub.sent("PUT|commit")
    push_folder(folder, Destination(NAME, public=True))
    assert repo_files(hub).items() >= folder_files(folder).items()


def test_files_of_an_earlier_push_are_removed_and_others_stay(hub: HubServer, folder: Path) -> None:
    old = {"recipe.yaml": b"task: x", "model-00001-of-00002.safetensors": b"x", "LICENSE": b"mine", "notes.md": b"mine"}
    hub.put(NAME, old, private=True)
    published = push_folder(folder)
    assert published.removed == ["model-00001-of-00002.safetensors"]
    assert repo_files(hub) == {
        **folder_files(folder),
        **{name: old[name] for name in ("recipe.yaml", "LICENSE", "notes.md")},
    }
    hub.put("tester/foreign", {"a.safetensors": b"x"}, private=True)
    assert push_folder(folder, Destination("tester/foreign")).removed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "no spaces/here"}, "is not a valid repository name"),
        ({"repo": "nobody"}, "OWNER/NAME"),
        ({"token": ""}, "there is no access token"),
        ({"token": "hf_wrong" + "x" * 30}, "rejects the token"),
        ({"token": READER}, "lacks permission"),
        ({"card": "---\nlicense: none of the known\n---\n"}, "must be one of the list"),
    ],
)
def test_mistakes_of_the_user_exit_with_2(
    hub: HubServer, folder: Path, change: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "token" in change:
        monkeypatch.setenv("HF_TOKEN", change["token"])
    if "card" in change:
        (folder / "README.md").write_text(change["card"], encoding="utf-8")
    with pytest.raises(HubError, match=message) as caught:
        push_folder(folder, Destination(change.get("repo", NAME)))
    assert caught.value.exit_code == 2
    for token in (TOKEN, READER, change.get("token") or TOKEN):
        assert token not in str(caught.value)
    assert all(len(repo.commits) == 1 for repo in hub.repos.values())


# ---- downloads -------------------------------------------------------------------------------------------------------


def test_a_download_is_complete_and_without_code(hub: HubServer, folder: Path) -> None:
    commit = hub.put(
        NAME, {**folder_files(folder), "modeling_x.py": b"1/0", "pytorch_model.bin": b"pickle"}, private=True
    )
    hub.faults = [Fault("GET /storage", kind="cut_body", times=2), Fault("GET .*/resolve/.*README", kind="cut")]
    snapshot = hub_download.resolve_folder(NAME)
    assert snapshot.name == commit
    assert folder_files(snapshot) == folder_files(folder)
    assert not hub.sent(r"modeling_x|pytorch_model")
    hub.log.clear()
    assert hub_download.resolve_folder(f"{NAME}@{commit}") == snapshot
    hub.put(NAME, {"config.json": b"{}"})
    assert hub_download.resolve_folder(NAME) == snapshot  # within a process, a name means one commit
    hub_download.download.cache_clear()
    assert hub_download.resolve_folder(NAME) != snapshot
    assert hub_download.resolve_folder(f"{NAME}@{commit}") == snapshot


@pytest.mark.parametrize(
    ("pattern", "name"), [("GET /storage", "safetensors"), ("GET .*/resolve/.*config.json", "config.json")]
)
def test_corrupt_bytes_of_the_right_length_are_detected(hub: HubServer, folder: Path, pattern: str, name: str) -> None:
    hub.put(NAME, folder_files(folder))
    hub.faults = [Fault(pattern, kind="corrupt")]
    with pytest.raises(NetworkError, match=f"{name} did not match the Hub.s checksum"):
        hub_download.resolve_folder(NAME)
    hub.log.clear()
    assert folder_files(hub_download.resolve_folder(NAME)) == folder_files(folder)
    assert len(hub.sent("GET .*(storage|config.json)")) == 1  # only the corrupt file is downloaded again


@pytest.mark.parametrize("path", ["../outside.json", "a/../../outside.json", "/etc/outside.json", "C:\\outside.json"])
def test_file_names_cannot_leave_the_folder(hub: HubServer, folder: Path, path: str, tmp_path: Path) -> None:
    hub.put(NAME, {**folder_files(folder), path: b"{}"})
    with pytest.raises(HubError, match="leads out of its folder"):
        hub_download.resolve_folder(NAME)
    assert not list(tmp_path.rglob("outside.json"))


@pytest.mark.parametrize(
    ("name", "token", "kind", "message"),
    [
        ("tester/nothing", TOKEN, HubError, "the Hub has no repository of this name"),
        (f"{NAME}@v9", TOKEN, HubError, "no such revision"),
        (NAME, "", HubError, "or it is private"),
        (NAME, TOKEN, NetworkError, "Run the same command again"),
    ],
)
def test_a_failed_download_is_one_message(
    hub: HubServer,
    folder: Path,
    name: str,
    token: str,
    kind: type[KitError],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.put(NAME, folder_files(folder), private=True)
    monkeypatch.setenv("HF_TOKEN", token)
    if kind is NetworkError:
        hub.faults = [Fault("GET|HEAD", status=500, times=999, message=f"I know {TOKEN}")]
    with pytest.raises(kind, match=message) as caught:
        hub_download.resolve_folder(name)
    assert "cannot be loaded as a run, a model folder or a Hub id" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_without_the_hub_the_cache_is_used_with_a_warning(
    hub: HubServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.put(NAME, folder_files(folder))
    snapshot = hub_download.resolve_folder(NAME)
    hub_download.download.cache_clear()
    hub.faults = [Fault("GET|HEAD", kind="cut", times=999)]
    assert hub_download.resolve_folder(NAME) == snapshot
    assert "the Hub cannot be reached" in capsys.readouterr().err


# ---- the command line -----------------------------------------------------------------------------------------------


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
        once.setattr("tempfile.tempdir", str(tmp_path))  # a dry run keeps its folder
        listed = kit_here("push", run, NAME, "hub.license=apache-2.0", "hub.language=[en,de,fr]", "--dry-run")
    assert listed.returncode == 0, listed.stderr
    assert not hub.log
    refused = kit_here("push", run, NAME, "train.max_steps=1")
    assert (refused.returncode, "Only hub can be changed here" in " ".join(refused.stderr.split())) == (2, True)
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
    assert needed | {"modeling_rnn_seq2seq.py", "text_to_text.py", "target_tokenizer/tokenizer.json"} <= files.keys()
    assert "plots/loss.png" in files
    data = ModelCard(files["README.md"].decode()).data
    assert (data.license, data.language, data.model_name) == ("apache-2.0", ["en", "de", "fr"], "dates")
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    measured = {(r.dataset_split, r.metric_type): r.metric_value for r in data.eval_results}
    assert measured["test", "exact_match"] == pytest.approx(results["test"]["exact_match"], abs=1e-4)
    assert f'model = "{NAME}"' in files["README.md"].decode()

    shutil.rmtree(run)
    evaluated = kit_here("eval", NAME)
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


@pytest.mark.parametrize("what", ["weights", "tokens"])
def test_a_folder_that_computes_something_else_is_rejected(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """For speed, the probe runs in this process; the test above starts a real one."""
    from safetensors.torch import load_file, save_file

    from kit.pretrained.loading import load_seq2seq
    from kit.pretrained.pipelines import pipeline

    changed = tmp_path / "changed"
    shutil.copytree(trained / "model", changed)
    if what == "weights":
        tensors = load_file(changed / "model.safetensors")
        name = max(tensors, key=lambda name: tensors[name].numel())
        tensors[name] += 0.01
        save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    else:
        shutil.copyfile(changed / "target_tokenizer" / "tokenizer.json", changed / "tokenizer.json")

    def run_here(probes: Any) -> Any:
        (probe,) = probes
        pipe = pipeline(probe.pipeline, probe.model, device="cpu")
        return [kit.sharing.proof.run_in_process(probe, load_seq2seq(probe.model), pipe)]

    monkeypatch.setattr(kit.sharing.proof, "run_standalone", run_here)
    assert "computes what the run does" in kit.sharing.proof.check_run(trained / "model", trained, trained / "model")
    with pytest.raises(HubError, match=f"the model computes other {'logits' if what == 'weights' else 'tokens'}"):
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

    from kit.pretrained.loading import load_seq2seq
    from kit.sharing.proof import ProbeRequest
    from kit.sharing.push import build_and_check
    from kit.sharing.standalone import model_outputs

    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(load_seq2seq(tmp_path / "transformer_seq2seq"), settings)
    adapted.peft_config["default"].base_model_name_or_path = "tester/transformer_seq2seq"
    adapted.save_pretrained(tmp_path / "adapter")
    (tmp_path / "adapter" / "README.md").unlink()
    ready = tmp_path / "ready"
    ready.mkdir()
    build_and_check(tmp_path / "adapter", ready, Destination("tester/adapter"), [])
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
