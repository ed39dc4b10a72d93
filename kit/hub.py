"""A model folder that stands on its own: weights, configuration, tokenizer and the code to run them."""

import shutil
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from kit.data.tokenizer import Tokenizers
from kit.pipelines import MODEL_CLASSES, PIPELINES
from kit.training.checkpoint import TEMPORARY, replace_folder


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
        logging.disable_progress_bar()  # a bar for a single file is noise
        model.save_pretrained(temporary)
        tokenizers.save(temporary)
        for name in pipelines:
            source = Path(__file__).parent / "pipelines" / f"{entries[name]['impl'].split('.')[0]}.py"
            shutil.copyfile(source, temporary / source.name)
        replace_folder(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    finally:
        logging.enable_progress_bar()
