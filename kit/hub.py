"""Models as folders that stand on their own: weights, configuration, tokenizer and the code to run them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging

from kit.atomic import TEMPORARY, replace_folder
from kit.data.tokenizer import Tokenizers
from kit.errors import RecipeError, RunError
from kit.models import register_models
from kit.pipelines import MODEL_CLASSES, PIPELINES
from kit.recipe_model import check_settings


def model_place(name_or_path: str | Path) -> str:
    """Where the weights of a run are; anything else is a model folder or a Hub id already."""
    inside = Path(name_or_path) / "model"
    return str(inside) if (inside / "config.json").is_file() else str(name_or_path)


def load_seq2seq(name_or_path: str | Path, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """The model of a run folder, a model folder or a Hub id; `settings` change its configuration."""
    register_models()
    place = model_place(name_or_path)
    if Path(name_or_path).is_dir() and not (Path(place) / "config.json").is_file():
        raise RunError(f"{name_or_path} holds no trained model: it has no model/config.json. Is the run finished?")
    try:
        config = AutoConfig.from_pretrained(place)
        checked, problems = check_settings(type(config), settings or {})
        if problems:
            raise RecipeError("; ".join(message for _, message in problems))
        with without_progress_bars():
            return AutoModelForSeq2SeqLM.from_pretrained(place, **checked)
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
    generation: GenerationConfig,
    pipelines: tuple[str, ...],
) -> None:
    """Write what `from_pretrained` and `pipeline(..., trust_remote_code=True)` need, also where kit is not installed.

    The folder appears whole, or not at all.
    """
    temporary = folder.with_name(f"{TEMPORARY}{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    entries: dict[str, dict[str, Any]] = {}
    for name in pipelines:
        pipeline_class = PIPELINES[name]
        module = pipeline_class.__module__.rsplit(".", 1)[-1]
        entries[name] = {
            "impl": f"{module}.{pipeline_class.__name__}",
            "pt": [MODEL_CLASSES[name].__name__],
            "default": {},
            "type": "text",
        }
    model.config.custom_pipelines = entries
    model.generation_config = generation
    try:
        with without_progress_bars():
            model.save_pretrained(temporary)
        tokenizers.save(temporary)
        for name in pipelines:
            source = Path(__file__).parent / "pipelines" / f"{entries[name]['impl'].split('.')[0]}.py"
            shutil.copyfile(source, temporary / source.name)
        replace_folder(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
