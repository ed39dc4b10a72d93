"""A run folder, a model folder or a Hub repository, opened: its configuration, tokenizers and recipe file."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, read_tokenizer
from kit.errors import RecipeError, RunError
from kit.hub.download import resolve_folder
from kit.hub.foreign import check_model_folder
from kit.models import register_models
from kit.pretrained.adapters import MODEL_CONFIG, adapter_config_file, read_adapter_config
from kit.recipe.model_settings import check_settings
from kit.system.format import check_format, read_run_format
from kit.system.load_errors import one_line_errors


def weights_dir(name_or_path: str | Path) -> str:
    """The folder that holds the weights of a run, a model folder, or `OWNER/NAME[@REVISION]` on the Hub."""
    return str(_weights_dir(resolve_folder(name_or_path)))


def _weights_dir(folder: Path) -> Path:
    """The folder `model` of a run, or else the folder itself. Raises RunError for unsafe files in it."""
    inside = folder / "model"
    is_model = any((inside / file).is_file() for file in ("config.json", "adapter_config.json"))
    path = inside if is_model else folder
    check_model_folder(path)
    return path


@dataclass(frozen=True)
class ModelFolder:
    """A trained model in a run folder, a model folder or a Hub repository, opened once for a whole command."""

    name: str
    """The name or path that the user gave."""
    path: Path
    """The folder with the weights, the configuration and the tokenizer."""
    config: PreTrainedConfig
    recipe_file: Path | None
    """The recipe of a run; None for a model folder, or for a recipe that is not kit's."""

    @classmethod
    def open(cls, name_or_path: "str | Path | ModelFolder", settings: dict[str, Any] | None = None) -> "ModelFolder":
        """Resolve the name and read the configuration, changed by `settings`. An open folder is returned unchanged.

        Raises RunError if there is no trained model.
        """
        if isinstance(name_or_path, ModelFolder):
            return name_or_path
        folder = resolve_folder(name_or_path)
        path, recipe_file, stored = _weights_dir(folder), folder / "recipe.yaml", read_run_format(folder)
        is_run = recipe_file.is_file() and "kit_format" in stored
        if is_run:
            check_format(name_or_path, stored)
        config = _read_config(name_or_path, path, settings or {})
        return cls(str(name_or_path), path, config, recipe_file if is_run else None)

    @cached_property
    def tokenizers(self) -> Tokenizers:
        """The tokenizers of an encoder-decoder."""
        return load_pretrained_tokenizers(str(self.path))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of a model that has one. If it has no padding token, as GPT-2's, it pads with its end token."""
        tokenizer = read_tokenizer(str(self.path))
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer


def load_config(name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedConfig:
    """The configuration of a run folder, a model folder or a Hub id, changed by `settings`."""
    return ModelFolder.open(name_or_path, settings).config


def _read_config(name_or_path: str | Path, path: Path, settings: dict[str, Any]) -> PreTrainedConfig:
    register_models()
    with one_line_errors(name_or_path):
        adapter = adapter_config_file(path)
    if Path(name_or_path).is_dir() and adapter is None and not (path / "config.json").is_file():
        run = Path(name_or_path)
        if (run / "recipe.yaml").is_file():
            raise RunError(f"{run} has no model yet: finish it with `kit train {run} --resume`")
        raise RunError(f"{run} holds no trained model: it has neither config.json nor model/config.json")
    arguments: dict[str, Any] = {}
    if adapter is not None:
        read_adapter_config(path)
        arguments["_configuration_file"] = MODEL_CONFIG
    with one_line_errors(name_or_path):
        stored, _ = PreTrainedConfig.get_config_dict(path, **arguments)
        if "kit_format" in stored:  # any other model is not one of ours, or was saved by other code
            check_format(name_or_path, stored)
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, **arguments)
        if settings:
            checked, problems = check_settings(type(config), settings)
            if problems:
                raise RecipeError("; ".join(message for _, message in problems))
            config = AutoConfig.from_pretrained(path, trust_remote_code=False, **arguments, **checked)
    if (config._attn_implementation or "").startswith("flash_attention"):
        config._attn_implementation = None  # without the package, transformers would download a kernel instead
    return config
