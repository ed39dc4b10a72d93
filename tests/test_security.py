"""What comes from outside can neither run code, nor reach out of its folder, nor become markup; secrets stay here."""

import ast
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.cards import RESULTS, body, inline, recipe, write_card
from support.hub_server import HubServer
from support.hub_state import TOKEN

import kit.sharing.folder
from kit import load_recipe
from kit.errors import HubError, KitError, RunError
from kit.hub import download as places
from kit.runs.revisions import recipe_of
from kit.system.redaction import redact

SOURCES = sorted(Path(kit.sharing.folder.__file__).parents[1].rglob("*.py"))
NAME = "tester/dates"


# ---- code -----------------------------------------------------------------------------------------------------------


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def loaders() -> list[Callable[[Path], object]]:
    from transformers import AutoModelForSeq2SeqLM

    from kit.data.text.tokenizer import load_pretrained_tokenizers
    from kit.inference.embed import Embedder
    from kit.pretrained.loading import load_model
    from kit.pretrained.pipelines import pipeline
    from kit.tasks.families.seq2seq.inference import Translator

    return [
        Translator,
        Embedder,
        lambda folder: load_model(AutoModelForSeq2SeqLM, folder),
        lambda folder: load_pretrained_tokenizers(str(folder)),
        lambda folder: pipeline("translation", folder),
        lambda folder: pipeline("fill-mask", folder),
    ]


def test_pickled_weights_are_not_loaded(trained: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("pytorch_model.bin", "model.bin"):
        folder, trap = tmp_path / name, tmp_path / f"trap-{name}"
        shutil.copytree(trained / "model", folder)
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(pickle.dumps(Payload(trap)))
        with pytest.raises(RunError, match="cannot be loaded"):
            loaders()[0](folder)
        assert not trap.exists()
    pickle.loads((folder / name).read_bytes())
    assert trap.exists()  # so it would have been noticed


@pytest.mark.parametrize("number", range(6))
def test_code_in_a_folder_is_not_run(number: int, tmp_path: Path) -> None:
    folder, trap = tmp_path / "model", tmp_path / "trap"
    folder.mkdir()
    code = f"import os\nos.mkdir({str(trap)!r})\n"
    code += "from transformers import PreTrainedConfig\n\nclass C(PreTrainedConfig):\n    model_type = 'trap'\n"
    code += "M = T = P = C\n"
    (folder / "trap.py").write_text(code, encoding="utf-8")
    kinds = ("AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModelForQuestionAnswering")
    auto_map = {"AutoConfig": "trap.C", **dict.fromkeys(kinds, "trap.M")}
    custom = {
        "fill-mask": {"impl": "trap.P", "pt": ["AutoModelForMaskedLM"]},
        "translation": {"impl": "trap.P", "pt": []},
    }
    config = {"model_type": "trap", "auto_map": auto_map, "custom_pipelines": custom}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = {"tokenizer_class": "TrapTokenizer", "auto_map": {"AutoTokenizer": ["trap.T", "trap.T"]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises((KitError, ValueError), match="trust_remote_code"):
        loaders()[number](folder)
    assert not trap.exists()


def test_no_source_unpickles_or_evaluates() -> None:
    """What a reviewer would look for in every file; `tests/test_trust.py` looks at every load of a model."""
    violations = []
    for path in SOURCES:
        name = path.relative_to(SOURCES[0].parent).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                violations += [
                    (name, module) for module in modules if module in ("pickle", "marshal", "shelve", "joblib", "dill")
                ]
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("eval", "exec", "compile", "torch.load", "yaml.load", "yaml.unsafe_load", "os.system"):
                    violations.append((name, called))
                for keyword in node.keywords:
                    if (keyword.arg, ast.unparse(keyword.value)) in (("allow_pickle", "True"), ("shell", "True")):
                        violations.append((name, str(keyword.arg)))
    assert violations == []


# ---- places ---------------------------------------------------------------------------------------------------------


def hub_recipe(trained: Path, **changes: str) -> bytes:
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
    return load_recipe(trained / "recipe.yaml", ["data.fingerprints=null", *overrides]).to_yaml().encode()


@pytest.mark.parametrize("path", ["/etc/passwd", "~/secrets", "../../elsewhere", "a/../../b", "https://example.org/x"])
def test_recipe_from_the_hub_writes_only_to_its_run_folder(hub: HubServer, trained: Path, path: str) -> None:
    changes = {"data__path": path, "data__languages": "null", "data__sizes": "null"}
    hub.put(NAME, {"recipe.yaml": hub_recipe(trained, **changes)})
    with pytest.raises(HubError, match=r"names a path on this machine, data\.path"):
        recipe_of(places.RepoRef(NAME), ["train.max_steps=1"])
    assert recipe_of(places.RepoRef(NAME), [f"data.path={path}"]).data.path == path
    assert recipe_of(places.RepoRef(NAME), ["data.path=mine"]).data.path == "mine"


def test_a_recipe_from_the_hub_is_data(hub: HubServer, kit_here: RunKit, tmp_path: Path) -> None:
    hub.put(NAME, {"recipe.yaml": b"task: !!python/object/apply:os.mkdir [trap]\n"})
    done = kit_here("train", NAME)
    assert done.returncode == 2
    assert "tags such as" in done.stderr
    assert not (tmp_path / "trap").exists()
    hub.put("tester/none", {"config.json": b"{}"})
    assert "has no recipe.yaml" in kit_here("train", "tester/none").stderr


def test_a_run_keeps_the_commits_that_it_used(
    hub: HubServer, trained: Path, tiny_recipe: Path, kit_here: RunKit, tmp_path: Path
) -> None:
    files = {p.relative_to(trained / "model").as_posix(): p.read_bytes() for p in (trained / "model").rglob("*.*")}
    commit = hub.put(NAME, {path: content for path, content in files.items() if not path.startswith("plots")})
    arguments = [
        "train",
        tiny_recipe,
        f"model={{pretrained: {NAME}}}",
        "tokenizer={}",
        "train.max_steps=1",
        "--output",
        "run",
    ]
    done = kit_here(*arguments)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")
    assert f"pretrained: {NAME}@{commit}" in text
    assert f"base_model: {NAME}\n" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    hub.put(NAME, {"config.json": b"{}"})  # the model moves on, the run does not
    places.download.cache_clear()
    again = kit_here(*arguments)
    assert again.returncode == 0, again.stderr
    assert "holds the finished run" in again.stderr


def test_private_content_is_not_published(trained: Path, tmp_path: Path) -> None:
    from kit.sharing.folder import build_folder, find_source
    from kit.sharing.published import collect_files

    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    for name in ("config.json", ".env", ".git/config", "b.pt", "notes.json", "trap.py"):
        (source / name).write_text("{}", encoding="utf-8")
    left_out = [f"left out: {name}" for name in (".git/", ".env", "b.pt", "notes.json", "trap.py")]
    assert collect_files(source, tmp_path / "target") == left_out
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["config.json"]
    (tmp_path / "secret.json").write_text("{}", encoding="utf-8")
    (source / "link.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(HubError, match="is a link to a path outside"):
        collect_files(source, tmp_path / "other")
    published = find_source(trained, [f"hub.tags=['see hf_{'x' * 30}']"])
    (tmp_path / "share").mkdir()
    with pytest.raises(HubError, match=r"README.md contains an access token"):
        build_folder(published, tmp_path / "share", NAME)


def test_tokens_are_masked_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "a secret of any form")
    for text in (
        "before a secret of any form after",
        f"before {TOKEN} after",
        "before https://user:hunter2@host/x after",
        "before https://s3/x?X-Amz-Signature=abc123 after",
    ):
        shown = redact(text)
        assert shown.startswith("before ")
        assert shown.endswith(" after")
        for secret in ("a secret of any form", TOKEN, "hunter2", "abc123"):
            assert secret not in shown
    assert redact("no secret: hf_short, https://host/x?y=1") == "no secret: hf_short, https://host/x?y=1"


def test_an_unforeseen_error_shows_no_token(kit_here: RunKit, monkeypatch: pytest.MonkeyPatch, trained: Path) -> None:
    import kit.runs.evaluate

    def fail(*about: object) -> None:
        raise RuntimeError(f"something with {TOKEN} in it")

    monkeypatch.setattr(kit.runs.evaluate, "evaluate", fail)
    done = kit_here("eval", trained)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "something with *** in it" in done.stderr
    assert TOKEN not in done.stderr


# ---- cards ----------------------------------------------------------------------------------------------------------

HOSTILE = "</td><script>alert(1)</script> ![x](javascript:1) [y](http://e) **z** | ` \n---\nlicense: mit\n# h"


def test_names_of_all_kinds_cannot_become_markup(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    folder = tmp_path / "a <img src=x onerror=alert(1)> [run](http:x) `name` **b**"
    folder.mkdir()
    changed = recipe(
        data={"path": f"/data/{HOSTILE}".replace("\n", " ").replace("</", "<"), "train": HOSTILE},
        hub={"tags": [HOSTILE], "license": "apache-2.0", "datasets": [HOSTILE]},
    )
    figures = {**RESULTS["test"], "by": {HOSTILE: {HOSTILE: {"count": 1, "bleu": 1.0}}}, HOSTILE: 1.0}
    results = {
        **RESULTS,
        "test": figures,
        "hardware": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "data": {"examples": {"train": 1}, "left_out": {HOSTILE: 1}, "notes": [HOSTILE]},
        "train": {HOSTILE: HOSTILE},
    }
    card = write_card(folder, changed, results)
    data = ModelCard(card).data
    assert (data.license, data.datasets) == ("apache-2.0", [HOSTILE])
    tokens = body(card)
    assert not [token for token in tokens if token.type == "html_block"]
    kinds = {token.type for token in inline(tokens)}
    assert kinds <= {"text", "text_special", "code_inline", "softbreak", "hardbreak", "image"}
    headings = [tokens[index + 1].content for index, token in enumerate(tokens) if token.type == "heading_open"]
    assert "h" not in headings
