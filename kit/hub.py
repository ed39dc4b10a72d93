"""Models as folders that stand on their own: weights, configuration, tokenizer and the code to run them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from kit.atomic import TEMPORARY, replace_folder
from kit.data.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.models import register_models
from kit.pipelines import code_files, custom_pipelines
from kit.recipe_model import check_settings


def model_place(name_or_path: str | Path) -> str:
    """Where the weights of a run are; anything else is a model folder or a Hub id already."""
    inside = Path(name_or_path) / "model"
    return str(inside) if (inside / "config.json").is_file() else str(name_or_path)


def load_seq2seq(name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """An encoder-decoder of a run folder, a model folder or a Hub id; `settings` change its configuration."""
    return load_model(AutoModelForSeq2SeqLM, name_or_path, settings)


def load_model(auto_class: Any, name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """The model of a run folder, a model folder or a Hub id; `settings` change its configuration."""
    config = load_config(name_or_path, settings)
    with told_in_one_line(name_or_path), without_progress_bars():
        model = auto_class.from_pretrained(model_place(name_or_path), config=config)
    freeze_constants(model)
    return model


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
    if Path(name_or_path).is_dir() and not (Path(place) / "config.json").is_file():
        raise RunError(f"{name_or_path} holds no trained model: it has no model/config.json. Is the run finished?")
    with told_in_one_line(name_or_path):
        kind = type(AutoConfig.from_pretrained(place))
        checked, problems = check_settings(kind, settings or {})
        if problems:
            raise RecipeError("; ".join(message for _, message in problems))
        return AutoConfig.from_pretrained(place, **checked)


@contextmanager
def told_in_one_line(name_or_path: str | Path) -> Iterator[None]:
    """Say in one line what transformers finds wrong with a model that is to be loaded."""
    try:
        yield
    except (OSError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
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
) -> None:
    """Write what `from_pretrained` and `pipeline(..., trust_remote_code=True)` need, also where kit is not installed.

    The folder appears whole, or not at all.
    """
    temporary = folder.with_name(f"{TEMPORARY}{folder.name}")
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
        tokenizers.save(temporary)
        for file in code_files(entries):
            shutil.copyfile(Path(__file__).parent / "pipelines" / file, temporary / file)
        replace_folder(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
