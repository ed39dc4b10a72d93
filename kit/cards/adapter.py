"""What only the cards of adapters say: how one is loaded, with kit and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.cards.markdown import code_block, quoted
from kit.cards.provenance import short_path

if TYPE_CHECKING:
    from kit.recipe.base import Recipe


def adapter_use(recipe: Recipe) -> str:
    """How an adapter is loaded, with kit and without."""
    auto = recipe.auto_class
    place = quoted(short_path(recipe.model.pretrained or ""))
    lines = [
        "import kit",
        "",
        'model = "model"  # the folder that holds adapter_config.json, or the id of this adapter on the Hub',
        f"use = kit.pipeline({quoted(recipe.pipeline_tag)}, model)",
        "",
        "# or without kit; model_config.json has the labels of the head (a base model of kit: trust_remote_code=True)",
        "from peft import PeftModel",
        f"from transformers import AutoConfig, {auto}",
        "",
        'config = AutoConfig.from_pretrained(model, _configuration_file="model_config.json")',
        f"base = {auto}.from_pretrained({place}, config=config, ignore_mismatched_sizes=True)",
        "adapted = PeftModel.from_pretrained(base, model)",
    ]
    told = "This is an adapter: weights to be used beside those of its base model, which are not in the folder."
    merge = "`kit merge RUN --output FOLDER` makes a plain model of both."
    return f"{told}\n\n{code_block(chr(10).join(lines), 'python')}\n\n{merge}"
