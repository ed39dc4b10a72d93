"""Write a model as a self-contained folder: weights, configuration, tokenizer, and the code to run them."""

import shutil
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedModel

from kit.data.text.tokenizer import Tokenizers
from kit.pretrained.adapters import MODEL_CONFIG, adapter_config_file
from kit.pretrained.finite import check_finite
from kit.pretrained.loading import quiet_transformers
from kit.pretrained.pipeline_files import code_files, custom_pipelines
from kit.system.files import TEMPORARY_PREFIX, replace_folder
from kit.system.format import FORMAT_STAMP


def export_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizers: Tokenizers,
    generation: GenerationConfig | None = None,
    pipelines: tuple[str, ...] = (),
    image_processor: Any = None,
) -> None:
    """Write all that `from_pretrained` and `pipeline(..., trust_remote_code=True)` need where kit is not installed.

    The folder appears, or replaces an earlier one, only when it is complete. Raises RunError if a weight is not a
    finite number.

    Args:
        folder: The model folder to write.
        model: The model, or a base model with an adapter, of which only the adapter is saved.
        tokenizers: The tokenizers to save beside it.
        generation: Generation settings to save; by default those of the model.
        pipelines: The names of kit's pipelines for this model, whose code is saved with it.
        image_processor: The image processor to save.
    """
    check_finite(model, "nothing was written")
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
        with quiet_transformers():
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
