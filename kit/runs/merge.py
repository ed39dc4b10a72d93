"""`kit merge`: merge an adapter into its base model, and prove that the result predicts the same."""

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
from kit.pretrained.adapters import adapted_class, adapter_config_file, base_model_of
from kit.pretrained.export import export_model
from kit.pretrained.folder import weights_dir
from kit.pretrained.loading import load_merged, load_model
from kit.pretrained.positions import position_limit
from kit.runs.folder import RunFolder
from kit.system.files import read_json_lines
from kit.system.outputs import new_folder, write_text
from kit.tasks.registry import create_task
from kit.training.objective import decoder_inputs

EXAMPLES = 8
"""Rows whose logits are compared before and after merging: a wrong merge changes those of every row."""
TOLERANCE = 1e-4
"""Largest difference of a logit, relative to the largest logit, that counts as rounding in float32."""
MAX_LENGTH = 256
"""Tokens of an example, so that the comparison takes seconds; longer ones are truncated."""


@dataclass(frozen=True)
class Merged:
    """A plain model folder, and the largest difference of its logits from those with the adapter."""

    folder: Path
    base: str
    difference: float
    examples: int


def merge(run: str | Path, output: Path) -> Merged:
    """Merge the adapter of a run, or of an adapter's folder, into its base model, and write that as a model folder.

    Raises RunError, and writes nothing, if the logits with the adapter and those of the merged model differ.
    """
    with new_folder(output) as folder:
        base, difference, examples = merge_into(folder, run)
    return Merged(output, base, difference, examples)


def merge_into(output: Path, run: str | Path) -> tuple[str, float, int]:
    """Write the merged model into an empty folder; returns its base, the difference and the number of examples."""
    register_models()
    folder = weights_dir(run)
    if adapter_config_file(folder) is None:
        raise RunError(f"{run} has no adapter to merge. Only runs whose recipe has a section peft have one")
    adapted, merged = load_model(adapted_class(folder), folder).eval(), load_merged(folder).eval()
    tokenizers = Tokenizers.load(folder)
    texts = example_texts(Path(run))
    difference = largest_difference(adapted, merged, texts, tokenizers)
    if not difference <= TOLERANCE:
        raise RunError(
            f"merging {run} would change its predictions: logits differ by {difference:.2g} of the largest. Nothing "
            "was written"
        )
    pipelines = tuple(getattr(merged.config, "custom_pipelines", None) or ())
    export_model(output, merged, tokenizers, pipelines=pipelines)
    if RunFolder(Path(run)).results_file.is_file():
        describe(RunFolder(Path(run)), output)
    return base_model_of(folder), difference, len(texts)


def example_texts(run: Path) -> list[str]:
    """A text for each of a few predictions of the run, of all their inputs and outputs; fixed ones if it has none."""
    for file in sorted((run / "predictions").glob("*.jsonl")):
        rows = [row for _, row in islice(read_json_lines(file, "predictions"), EXAMPLES)]
        texts = [" ".join(strings_of(row)) for row in rows]
        if any(texts):
            return [text for text in texts if text]
    return ["one two three", "3 April 2021", "?"]


def strings_of(row: dict[str, object]) -> list[str]:
    """All texts of a row, also those in lists."""
    values = [item for value in row.values() for item in (value if isinstance(value, list) else [value])]
    return [value for value in values if isinstance(value, str)]


@torch.inference_mode()
def largest_difference(
    model: PreTrainedModel, other: PreTrainedModel, texts: list[str], tokenizers: Tokenizers
) -> float:
    """The largest difference of two models' logits, relative to the largest logit."""
    largest, scale = 0.0, 1e-12  # so that logits of zero divide nothing by zero
    for text in texts:
        pairs = zip(logits(model, text, tokenizers), logits(other, text, tokenizers), strict=True)
        for first, second in pairs:
            largest = max(largest, float((first - second).abs().max()))
            scale = max(scale, float(first.abs().max()))
    return largest / scale


def logits(model: PreTrainedModel, text: str, tokenizers: Tokenizers) -> list[Tensor]:
    """All outputs of a model for a text whose names end in "logits", such as start and end logits."""
    limit = min(position_limit(model.config) or MAX_LENGTH, MAX_LENGTH)
    ids = torch.tensor(tokenizers.source([text], verbose=False)["input_ids"])[:, :limit]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        target = torch.tensor(tokenizers.target([text], verbose=False)["input_ids"])[:, :limit]
        inputs["decoder_input_ids"] = decoder_inputs(model, target)
    output = model(**inputs)
    return [value for name, value in output.items() if name.endswith("logits")]


def describe(run: RunFolder, output: Path) -> None:
    """Write a run's card, with the plots that it shows, into the folder of its merged model."""
    recipe = run.recipe()
    card = create_task(recipe).write_card(run.path, run.results(), merged=True)
    write_text(output / "README.md", card)
    if run.plots.is_dir():
        shutil.copytree(run.plots, output / "plots", dirs_exist_ok=True)
