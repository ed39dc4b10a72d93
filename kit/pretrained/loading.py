"""Models as folders that stand on their own: weights, configuration, tokenizer and the code to run them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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

from kit.data.text.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.hub.download import resolve_folder
from kit.models import register_models
from kit.pretrained.adapters import (
    MODEL_CONFIG,
    adapted_class,
    adapter_config_file,
    base_of,
    merged_into,
    read_adapter_config,
    with_adapter,
)
from kit.pretrained.padding import padding_problem
from kit.pretrained.pipeline_files import code_files, custom_pipelines
from kit.recipe.base import Recipe
from kit.recipe.model_settings import check_settings
from kit.system.files import TEMPORARY_PREFIX, replace_folder
from kit.system.redaction import redact

SAFELY: dict[str, Any] = {"use_safetensors": True, "trust_remote_code": False}
"""How every model is loaded: weights that are numbers and nothing else, and no code from its folder."""


def model_place(name_or_path: str | Path) -> str:
    """The folder with the weights of a run, of a model folder, or of `OWNER/NAME[@REVISION]` on the Hub."""
    folder = resolve_folder(name_or_path)
    inside = folder / "model"
    is_model = any((inside / file).is_file() for file in ("config.json", "adapter_config.json"))
    return str(inside if is_model else folder)


def load_seq2seq(name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """An encoder-decoder of a run folder, a model folder or a Hub id; `settings` change its configuration."""
    return load_model(AutoModelForSeq2SeqLM, name_or_path, settings)


def load_model(auto_class: Any, name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """The model of a run folder, a model folder or a Hub id, with its adapter if that is what they hold; `settings`
    change its configuration."""
    config, place = load_config(name_or_path, settings), model_place(name_or_path)
    if auto_class is AutoModelForSequenceClassification and (problem := padding_problem(config)):
        raise RunError(f"{name_or_path}: {problem}")
    with told_in_one_line(name_or_path), without_progress_bars():
        if adapter_config_file(place) is not None:
            return load_adapted(auto_class, place, config)
        model = auto_class.from_pretrained(place, config=config, **SAFELY)
    freeze_constants(model)
    return model


def new_or_pretrained(
    auto_class: Any, recipe: Recipe, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, new_head: bool
) -> tuple[PreTrainedModel, list[str]]:
    """The model that a recipe asks for, with this configuration, in the precision of the recipe; and the names of parts
    that a pretrained one has no weights for, which are new. Only with `new_head` there may be any.

    An adapter that training goes on from is merged into its base model.
    """
    place, train = recipe.model.pretrained, recipe.train
    torch.manual_seed(train.seed)
    if place is None:
        return built(auto_class, config).to(getattr(torch, train.dtype)), []
    with told_in_one_line(place), without_progress_bars(), plain_weights(place) as folder:
        model, told = auto_class.from_pretrained(
            folder, config=config, ignore_mismatched_sizes=new_head, output_loading_info=True, **SAFELY
        )
    freeze_constants(model)
    if model.get_input_embeddings().num_embeddings < len(tokenizer):
        raise RecipeError(
            f"tokenizer.pretrained has {len(tokenizer)} tokens, more than model.pretrained knows: use the model's own "
            "tokenizer by leaving tokenizer.pretrained out"
        )
    missing = [*told["missing_keys"], *(key[0] for key in told["mismatched_keys"])] if new_head else []
    return model.to(getattr(torch, train.dtype)), sorted({name.rpartition(".")[0] for name in missing} - {""})


def built(auto_class: Any, config: PreTrainedConfig) -> PreTrainedModel:
    """A new model. Raises RecipeError if the numbers in its configuration make none."""
    try:
        return auto_class.from_config(config)
    # Configurations of transformers take any number: what the layers make of one below 1 is of many kinds.
    except (ArithmeticError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise RecipeError(
            f"model: no {config.model_type} can be built from the keys of this section: {error}"
        ) from error


def load_adapted(auto_class: Any, place: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter with the adapter beside its weights; for a class that the adapter was not trained
    for, with the adapter merged into them."""
    if auto_class is not adapted_class(place):
        with plain_weights(place) as folder:
            return auto_class.from_pretrained(folder, config=config, **SAFELY)
    return with_adapter(load_base(place, config), place)


def load_base(place: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The base model of an adapter, with the configuration and the search that the adapter was saved with."""
    base = base_of(place)
    with told_in_one_line(f"{base}, the base model of the adapter {place},"), without_progress_bars():
        # the head of the adapter may have other labels
        model = adapted_class(place).from_pretrained(
            model_place(base), config=config, ignore_mismatched_sizes=True, **SAFELY
        )
    freeze_constants(model)
    if model.can_generate():
        model.generation_config = GenerationConfig.from_pretrained(place)
    return model


def load_merged(name_or_path: str | Path) -> PreTrainedModel:
    """The base model of an adapter with the adapter merged into its weights."""
    place = model_place(name_or_path)
    return merged_into(load_base(place, load_config(place)), place)


@contextmanager
def plain_weights(name_or_path: str | Path) -> Iterator[str]:
    """Where the weights of a model are, for as long as the block lasts; those of an adapter are merged."""
    place = model_place(name_or_path)
    if adapter_config_file(place) is None:
        yield place
        return
    with TemporaryDirectory() as folder:
        load_merged(place).save_pretrained(folder)
        yield folder


def freeze_constants(model: PreTrainedModel) -> None:
    """Freeze what a new model of this class has frozen, such as Marian's sinusoids: loading loses that, and training on
    several GPUs would wait for their gradients."""
    with torch.device("meta"):
        new = type(model)(model.config)
    frozen = {name for name, parameter in new.named_parameters() if not parameter.requires_grad}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in frozen)


def load_config(name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedConfig:
    """The configuration of a run folder, a model folder or a Hub id, changed by `settings`."""
    register_models()
    place = model_place(name_or_path)
    with told_in_one_line(name_or_path):
        adapter = adapter_config_file(place)
    if Path(name_or_path).is_dir() and adapter is None and not (Path(place) / "config.json").is_file():
        raise RunError(f"{name_or_path} holds no trained model: it has no model/config.json. Is the run finished?")
    how: dict[str, Any] = {"trust_remote_code": False}
    if adapter is not None:
        read_adapter_config(place)
        how["_configuration_file"] = MODEL_CONFIG
    with told_in_one_line(name_or_path):
        kind = type(AutoConfig.from_pretrained(place, **how))
        checked, problems = check_settings(kind, settings or {})
        if problems:
            raise RecipeError("; ".join(message for _, message in problems))
        return AutoConfig.from_pretrained(place, **how, **checked)


@contextmanager
def told_in_one_line(name_or_path: str | Path) -> Iterator[None]:
    """Say in one line what transformers finds wrong with a model that is to be loaded."""
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
