"""The pipeline `image-to-text`: captions of pictures.

This file stands alone: it is saved with a model for those who do not have kit.
"""

import io
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import GenerationConfig, Pipeline

TASK = "image-to-text"


def read_picture(source: Any, background: str = "#ffffff", channels: int = 3) -> Image.Image:
    """A picture as a captioner sees it, upright and without transparent parts, of a file, its bytes or a PIL image.

    What shows through is `background`, such as "#ffffff"; `channels` is 3 for colors, 1 for grey. Raises ValueError
    if it cannot be read.
    """
    try:
        if isinstance(source, Image.Image):
            picture = source
        else:
            picture = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        picture = ImageOps.exif_transpose(picture)
        if picture.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
            picture = Image.fromarray((np.asarray(picture) >> 8).clip(0, 255).astype(np.uint8))
        if picture.has_transparency_data:
            see_through = picture.convert("RGBA")
            picture = Image.new("RGBA", see_through.size, background)
            picture.alpha_composite(see_through)
        return picture.convert("L" if channels == 1 else "RGB")
    except Exception as error:  # Pillow raises whatever its decoders do
        name = f'"{source}"' if isinstance(source, str | os.PathLike) else "it"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name} cannot be read as a picture: {reason}") from error


class ImageToTextPipeline(Pipeline):
    """From a picture to text: `pipe(picture)` → `[{"generated_text": "…"}]`, `pipe([…, …])` → one such list each.

    A picture is the path of a file or a PIL image. With `num_return_sequences=n` there are n dicts, best first. Any
    other argument is one of `generate()`; all of them can also be given when the pipeline is made.
    """

    _load_tokenizer = True
    _load_image_processor = True
    _load_processor = False
    _load_feature_extractor = False
    _pipeline_calls_generate = True
    _default_generation_config = GenerationConfig(max_new_tokens=64)

    def _sanitize_parameters(self, **generate_kwargs: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        return {}, generate_kwargs, {}

    def __call__(self, inputs: Any, **kwargs: Any) -> Any:
        return [] if isinstance(inputs, list | tuple) and not inputs else super().__call__(inputs, **kwargs)

    def preprocess(self, inputs: Any) -> dict[str, torch.Tensor]:
        if not isinstance(inputs, str | os.PathLike | Image.Image):
            raise ValueError(f"{self.task} takes paths of files or PIL images, not {type(inputs).__name__}")
        config = self.model.config
        picture = read_picture(inputs, getattr(config, "background", "#ffffff"), getattr(config, "num_channels", 3))
        return {"pixel_values": self.image_processor(picture, return_tensors="pt").pixel_values}

    def _forward(self, model_inputs: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        sequences = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs))
        # (batch, n, target) without START
        return {"sequences": sequences[:, 1:].unflatten(0, (len(model_inputs["pixel_values"]), -1))}

    def postprocess(self, model_outputs: dict[str, torch.Tensor]) -> list[dict[str, str]]:
        end = self.model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        records = []
        for tokens in model_outputs["sequences"][0].tolist():
            kept = tokens[: next((place for place, token in enumerate(tokens) if token in ends), None)]
            records.append({"generated_text": self.tokenizer.decode(kept, skip_special_tokens=True)})
        return records

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Write the model, its tokenizer, its image processor and this file: a folder that needs only transformers."""
        folder, config = Path(save_directory), self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines(PIPELINES)
        for part in (self.model, self.tokenizer, self.image_processor):
            part.save_pretrained(folder, **kwargs)
        shutil.copyfile(__file__, folder / Path(__file__).name)


PIPELINES: dict[str, type[Pipeline]] = {TASK: ImageToTextPipeline}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What `config.custom_pipelines` says, so that `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[task].__name__}",
            "pt": ["AutoModelForImageTextToText"],
            "default": {},
            "type": "multimodal",
        }
        for task in tasks
    }
