"""`kit merge`: a plain model of a base model and the adapter that was trained for it, proven to predict the same."""

import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from kit.data.text.tokenizer import Tokenizers
from kit.errors import RunError
from kit.models import register_models
from kit.pretrained.adapters import adapted_class, adapter_config_file, base_of
from kit.pretrained.loading import export_model, load_merged, load_model, weights_dir
from kit.pretrained.positions import position_limit
from kit.runs.folder import RunFolder
from kit.system.files import read_json_lines, write_text
from kit.tasks.registry import create_task
from kit.training.objective import decoder_inputs

EXAMPLES = 8
LARGEST = 1e-4
"""Largest difference of a logit, in relation to the largest logit, that is rounding."""
LONGEST = 256


@dataclass(frozen=True)
class Merged:
    """A plain model folder, and by how much its logits differ from those with the adapter at most."""

    folder: Path
    base: str
    difference: float
    examples: int


def merge(run: str | Path, output: Path) -> Merged:
    """Merge the adapter of a run, or of an adapter's folder, into its base model, and write that as a model folder.

    Nothing is written if the two do not give the same logits.
    """
    register_models()
    place = weights_dir(run)
    if adapter_config_file(place) is None:
        raise RunError(f"{run} holds no adapter: there is nothing to merge. Runs with a section peft do")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise RunError(f"{output} is not empty: nothing was touched. Name a new folder with --output")
    beside, merged = load_model(adapted_class(place), place).eval(), load_merged(place).eval()
    tokenizers = Tokenizers.load(place)
    texts = example_texts(Path(run))
    difference = largest_difference(beside, merged, texts, tokenizers)
    if not difference <= LARGEST:
        raise RunError(
            f"merging {run} would change its predictions: logits differ by {difference:.2g} of the largest. Nothing "
            "was written"
        )
    pipelines = tuple(getattr(merged.config, "custom_pipelines", None) or ())
    export_model(output, merged, tokenizers, pipelines=pipelines)
    if RunFolder(Path(run)).results_file.is_file():
        describe(RunFolder(Path(run)), output)
    return Merged(output, base_of(place), difference, len(texts))


def example_texts(run: Path) -> list[str]:
    """A few texts that the run has predicted something for; a few words if there are none."""
    for file in sorted((run / "predictions").glob("*.jsonl")):
        rows = [row for _, row in islice(read_json_lines(file, "predictions"), EXAMPLES)]
        texts = [" ".join(strings_of(row)) for row in rows]
        if any(texts):
            return [text for text in texts if text]
    return ["one two three", "3 April 2021", "?"]


def strings_of(row: dict[str, object]) -> list[str]:
    """All texts of a row, also those in lists."""
    found: list[str] = []
    for value in row.values():
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, str)]
    return found


@torch.inference_mode()
def largest_difference(
    model: PreTrainedModel, other: PreTrainedModel, texts: list[str], tokenizers: Tokenizers
) -> float:
    """By how much two models' logits differ at most, in relation to the largest logit."""
    largest, scale = 0.0, 1e-12
    for text in texts:
        ours, theirs = logits(model, text, tokenizers), logits(other, text, tokenizers)
        for one, two in zip(ours, theirs, strict=True):
            largest = max(largest, float((one - two).abs().max()))
            scale = max(scale, float(one.abs().max()))
    return largest / scale


def logits(model: PreTrainedModel, text: str, tokenizers: Tokenizers) -> list[Tensor]:
    """All logits that a model gives for a text."""
    limit = min(position_limit(model.config) or LONGEST, LONGEST)
    ids = torch.tensor(tokenizers.source([text], verbose=False)["input_ids"])[:, :limit]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        target = torch.tensor(tokenizers.target([text], verbose=False)["input_ids"])[:, :limit]
        inputs["decoder_input_ids"] = decoder_inputs(model, target)
    output = model(**inputs)
    return [value for name, value in output.items() if name.endswith("logits")]


def describe(run: RunFolder, output: Path) -> None:
    """Put the card of a run beside its merged model, with the pictures that it shows."""
    recipe = run.recipe()
    card = create_task(recipe).write_card(run.path, run.results(), merged=True)
    write_text(output / "README.md", card)
    if run.plots.is_dir():
        shutil.copytree(run.plots, output / "plots", dirs_exist_ok=True)
