"""The pipeline `image-to-text`: captions of images.

This file is self-contained: it is saved with a model, so that it works without kit.
"""

import io
import os
import shutil
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import GenerationConfig, Pipeline, PreTrainedTokenizerBase

TASK = "image-to-text"


def read_image(source: Any, background: str = "#ffffff", channels: int = 3) -> Image.Image:
    """Read a file, its bytes or a PIL image as a captioner sees it: upright, RGB or (with one channel) grayscale.

    Transparent parts show `background`, a color such as "#ffffff". Raises ValueError if the image cannot be read.
    """
    try:
        if isinstance(source, Image.Image):
            image = source
        else:
            with warnings.catch_warnings():  # an image of a few bytes can decompress to gigabytes
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source)
        image = ImageOps.exif_transpose(image)
        if image.mode.startswith("I"):  # 16-bit grayscale, which Pillow would clip at 255
            image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
        if image.has_transparency_data:
            transparent = image.convert("RGBA")
            image = Image.new("RGBA", transparent.size, background)
            image.alpha_composite(transparent)
        return image.convert("L" if channels == 1 else "RGB")
    except Exception as error:  # Pillow's decoders raise exceptions of many types
        name = f'"{source}"' if isinstance(source, str | os.PathLike) else "the input"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(f"{name} cannot be read as an image: {reason}") from error


# These two are copied from text_to_text.py, because this file is saved alone.


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The id of the token that stands for unknown text, or None if the tokenizer has none.

    Byte-level tokenizers know all text; some nevertheless name an unknown token, which has another role (in GPT-2, the
    end of a text).
    """
    unknown = tokenizer.unk_token_id
    others = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    return None if unknown in others else unknown


def decode_text(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], **arguments: Any) -> str:
    """The text of generated tokens. Of the special tokens, it shows only the unknown one, which stands for a word.

    `decode` would drop that one too: the sentence would lack a word, and metrics would be those of a shorter sentence.
    """
    unknown = unknown_id(tokenizer)
    if unknown is None or unknown not in ids:
        return tokenizer.decode(ids, skip_special_tokens=True, **arguments)
    dropped = set(tokenizer.all_special_ids) - {unknown}
    shown = [token for token in ids if token not in dropped]
    return tokenizer.decode(shown, skip_special_tokens=False, **arguments)


class ImageToTextPipeline(Pipeline):
    """Caption images: `pipe(image)` → `[{"generated_text": "…"}]`, `pipe([…, …])` → one such list per image.

    An image is the path of a file or a PIL image. `num_return_sequences=n` returns n dicts, best first. All other
    arguments are passed to `generate()`. Any argument can also be given when the pipeline is created.
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
        image = read_image(inputs, getattr(config, "background", "#ffffff"), getattr(config, "num_channels", 3))
        return {"pixel_values": self.image_processor(image, return_tensors="pt").pixel_values}

    def _forward(self, model_inputs: dict[str, torch.Tensor], **generate_kwargs: Any) -> dict[str, torch.Tensor]:
        sequences = self.model.generate(**model_inputs, **self._prepare_generate_kwargs(generate_kwargs))
        # (batch, n, target), without the decoder's start token
        return {"sequences": sequences[:, 1:].unflatten(0, (len(model_inputs["pixel_values"]), -1))}

    def postprocess(self, model_outputs: dict[str, torch.Tensor]) -> list[dict[str, str]]:
        end = self.model.generation_config.eos_token_id
        ends = end if isinstance(end, list) else [end]
        records = []
        for tokens in model_outputs["sequences"][0].tolist():
            end_index = next((index for index, token in enumerate(tokens) if token in ends), None)
            records.append({"generated_text": decode_text(self.tokenizer, tokens[:end_index])})
        return records

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        """Save the model, its tokenizer, its image processor and this file: a folder that needs only transformers."""
        folder, config = Path(save_directory), self.model.config
        config.custom_pipelines = getattr(config, "custom_pipelines", None) or custom_pipelines(PIPELINES)
        for part in (self.model, self.tokenizer, self.image_processor):
            part.save_pretrained(folder, **kwargs)
        shutil.copyfile(__file__, folder / Path(__file__).name)


PIPELINES: dict[str, type[Pipeline]] = {TASK: ImageToTextPipeline}


def custom_pipelines(tasks: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The value of `config.custom_pipelines`: where `pipeline(task, …, trust_remote_code=True)` finds this file."""
    return {
        task: {
            "impl": f"{Path(__file__).stem}.{PIPELINES[task].__name__}",
            "pt": ["AutoModelForImageTextToText"],
            "default": {},
            "type": "multimodal",
        }
        for task in tasks
    }
