"""What a run will see and need, before it starts: `kit data` and `kit train --dry-run`."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel

from kit.data.batching.plan import micro_batch_rng
from kit.data.report import SplitReport
from kit.data.shortcuts import try_rules
from kit.data.statistics import LengthStats, Overlap, count_unknown
from kit.data.text.tokenizer import NoTokenizers
from kit.diagnostics.cost import Cost, estimate
from kit.diagnostics.report import Batches, Example, Inspection, Parameters, ShownSide, Side, SplitFacts
from kit.recipe.base import Recipe
from kit.runs.prepare import Prepared, prepare
from kit.runs.train import build_accelerator
from kit.system.machine import keep_freed_memory
from kit.tasks.base import Task
from kit.tasks.stages import Encoded, TaskState, TextTokens, TokenView

EXAMPLES = 3
"""Examples that are shown."""
UNKNOWN_RATE_WARNING = 0.01
"""Share of unknown tokens from which there is a warning: one in a hundred is one in every few sentences."""
CASE_SENSITIVE_METRICS = ("bleu", "chrf", "ter", "exact_match", "token_accuracy", "cider")
PARTS = ("embeddings", "encoder", "decoder", "attention", "output", "other")
"""Kinds of modules whose parameters are counted."""


def inspect_recipe(recipe: Recipe) -> Inspection:
    """Do everything that a run does before its first step, and time a few steps on a copy of the model.

    For a stream, the first buffer stands for the training data. Nothing is written. Raises what a run would raise for a
    recipe that cannot be trained.
    """
    keep_freed_memory()  # as in a run: it changes the time of a step
    accelerator = build_accelerator(recipe)
    prepared = prepare(recipe).first_buffer()
    train = training_rows(prepared)
    others = {split: rows for split, rows in prepared.splits.datasets.items() if split != "train"}
    rows = {"train": train, **others}
    reports = prepared.splits.report.splits
    splits = {
        split: split_facts(prepared.task, prepared.state, encoded, reports[split], split, rows[split])
        for split, encoded in prepared.encoded.items()
    }
    duplicates, overlaps = prepared.duplicates
    try:
        cost = estimate(prepared, accelerator)
    except torch.OutOfMemoryError:
        cost = None
    return Inspection(
        splits=splits,
        duplicates=duplicates,
        overlaps=dict(overlaps),
        examples=first_examples(prepared),
        start_token=start_token(prepared),
        vocabularies=vocabularies(prepared),
        batches=Batches(
            prepared.plan.steps_per_epoch or 0,
            prepared.total_steps,
            prepared.plan.micro_batches,
            prepared.plan.padding().share,
            recipe.data.streaming,
        ),
        parameters=count_parameters(prepared.model),
        cost=cost,
        notes=prepared.notes,
        warnings=[*prepared.splits.report.warnings, *find_warnings(recipe, splits, overlaps, cost)],
    )


def start_token(prepared: Prepared) -> str | None:
    """The token that the decoder starts from, as text; None for a model without a decoder."""
    config = prepared.model.config
    if not getattr(config, "is_encoder_decoder", False):
        return None
    return prepared.tokenizers.target.convert_ids_to_tokens(config.decoder_start_token_id)


def training_rows(prepared: Prepared) -> Dataset:
    """The rows of the training split that passed the filters."""
    train, indices = prepared.splits.datasets["train"], prepared.encoded["train"].kept
    return train if indices is None else train.select(indices)


def split_facts(
    task: Task[Any, Any], state: TaskState, encoded: Encoded[Any], report: SplitReport, split: str, rows: Dataset
) -> SplitFacts:
    """Sizes, lengths, labels and unknown tokens of a split, whose examples were encoded from `rows`."""
    examples, is_train = encoded.examples, split == "train"
    filters = encoded.dropped if is_train else task.beyond_filters(examples, state)
    filtered = {task.filter_name(name): count for name, count in filters.items() if count}
    left_out = {reason: count for reason, count in report.dropped.items() if count}
    unreachable = task.unreachable_references(examples)
    texts, pairs = task.token_lists(examples, state), task.labeled_pairs(rows, examples, state)
    return SplitFacts(
        read=report.read,
        left_out=left_out | filtered if is_train else left_out,
        flagged={what: count for what, count in report.flagged.items() if count},
        examples=len(examples),
        sides={name: side_of(tokens, rows) for name, tokens in texts.items()},
        beyond_filters={} if is_train else filtered,
        unreachable_references=len(unreachable),
        longest_reference=int(unreachable.max(initial=0)),
        labels=task.count_labels(rows),
        truncated=examples.truncated,
        pair_labels={} if pairs is None else pairs.counts(),
        rules=try_rules(pairs) if pairs is not None and is_train else [],
    )


def side_of(text: TextTokens, rows: Dataset) -> Side:
    """Statistics of one kind of text. `rows` provide the original texts for examples of unknown tokens, where each list
    of tokens belongs to one row."""
    column = None if text.column is None else rows[text.column]
    unknown = count_unknown(text.tokenizer, text.lists, lambda i: "" if column is None else column[i], text.as_target)
    lengths = text.lists.lengths if text.full_lengths is None else text.full_lengths
    return Side(LengthStats.of(lengths - text.special), unknown)


def first_examples(prepared: Prepared) -> list[Example]:
    """A few examples of the first micro-batch, decoded from the tensors that the model will receive."""
    batch = prepared.make_batch(prepared.plan.step(0)[0], micro_batch_rng(prepared.recipe.train.seed, 0, 0))
    views = prepared.task.describe_batch(batch, prepared.state)
    if not views:
        return []

    def show(view: TokenView, row: int) -> ShownSide:
        mask = view.mask[row]
        ids = view.ids[row][mask].tolist()
        text = view.tokenizer.decode(ids, skip_special_tokens=False)
        return ShownSide(text, view.tokenizer.convert_ids_to_tokens(ids), int((~mask).sum()))

    size, labels = len(next(iter(views.values())).ids), prepared.task.describe_labels(batch, prepared.state)
    return [
        Example(
            {name: show(view, row) for name, view in views.items()},
            {name: of_batch[row] for name, of_batch in labels.items()},
        )
        for row in np.linspace(0, size - 1, min(EXAMPLES, size)).astype(int)
    ]


def vocabularies(prepared: Prepared) -> dict[str, int]:
    """Vocabulary sizes: of source and target, or the shared one."""
    tokenizers = prepared.tokenizers
    if isinstance(tokenizers, NoTokenizers):
        return {}
    if tokenizers.shared:
        return {"shared": len(tokenizers.source)}
    return {"source": len(tokenizers.source), "target": len(tokenizers.target)}


def count_parameters(model: PreTrainedModel) -> Parameters:
    """Count the parameters by kind of module (PARTS), and the trainable ones; tied ones count once."""
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
        # our recurrent models compute keys and values once per source, in a module called memory
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
    recipe: Recipe, splits: dict[str, SplitFacts], overlaps: Mapping[str, Overlap], cost: Cost | None
) -> Iterator[str]:
    """Likely mistakes, each with its remedy."""
    for split, facts in splits.items():
        for rule in [rule for rule in facts.rules if rule.is_shortcut][:1]:
            yield (
                f"{split}: {rule.name} alone predicts {rule.accuracy:.1%} of the labels of pairs, and the most "
                f"frequent label {rule.chance:.1%}{f' ({rule.example})' * bool(rule.example)}. A model can learn this "
                "instead of comparing the texts: judge its accuracy by that of the rule, or balance the data"
            )
        if facts.unreachable_references and split != "train":
            limit = recipe.eval.max_new_tokens  # type: ignore[attr-defined]  # every task with such references has it
            yield (
                f"{split}: {facts.unreachable_references:,} of {facts.examples:,} references are longer than "
                f"eval.max_new_tokens={limit}, so no output can equal them. "
                f"The longest needs {facts.longest_reference}"
            )
        for name, side in facts.sides.items():
            if side.unknown.rate >= UNKNOWN_RATE_WARNING:
                yield (
                    f"{split}: {side.unknown.rate:.1%} of the {name} tokens are unknown. A larger "
                    "tokenizer.vocab_size, a smaller tokenizer.min_frequency or a subword tokenizer "
                    "(tokenizer.train: bpe) helps"
                )
    case_sensitive = [name for name in recipe.eval.metrics if name in CASE_SENSITIVE_METRICS]
    if recipe.tokenizer.lowercase and case_sensitive:
        yield (
            f"tokenizer.lowercase: outputs have no capitals, but {', '.join(case_sensitive)} compare them with the "
            "original references. Lowercase the data, or remove the key"
        )
    for split, overlap in overlaps.items():
        if overlap.inputs:
            yield (
                f"{split}: {overlap.inputs:,} of {overlap.examples:,} examples have the same {overlap.input_name} as "
                "one of train, so its metrics say little about new examples"
            )
    minutes = recipe.train.max_minutes
    if cost is None:
        yield (
            "the longest micro-batch does not fit into device memory: raise train.micro_batches, or lower "
            "train.tokens_per_batch (train.batch_size) or data.max_length"
        )
        return
    if cost.memory.total > cost.memory.available:
        yield (
            f"training needs about {cost.memory.total:,.0f} MB, but {cost.memory.available:,.0f} MB are available: "
            "raise train.micro_batches, or lower train.tokens_per_batch (train.batch_size) or data.max_length"
        )
    if minutes is not None and cost.seconds_of_training > 60 * minutes:
        last_step = int(60 * minutes / cost.seconds_per_step)
        yield f"train.max_minutes={minutes:g} ends the training at about step {last_step:,} of {cost.total_steps:,}"
