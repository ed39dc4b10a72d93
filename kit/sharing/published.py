"""Which files of a model folder are published: those that kit and transformers write, and code only as kit ships it."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from importlib.resources import files
from pathlib import Path
from typing import Any

from kit.errors import HubError
from kit.system.files import outside_link, read_json
from kit.system.json_files import write_json

PUBLISHED = (
    "*.safetensors", "*.safetensors.index.json",
    "config.json", "model_config.json", "adapter_config.json", "generation_config.json", "preprocessor_config.json",
    "processor_config.json", "tokenizer.json", "target_tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "added_tokens.json",
    "vocab*.json", "vocab*.txt", "merges*.txt", "bpe.codes", "*.model", "*.spm", "chat_template.jinja",
    "README.md", "LICENSE*", "NOTICE*",
)  # fmt: skip
"""Files that kit, transformers and PEFT write. A list of what to leave out would publish every unforeseen file."""
ALLOWED = {
    "": PUBLISHED,
    "additional_chat_templates": ("*.jinja",),
    "plots": ("*.png", "*.csv"),
}
"""What is published of a model folder, by the folder within it."""


def own_code() -> dict[str, Path]:
    """The files of code that kit saves with models, by name."""
    folders = [Path(str(files(package))) for package in ("kit.models", "kit.pipelines")]
    return {file.name: file for folder in folders for file in folder.glob("*.py") if file.name != "__init__.py"}


def collect_files(folder: Path, target: Path, allowed: Mapping[str, Sequence[str]] = ALLOWED) -> list[str]:
    """Copy the files of a folder that are published; returns a note for each file that is left out.

    Code is copied from kit, whatever the folder has under that name, because testing the folder runs it. Weights are
    hard-linked if the file system supports it. Raises HubError for a symbolic link that leads out of the folder.
    """
    if (link := outside_link(folder)) is not None:
        raise HubError(f"{link} is a link to a path outside {folder}: replace it with its content, or remove it")
    code = own_code()
    notes = []
    for name in _file_names(folder):
        parent, _, last = name.rpartition("/")
        if not parent and last in code:
            _copy(code[last], target / name)
        elif any(fnmatch(last, pattern) for pattern in allowed.get(parent, ())):
            _copy(folder / name, target / name)
        else:
            notes.append(f"left out: {name}")
    return notes


def _file_names(folder: Path) -> Iterator[str]:
    """The files of a folder by their relative names. Of a hidden folder, or a cache of Python, only its name."""
    for root, folders, names in os.walk(folder):
        parent = Path(root).relative_to(folder)
        skipped = [name for name in folders if name.startswith(".") or name == "__pycache__"]
        yield from sorted((parent / name).as_posix() + "/" for name in skipped)
        folders[:] = sorted(set(folders) - set(skipped))
        yield from sorted((parent / name).as_posix() for name in names)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    if source.suffix == ".safetensors":
        with suppress(OSError):  # another file system
            return os.link(source.resolve(), target)
    shutil.copyfile(source, target)  # not a link: text files may be rewritten, which would change the run


def remove_foreign_code(target: Path) -> list[str]:
    """Remove what JSON files of a folder say about code that is not kit's; returns a note for each file."""
    notes = []
    for file in sorted(target.rglob("*.json")):
        if file.name.endswith("_config.json") or file.name == "config.json":
            content = read_json(file, "a configuration")
            safe = {key: value for key, value in content.items() if key not in CODE_KEYS or _is_own(value)}
            if safe != content:
                write_json(file, safe)
                keys = ", ".join(sorted(content.keys() - safe.keys()))
                notes.append(f"left out: {keys} of {file.relative_to(target).as_posix()}, which names code of others")
    return notes


CODE_KEYS = ("auto_map", "custom_pipelines", "custom_generate")
"""Keys of configurations whose values name classes to import."""


def _is_own(value: Any) -> bool:
    """Whether every class named in the value of a key is in a file of kit."""
    code = own_code()
    named: list[Any]
    if isinstance(value, dict):
        named = [entry.get("impl") if isinstance(entry, dict) else entry for entry in value.values()]
        # a tokenizer has two classes, one of which may be missing
        named = [name for entry in named for name in (filter(None, entry) if isinstance(entry, list) else [entry])]
    else:
        named = [value]
    return all(isinstance(name, str) and f"{name.partition('.')[0]}.py" in code for name in named)


def check_base_code(folder: Path) -> None:
    """Raise HubError if the base model of an adapter has code that is not kit's: testing the adapter would run it."""
    code = own_code()
    for file in folder.rglob("*.py"):
        if file.name not in code or file.read_bytes() != code[file.name].read_bytes():
            raise HubError(
                f"{file} is not code of this version of kit, and to test the adapter it would run. Save the base model "
                "again, or merge the adapter with `kit merge`"
            )
