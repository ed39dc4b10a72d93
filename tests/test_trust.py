"""Surprises in foreign files that kit must withstand, one in each test."""

import ast
import builtins
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.hub_server import HubServer
from support.hub_state import TOKEN
from transformers import AutoModelForSeq2SeqLM

import kit
from kit import load_recipe, pipeline
from kit.errors import HubError, KitError
from kit.pretrained.loading import load_model

ROOT = Path(kit.__file__).parent
NAME = "mallory/model"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def update(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    file.write_text(json.dumps({**content, **changes}), encoding="utf-8")


# ---- code ------------------------------------------------------------------------------------------------------------

LOADS = ("from_pretrained", "from_config", "transformers_pipeline", "transformers.pipeline")
WITHOUT_CODE = {
    "GenerationConfig": "reads one JSON file",
    "transformers.GenerationConfig": "reads one JSON file",
    "PeftConfig": "reads one JSON file",
    "PeftModel": "puts weights into a model that is there",
}
"""Classes that take no `trust_remote_code`, because they can load no code."""
TRUSTING = {"pretrained/pipelines.py": "trust_remote_code", "sharing/standalone.py": "True"}
"""Files that pass on something else than False: what the caller of `kit.pipeline` asked for, and the push's own code,
in the process that tests it."""


def loads() -> Iterator[tuple[str, int, str, dict[str | None, str]]]:
    """Every call in kit that makes a model, tokenizer, configuration or pipeline from files or from a configuration."""
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in LOADS or (isinstance(node.func, ast.Attribute) and node.func.attr in LOADS[:2]):
                arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                yield path.relative_to(ROOT).as_posix(), node.lineno, called.rpartition(".")[0], arguments


def test_every_load_states_whether_code_may_run() -> None:
    unstated = []
    for file, line, owner, arguments in loads():
        if owner in WITHOUT_CODE:
            continue
        if arguments.get("trust_remote_code") not in ("False", TRUSTING.get(file)):
            unstated.append(f"{file}:{line}")
    assert unstated == []
    assert len(list(loads())) > 20


def test_nobody_is_asked_about_the_code_of_a_tokenizer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(builtins, "input", lambda text="": asked.append(text) or "y")
    auto_map = {"AutoTokenizer": ["trap.T", "trap.T"]}
    folder = run / "model"
    update(folder / "tokenizer_config.json", tokenizer_class="TrapTokenizer", auto_map=auto_map)
    (folder / "trap.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'trap')!r})\nclass T: pass\n")
    with pytest.raises((KitError, ValueError), match="the tokenizer has one"):
        pipeline("translation", run)
    assert (asked, (tmp_path / "trap").exists()) == ([], False)


def test_nobody_is_asked_about_the_code_of_an_auto_class_named_as_a_tokenizer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kit.data.text.tokenizer import load_pretrained_tokenizers
    from kit.inference.embed import Embedder

    asked: list[str] = []
    monkeypatch.setattr(builtins, "input", lambda text="": asked.append(text) or "n")
    folder = tmp_path / "model"
    folder.mkdir()
    update(folder / "config.json", model_type="trap", auto_map={"AutoConfig": "trap.C"})
    update(folder / "tokenizer_config.json", tokenizer_class="AutoModel")
    (folder / "trap.py").write_text("")
    with pytest.raises(KitError, match=r"trap|AutoModel"):
        load_pretrained_tokenizers(str(folder))
    with pytest.raises(KitError, match=r"trap|AutoModel"):
        Embedder(folder)
    assert asked == []


@pytest.mark.parametrize("kernel", ["mallory/kernel", "kernels-community/vllm-flash-attn3", "flash_attention_2"])
def test_a_configuration_loads_no_kernel(run: Path, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *a, **k: loaded.append(a))
    monkeypatch.setattr("transformers.modeling_utils.is_kernels_available", lambda: True)
    update(run / "model" / "config.json", attn_implementation=kernel)
    for load in (partial(pipeline, "translation"), partial(load_model, AutoModelForSeq2SeqLM)):
        with suppress(KitError):
            load(run)
    assert loaded == []


def test_a_chat_template_runs_no_code(run: Path, tmp_path: Path) -> None:
    """Templates of Jinja come with a tokenizer; kit applies none, and transformers renders them in a sandbox."""
    from jinja2.exceptions import SecurityError

    trap = tmp_path / "trap"
    attack = f"{{{{ cycler.__init__.__globals__.os.mkdir({str(trap)!r}) }}}}"
    update(run / "model" / "tokenizer_config.json", chat_template=attack)
    (run / "model" / "chat_template.jinja").write_text(attack, encoding="utf-8")
    pipe = pipeline("translation", run)
    pipe("3 maj 1984")
    with pytest.raises(SecurityError):
        pipe.tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert not trap.exists()


def test_push_runs_no_code_but_its_own(run: Path, kit_here: RunKit, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for file in (run / "model").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        file.write_text(f"{text}\nimport os\nos.makedirs({str(trap)!r}, exist_ok=True)\n", encoding="utf-8")
    kit_here("push", run, "tester/dates", "--dry-run")
    assert not trap.exists()


# ---- secrets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["train.sh", "train.log", "settings.toml", "notes.ipynb", "page.html", "notes", "deep/er/x.cfg", "run.JSON"]
)
def test_files_of_a_model_folder_that_kit_does_not_know_stay(trained: Path, tmp_path: Path, name: str) -> None:
    from kit.sharing.folder import build_folder, find_source

    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "model" / name).parent.mkdir(parents=True, exist_ok=True)
    (run / "model" / name).write_text(f"export HF_TOKEN={TOKEN}\n", encoding="utf-8")
    (tmp_path / "share").mkdir()
    notes = build_folder(find_source(run), tmp_path / "share", NAME)
    assert not [path for path in (tmp_path / "share").rglob("*") if TOKEN.encode() in read(path)]
    assert any(f"left out: {name}" in note for note in notes)


def read(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@pytest.mark.parametrize("name", ["model.safetensors", "plots/loss.png", "tokenizer.model"])
def test_every_file_that_is_sent_is_scanned(trained: Path, tmp_path: Path, name: str) -> None:
    from safetensors.torch import load_file, save_file

    from kit.sharing.folder import build_folder, find_source

    run = Path(shutil.copytree(trained, tmp_path / "run"))
    file = run / name if name.startswith("plots") else run / "model" / name
    if name == "model.safetensors":
        save_file(load_file(file), file, metadata={"format": "pt", "command": f"HF_TOKEN={TOKEN} kit train"})
    else:
        file.write_bytes(read(file) + f"\0{TOKEN}\0".encode())
    (tmp_path / "share").mkdir()
    with pytest.raises(HubError, match=f"{name} contains an access token"):
        build_folder(find_source(run), tmp_path / "share", NAME)


DATA = ["tiny.yaml", "data.path={}", "data.languages=null", "data.sizes=null"]


@pytest.mark.parametrize(
    "address", ["https://user:hunter2@example.org/data.csv", "s3://key:hunter2@bucket/x", "https://u:hunter@2@host/x"]
)
@pytest.mark.parametrize(
    "arguments", [["train", *DATA], ["data", *DATA], ["eval", "{}"], ["generate", "{}", "in.txt"]], ids=" ".join
)
def test_a_password_in_an_address_is_masked(
    tiny_recipe: Path, kit_here: RunKit, tmp_path: Path, address: str, arguments: list[str]
) -> None:
    (tmp_path / "in.txt").write_text("x\n", encoding="utf-8")
    done = kit_here(*(argument.format(address) for argument in arguments))
    assert done.returncode == 2, done.stderr
    assert "hunter" not in done.stdout + done.stderr
    assert "@2" not in done.stdout + done.stderr


# ---- paths -----------------------------------------------------------------------------------------------------------


def on_hub(hub: HubServer, folder: Path, name: str = NAME, **changes: str) -> None:
    """Put a run with a changed recipe on the Hub."""
    files = {p.relative_to(folder / "model").as_posix(): p.read_bytes() for p in (folder / "model").rglob("*.*")}
    files = {path: content for path, content in files.items() if not path.startswith("plots")}
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    recipe = load_recipe(folder / "recipe.yaml", ["data.fingerprints=null", *overrides]).to_yaml()
    hub.put(name, {**files, "recipe.yaml": recipe.encode()})


@pytest.mark.parametrize("path", ["{}/secrets", "~/secrets", "../secrets", "{}/secrets/test.tsv"])
def test_a_recipe_from_the_hub_names_no_local_data(
    hub: HubServer, trained: Path, kit_here: RunKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    for split in ("train", "validation", "test"):
        (secrets / f"{split}.tsv").write_text("source\ttarget\nmy secret\tis this\n", encoding="utf-8")
    changes = {
        "data__path": path.format(tmp_path),
        "data__languages": "null",
        "data__sizes": "null",
        "eval__group_by": "[]",
    }
    on_hub(hub, trained, **changes)
    done = kit_here("eval", NAME, "--predictions", "out.jsonl")
    assert done.returncode == 2
    assert "data.path" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
    # what the user gives counts
    allowed = kit_here("eval", NAME, f"data.path={secrets}", "--predictions", "out.jsonl")
    assert allowed.returncode == 0, allowed.stderr
    assert "my secret" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["model", "plots", "predictions", "results.json", "recipe.yaml", "model/config.json"])
def test_push_follows_no_link_out_of_a_run(run: Path, tmp_path: Path, kit_here: RunKit, name: str) -> None:
    shutil.move(run / name, tmp_path / "elsewhere")
    (run / name).symlink_to(tmp_path / "elsewhere")
    done = kit_here("push", run, "tester/dates", "--dry-run")
    assert done.returncode == 2, done.stderr
    assert f"{run / name} is a link to a path outside {run}" in done.stderr


@pytest.mark.parametrize(
    "name", ["model", "plots", "predictions", "checkpoints", "tokenizer", "metrics.jsonl", "recipe.yaml"]
)
def test_resuming_follows_no_link_out_of_a_run(run: Path, tmp_path: Path, kit_here: RunKit, name: str) -> None:
    (run / "results.json").unlink()
    elsewhere = tmp_path / "elsewhere"
    shutil.move(run / name, elsewhere)
    (run / name).symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))}
    done = kit_here("train", run, "--resume")
    assert done.returncode == 2, done.stderr
    assert f"{run / name} is a link to a path outside {run}" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))} == before


@pytest.mark.parametrize("base", ["{}/model", "../{}", "model"])
def test_an_adapter_from_the_hub_names_no_local_base(
    hub: HubServer, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(trained / "model", tmp_path / "model")
    settings = {"peft_type": "LORA", "task_type": "SEQ_2_SEQ_LM", "r": 2, "target_modules": ["x"]}
    settings["base_model_name_or_path"] = base.format(tmp_path if base.startswith("{") else f"{tmp_path.name}/model")
    files = {"adapter_config.json": json.dumps(settings).encode()}
    files["adapter_model.safetensors"] = (trained / "model" / "model.safetensors").read_bytes()
    files["model_config.json"] = (trained / "model" / "config.json").read_bytes()
    hub.put(NAME, files)
    with pytest.raises(KitError, match=r"base model|the Hub has no repository of this name"):
        load_model(AutoModelForSeq2SeqLM, NAME)
