"""Model folders: open, load and save weights, config, adapter, tokenizer and the code for use without kit."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, read_tokenizer
from kit.errors import RecipeError, RunError
from kit.hub.download import download, is_downloaded, resolve_folder
from kit.hub.foreign import check_model_folder
from kit.hub.names import parse_foreign_repo_id
from kit.models import register_models
from kit.pretrained.adapters import (
    MODEL_CONFIG,
    adapted_class,
    adapter_config_file,
    attach_adapter,
    base_model_of,
    merge_adapter,
    read_adapter_config,
)
from kit.pretrained.padding import padding_problem
from kit.pretrained.pipeline_files import code_files, custom_pipelines
from kit.recipe.base import Recipe
from kit.recipe.model_settings import check_settings
from kit.system.device import default_device
from kit.system.files import TEMPORARY_PREFIX, replace_folder
from kit.system.format import FORMAT_STAMP, check_format, read_run_format
from kit.system.redaction import redact


def weights_dir(name_or_path: str | Path) -> str:
    """The folder with the weights of a run, of a model folder, or of `OWNER/NAME[@REVISION]` on the Hub."""
    return str(_weights_dir(resolve_folder(name_or_path)))


def _weights_dir(folder: Path) -> Path:
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
        """The tokenizer of a model with a single text, with padding even if it has no padding token, as GPT-2's."""
        with one_line_errors(self.name):
            tokenizer = read_tokenizer(str(self.path))
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def load(self, auto_class: Any, device: str | torch.device | None = None) -> PreTrainedModel:
        """The model for inference, on a device (by default the one that training uses)."""
        return load_model(auto_class, self).eval().to(device or default_device())


def load_seq2seq(name_or_path: str | Path | ModelFolder, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """An encoder-decoder of a run folder, a model folder or a Hub id; `settings` change its configuration."""
    return load_model(AutoModelForSeq2SeqLM, name_or_path, settings)


def load_model(
    auto_class: Any, name_or_path: str | Path | ModelFolder, settings: dict[str, Any] | None = None
) -> PreTrainedModel:
    """The model of a run folder, a model folder or a Hub id, with its adapter if it has one; `settings` change its
    configuration."""
    folder = ModelFolder.open(name_or_path, settings)
    path = str(folder.path)
    if auto_class is AutoModelForSequenceClassification and (problem := padding_problem(folder.config)):
        raise RunError(f"{folder.name}: {problem}")
    with one_line_errors(folder.name), without_progress_bars():
        if adapter_config_file(path) is not None:
            return load_adapted(auto_class, path, folder.config)
        model = auto_class.from_pretrained(path, config=folder.config, use_safetensors=True, trust_remote_code=False)
    freeze_constants(model)
    return model


def new_or_pretrained(
    auto_class: Any, recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new_head: bool
) -> tuple[PreTrainedModel, list[str]]:
    """The model of a recipe with this config, new or pretrained, in the precision of the recipe; and the names of the
    modules that are newly initialized in a pretrained model, which only `new_head` allows.

    If `model.pretrained` is an adapter, it is merged into its base model. Raises RecipeError or RunError if the model
    cannot be built or loaded.
    """
    pretrained, train = recipe.model.pretrained, recipe.train
    torch.manual_seed(train.seed)
    if pretrained is None:
        return build_from_config(auto_class, config).to(getattr(torch, train.dtype)), []
    with one_line_errors(pretrained), without_progress_bars(), merged_weights(pretrained) as folder:
        model, loading = auto_class.from_pretrained(
            folder,
            config=config,
            ignore_mismatched_sizes=new_head,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    freeze_constants(model)
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        raise RecipeError(
            f"tokenizer.pretrained has {len(tokenizer)} tokens, more than model.pretrained has embeddings for. Remove "
            "tokenizer.pretrained to use the model's own tokenizer"
        )
    missing = [*loading["missing_keys"], *(key[0] for key in loading["mismatched_keys"])] if new_head else []
    return model.to(getattr(torch, train.dtype)), sorted({name.rpartition(".")[0] for name in missing} - {""})


def build_from_config(auto_class: Any, config: PreTrainedConfig) -> PreTrainedModel:
    """A new model. Raises RecipeError if no model can be built from the numbers in its config."""
    try:
        return auto_class.from_config(config, trust_remote_code=False)
    # Configs of transformers accept any number; for one below 1, the layers raise exceptions of many types.
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise RecipeError(
            f"model: a {config.model_type} cannot be built from the keys of this section: {error}"
        ) from error


def load_adapted(auto_class: Any, folder: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter with the adapter attached, or merged if the adapter was trained with a class other
    than `auto_class`."""
    if auto_class is not adapted_class(folder):
        with merged_weights(folder) as merged:
            return auto_class.from_pretrained(merged, config=config, use_safetensors=True, trust_remote_code=False)
    return attach_adapter(load_base(folder, config), folder)


def open_base(folder: str | Path) -> ModelFolder:
    """The base model that an adapter names, on the Hub or, for an adapter of this machine, in a folder.

    Raises RunError if an adapter from the Hub names a path on this machine, or if the base is an adapter itself.
    """
    name = base_model_of(folder)
    source: str | Path = name
    if is_downloaded(Path(folder)):
        ref = parse_foreign_repo_id(name)
        if ref is None:
            raise RunError(
                f"the base model of the adapter {folder} is {name!r}, a path on this machine instead of a model on the "
                "Hub. An adapter from the Hub may not name one: nothing was loaded"
            )
        source = download(ref)
    with one_line_errors(f"{name}, the base model of the adapter {folder},"):
        base = ModelFolder.open(source)
    if adapter_config_file(base.path) is not None:  # transformers would load what that one names, unchecked
        raise RunError(f"the base model of the adapter {folder} is {name}, which is an adapter itself")
    return replace(base, name=name)


def load_base(folder: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter, with the config and the generation config that were saved with the adapter."""
    base = open_base(folder)
    with one_line_errors(f"{base.name}, the base model of the adapter {folder},"), without_progress_bars():
        # the head of the adapter may have other labels
        model = adapted_class(folder).from_pretrained(
            base.path,
            config=config,
            ignore_mismatched_sizes=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
    freeze_constants(model)
    if model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def load_merged(name_or_path: str | Path) -> PreTrainedModel:
    """The base model of an adapter with the adapter merged into its weights."""
    folder = weights_dir(name_or_path)
    return merge_adapter(load_base(folder, load_config(folder)), folder)


@contextmanager
def merged_weights(name_or_path: str | Path) -> Iterator[str]:
    """A folder with the weights of a whole model within the block: an adapter is merged into a temporary one."""
    folder = weights_dir(name_or_path)
    if adapter_config_file(folder) is None:
        yield folder
        return
    with TemporaryDirectory() as temporary:
        load_merged(folder).save_pretrained(temporary)
        yield temporary


def freeze_constants(model: PreTrainedModel) -> None:
    """Freeze the parameters that a new model of this class freezes, such as Marian's sinusoids.

    Loading unfreezes them, and DDP would wait for their gradients.
    """
    with torch.device("meta"):
        new = type(model)(model.config)
    frozen = {name for name, parameter in new.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)


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


@contextmanager
def one_line_errors(name_or_path: str | Path) -> Iterator[None]:
    """Turn errors of transformers about a model that is loaded into a RunError of one line."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        if "trust_remote_code" in str(error):
            raise RunError(
                f"{name_or_path} brings code of its own, which kit does not run. If you trust it, load it yourself "
                "with trust_remote_code=True and save it as a model that transformers knows"
            ) from None
        reason = redact(str(error).strip().splitlines()[0])
        raise RunError(f"{name_or_path} cannot be loaded as a run, a model folder or a Hub id: {reason}") from None


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing a bar for every file that it reads or writes."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def export_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    generation: GenerationConfig | None = None,
    pipelines: tuple[str, ...] = (),
    image_processor: Any = None,
) -> None:
    """Write what `from_pretrained` and `pipeline(..., trust_remote_code=True)` need, also where kit is not installed.

    The folder appears whole, or not at all.
    """
    temporary = folder.with_name(f"{TEMPORARY_PREFIX}{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    entries = custom_pipelines(pipelines)
    if entries:
        model.config.custom_pipelines = entries
    model.config.update(FORMAT_STAMP)
    for stale in ("prefix", "task_specific_params"):  # of a pretrained model: what counts now is in its tokenizer
        if getattr(model.config, stale, None) is not None:
            delattr(model.config, stale)
    if generation is not None:
        model.generation_config = generation
    try:
        with without_progress_bars():
            model.save_pretrained(temporary)
        if adapter_config_file(temporary) is not None:
            model.config.to_json_file(temporary / MODEL_CONFIG)
            if model.can_generate():
                model.generation_config.save_pretrained(temporary)
        tokenizers.save(temporary)
        if image_processor is not None:
            image_processor.save_pretrained(temporary)
        for file in code_files(entries):
            shutil.copyfile(Path(__file__).parents[1] / "pipelines" / file, temporary / file)
        replace_folder(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
