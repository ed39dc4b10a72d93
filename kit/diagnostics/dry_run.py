"""What a run would see and take, before it is started: `kit data` and `kit train --dry-run`."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from kit.data.batching.plan import micro_batch_rng
from kit.data.batching.ragged import RaggedTokens
from kit.data.rows import filter_rows
from kit.data.statistics import Duplicates, LengthStats, Overlap, UnknownTokens, count_unknown, find_duplicates
from kit.data.text.tokenizer import NoTokenizers
from kit.diagnostics.cost import Cost, estimate
from kit.diagnostics.tables import render
from kit.recipe.base import Recipe
from kit.runs.prepare import Prepared, prepare
from kit.runs.train import build_accelerator
from kit.system.machine import keep_freed_memory
from kit.tasks.base import Shown
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.captioning.task import Captioning
from kit.tasks.translation.recipe import TranslationRecipe
from kit.tasks.translation.task import Translation, encode_pairs

EXAMPLES = 3
UNKNOWN_WORTH_A_WARNING = 0.01
COMPARES_CAPITALS = ("bleu", "chrf", "ter", "exact_match", "token_accuracy", "cider")
PARTS = ("embeddings", "encoder", "decoder", "attention", "output", "other")


@dataclass(frozen=True)
class Side:
    """One kind of text of a split, such as the sources."""

    lengths: LengthStats
    unknown: UnknownTokens


@dataclass(frozen=True)
class SplitFacts:
    """A split on its way from the data to the model."""

    read: int
    left_out: dict[str, int]  # by reason, without those that left out nothing
    flagged: dict[str, int]  # kept, but worth knowing
    examples: int
    sides: dict[str, Side]
    beyond_filters: dict[str, int]  # validation and test only: kept, though train would have left them out
    cut_references: int  # targets that no output can reach, as it would have more than eval.max_new_tokens


@dataclass(frozen=True)
class ShownSide:
    """One side of an example as it is in a batch."""

    text: str  # decoded again, special tokens and all
    tokens: list[str]
    padding: int  # tokens of it behind them


Example = dict[str, ShownSide]
"""An example of the first micro-batch: what the model reads, and what it learns to write."""


@dataclass(frozen=True)
class Batches:
    """The plan of the training."""

    steps_per_epoch: int
    total_steps: int
    micro_batches: int
    padding: float  # share of what the model computes on
    streamed: bool = False  # then an epoch is the first buffer

    @property
    def epochs(self) -> float:
        return self.total_steps / self.steps_per_epoch


@dataclass(frozen=True)
class Parameters:
    """Numbers of a model's weights; those that two parts share are counted once."""

    model_type: str
    total: int
    trained: int
    parts: dict[str, int]


@dataclass(frozen=True)
class Inspection:
    """What a run of a recipe would see and take."""

    splits: dict[str, SplitFacts]
    duplicates: Duplicates
    overlaps: dict[str, Overlap]  # of validation and test with train
    examples: list[Example]
    start_token: str | None  # of a decoder that reads what it learns to write, one token behind
    vocabularies: dict[str, int]  # sizes: of source and target, or of the one that they share
    batches: Batches
    parameters: Parameters
    cost: Cost | None  # None if the longest micro-batch does not fit into the memory
    notes: list[str]  # of the reader of the data
    warnings: list[str]  # what is likely to be a mistake


def inspect_recipe(recipe: Recipe) -> Inspection:
    """Do everything that a run does before its first step, look at it, and try a few steps on a copy of the model.

    Of a stream, its first buffer stands for the training data.
    Nothing is written. Raises what a run would raise for a recipe that cannot be trained.
    """
    keep_freed_memory()  # as a run does: it changes the time of a step
    accelerator = build_accelerator(recipe)
    prepared = prepare(recipe).first_buffer()
    train = training_texts(prepared)
    texts = {split: train if split == "train" else data for split, data in prepared.splits.datasets.items()}
    splits = {split: facts_of(prepared, split, texts[split]) for split in prepared.encoded.splits}
    others = {split: texts[split] for split in texts if split != "train"}
    duplicates, overlaps = find_duplicates(train, others, prepared.task.identity)
    try:
        cost = estimate(prepared, accelerator)
    except torch.OutOfMemoryError:
        cost = None
    return Inspection(
        splits=splits,
        duplicates=duplicates,
        overlaps=overlaps,
        examples=first_examples(prepared),
        start_token=start_token(prepared),
        vocabularies=vocabularies(prepared),
        batches=Batches(
            prepared.steps_per_epoch,
            prepared.total_steps,
            prepared.plan.micro_batches,
            prepared.plan.padding().share,
            recipe.data.streaming,
        ),
        parameters=count_parameters(prepared.model),
        cost=cost,
        notes=prepared.splits.report.notes,
        warnings=list(find_warnings(recipe, splits, overlaps, cost)),
    )


def start_token(prepared: Prepared) -> str | None:
    config = prepared.model.config
    if not getattr(config, "is_encoder_decoder", False):
        return None
    return prepared.tokenizers.target.convert_ids_to_tokens(config.decoder_start_token_id)


def training_texts(prepared: Prepared) -> Dataset:
    """The rows of the training split that the length filters let through."""
    train, task = prepared.splits.datasets["train"], prepared.task
    if not isinstance(task, Translation) or not any(prepared.encoded.left_out.values()):
        return train
    kept, _ = task.filter_lengths(encode_pairs(train, prepared.tokenizers), prepared.tokenizers)
    return filter_rows(train, kept)


def facts_of(prepared: Prepared, split: str, texts: Dataset) -> SplitFacts:
    """Sizes, lengths and unknown tokens of a split."""
    task, examples, report = prepared.task, prepared.encoded.splits[split], prepared.splits.report.splits[split]
    refused, cut_references = prepared.encoded.left_out if split == "train" else {}, 0
    if isinstance(task, Translation):
        if split != "train":
            refused = task.filter_lengths(examples, prepared.tokenizers)[1]
        cut_references = int((examples.target.lengths > task.recipe.eval.max_new_tokens).sum())
    elif isinstance(task, Captioning):
        cut_references = int((examples.lengths > task.recipe.eval.max_new_tokens).sum())
    by_filter = {task.filter_name(name): count for name, count in refused.items() if count}
    left_out = {reason: count for reason, count in report.dropped.items() if count}
    return SplitFacts(
        read=report.read,
        left_out=left_out | by_filter if split == "train" else left_out,
        flagged={what: count for what, count in report.flagged.items() if count},
        examples=len(examples),
        sides={name: side_of(prepared, lists, texts, name) for name, lists in task.texts(examples).items()},
        beyond_filters={} if split == "train" else by_filter,
        cut_references=cut_references,
    )


def side_of(prepared: Prepared, lists: RaggedTokens, texts: Dataset, name: str) -> Side:
    """Figures of one kind of text; `texts` are the rows that the lists were made from, where each has its own."""
    tokenizers, is_target = prepared.tokenizers, name == "target"
    if not isinstance(prepared.task, Translation):
        return Side(LengthStats.of(lists.lengths), count_unknown(tokenizers.source, lists, lambda i: "", False))
    tokenizer = tokenizers.target if is_target else tokenizers.source
    column = texts[name]
    unknown = count_unknown(tokenizer, lists, lambda i: column[i], is_target)
    always = tokenizers.encode_empty_target() if is_target else tokenizers.encode_empty_source()
    return Side(LengthStats.of(lists.lengths - len(always)), unknown)


def first_examples(prepared: Prepared) -> list[Example]:
    """A few examples of the first micro-batch of the first step, out of the very tensors that training would get."""
    make_batch = prepared.batch_maker()
    batch = make_batch(prepared.plan.step(0)[0], micro_batch_rng(prepared.recipe.train.seed, 0, 0))
    parts = prepared.task.read_and_learned(batch, prepared.tokenizers)
    if not parts:
        return []

    def show(part: Shown, row: int) -> ShownSide:
        real = part.real[row]
        kept = part.ids[row][real].tolist()
        text = part.tokenizer.decode(kept, skip_special_tokens=False)
        return ShownSide(text, part.tokenizer.convert_ids_to_tokens(kept), int((~real).sum()))

    size = len(next(iter(parts.values())).ids)
    return [
        {name: show(part, row) for name, part in parts.items()}
        for row in np.linspace(0, size - 1, min(EXAMPLES, size)).astype(int)
    ]


def vocabularies(prepared: Prepared) -> dict[str, int]:
    tokenizers = prepared.tokenizers
    if isinstance(tokenizers, NoTokenizers):
        return {}
    if tokenizers.shared:
        return {"shared": len(tokenizers.source)}
    return {"source": len(tokenizers.source), "target": len(tokenizers.target)}


def count_parameters(model: PreTrainedModel) -> Parameters:
    """The parameters of a model by what they are for; every one is counted exactly once."""
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for parameter in module.parameters()
    }
    output_layer = model.get_output_embeddings()
    output = set() if output_layer is None else {id(parameter) for parameter in output_layer.parameters()}

    def part_of(name: str, parameter: nn.Parameter) -> str:
        if id(parameter) in embeddings:
            return "embeddings"
        if id(parameter) in output:
            return "output"
        names = name.lower().split(".")
        # keys and values of a recurrent model are computed where its source is read, in a module called memory
        if "memory" in names or any("attention" in each or "attn" in each for each in names):
            return "attention"
        return next((part for part in ("encoder", "decoder") if part in names), "other")

    counts = dict.fromkeys(PARTS, 0)
    trained = 0
    for name, parameter in model.named_parameters():
        counts[part_of(name, parameter)] += parameter.numel()
        trained += parameter.numel() * parameter.requires_grad
    parts = {part: count for part, count in counts.items() if count}
    return Parameters(model.config.model_type, sum(parts.values()), trained, parts)


def find_warnings(
    recipe: Recipe, splits: dict[str, SplitFacts], overlaps: dict[str, Overlap], cost: Cost | None
) -> Iterator[str]:
    """What is likely to be a mistake, and what to do about it."""
    for split, facts in splits.items():
        if facts.cut_references and split != "train" and isinstance(recipe, TranslationRecipe | CaptioningRecipe):
            written = facts.sides["caption" if isinstance(recipe, CaptioningRecipe) else "target"].lengths
            needed = written.longest + isinstance(recipe, TranslationRecipe)  # where the end marker is not counted
            yield (
                f"{split}: {facts.cut_references:,} of {facts.examples:,} references are longer than "
                f"eval.max_new_tokens={recipe.eval.max_new_tokens}, so that no output can equal them. "
                f"The longest needs {needed}"
            )
        for name, side in facts.sides.items():
            if side.unknown.rate >= UNKNOWN_WORTH_A_WARNING:
                yield (
                    f"{split}: {side.unknown.rate:.1%} of the {name} tokens are unknown. A larger "
                    "tokenizer.vocab_size, a smaller tokenizer.min_frequency or a subword tokenizer "
                    "(tokenizer.train: bpe) helps"
                )
    by_case = [name for name in recipe.eval.metrics if name in COMPARES_CAPITALS]
    if recipe.tokenizer.lowercase and by_case:
        yield (
            f"tokenizer.lowercase: outputs have no capitals, but {', '.join(by_case)} compare them with the references "
            "as they are. Put the data into lower case, or leave it out"
        )
    for split, overlap in overlaps.items():
        if overlap.sources:
            yield (
                f"{split}: {overlap.sources:,} of {overlap.examples:,} examples have the same {recipe.data.roles[0]} "
                "as one of train, so that its figures say little about new text"
            )
    minutes = recipe.train.max_minutes
    if cost is None:
        yield (
            "the longest micro-batch does not fit into the memory of the device: raise train.micro_batches, or lower "
            "train.tokens_per_batch (train.batch_size) or data.max_length"
        )
        return
    if cost.memory.total > cost.memory.available:
        yield (
            f"training needs about {cost.memory.total:,.0f} MB, but there are {cost.memory.available:,.0f}: raise "
            "train.micro_batches, or lower train.tokens_per_batch (train.batch_size) or data.max_length"
        )
    if minutes is not None and cost.seconds_of_training > 60 * minutes:
        reached = int(60 * minutes / cost.seconds_per_step)
        yield f"train.max_minutes={minutes:g} ends the training at about step {reached:,} of {cost.total_steps:,}"


__all__ = ["Inspection", "inspect_recipe", "render"]
