"""Checks of model folders before transformers and PEFT read them: what those libraries follow out of a folder.

kit passes `trust_remote_code=False` to every load. A few requests of a folder pass by that flag or are resolved without
a look at where they lead; a folder that makes one is rejected.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kit.errors import RunError
from kit.hub.download import unsafe_paths
from kit.system.files import irregular_entry, read_json


def check_model_folder(folder: Path) -> None:
    """Raise RunError if loading the model or tokenizer in a folder would run code, read other folders or never end."""
    if problem := irregular_entry(folder):
        raise RunError(f"{problem}: replace it with a file, or remove it")
    config, adapter_config = folder / "config.json", folder / "adapter_config.json"
    if config.is_file() and adapter_config.is_file():
        # transformers would load the adapter on top of the model, also from a pickle
        raise RunError(f"{folder} holds both a model and an adapter of it: remove config.json or adapter_config.json")
    for file in folder.glob("*.index.json"):
        _check_shards(file)
    for file in (config, folder / "model_config.json"):
        _check_kernels(file)
    _check_tokenizer_classes(folder)


def _check_shards(index: Path) -> None:
    """transformers joins the names of weight files to the folder, whatever they are."""
    names = _read(index).get("weight_map")
    files = [str(name) for name in names.values()] if isinstance(names, dict) else []
    if outside := unsafe_paths(files):
        raise RunError(f"{index} names weights outside of its folder: {outside[0]!r}")
    others = [name for name in files if not name.endswith(".safetensors")]
    if others and index.name.endswith(".safetensors.index.json"):  # transformers would open them by their own format
        raise RunError(f"{index} names weights that are not safetensors: {others[0]!r}")


def _check_kernels(file: Path) -> None:
    """transformers downloads a kernel, which is compiled code, if it is named like a repository."""
    for key in ("attn_implementation", "_attn_implementation"):
        for value in _values(_read(file), key):
            for name in value.values() if isinstance(value, dict) else [value]:
                if isinstance(name, str) and "/" in name:
                    raise RunError(
                        f'{file} asks for the attention kernel "{name}", which is code from the Hub. kit does not run '
                        f"it: remove {key}"
                    )


def _check_tokenizer_classes(folder: Path) -> None:
    """transformers takes any of its classes for a tokenizer, and does not pass `trust_remote_code` on to it: an Auto
    class, or a tokenizer made of others, would ask on stdin whether to run the code of the folder."""
    from transformers import PreTrainedTokenizerBase
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name
    from transformers.utils import DummyObject

    config = _read(folder / "config.json")
    names = [*_values(config, "tokenizer_class")]
    names += [TOKENIZER_MAPPING_NAMES.get(kind) for kind in _values(config, "model_type") if isinstance(kind, str)]
    names += [_read(file).get("tokenizer_class") for file in folder.glob("**/tokenizer_config.json")]
    for name in {name.removesuffix("Fast") for name in names if isinstance(name, str)}:
        for candidate in (name, f"{name}Fast"):
            kind = tokenizer_class_from_name(candidate)
            if kind is None or isinstance(kind, DummyObject):  # unknown, or the stand-in for a missing package
                continue
            if not (isinstance(kind, type) and issubclass(kind, PreTrainedTokenizerBase)):
                raise RunError(
                    f'{folder} names "{candidate}" as the class of its tokenizer, which is not a tokenizer class'
                )


def _read(file: Path) -> dict[str, Any]:
    """The content of a JSON file, empty if there is none that can be read: whoever loads the file reports that."""
    try:
        return read_json(file, "a configuration")
    except RunError:
        return {}


def _values(content: Any, key: str) -> Iterator[Any]:
    """The values of a key at any depth."""
    if isinstance(content, dict):
        if key in content:
            yield content[key]
        for value in content.values():
            yield from _values(value, key)
    elif isinstance(content, list):
        for value in content:
            yield from _values(value, key)
