"""Tagging: a tag for each word, learned on the parts that a tokenizer makes of words, and judged on whole words."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor
from transformers import (
    AutoModelForTokenClassification,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import clean, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import Plan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.columns import note_once
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tag_schemes import OUTSIDE, Conversion, all_tags, convert, split_tag
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.evaluation.metrics.tags import entity_measure
from kit.plots.labels import draw_confusion, draw_types
from kit.tasks.base import Encoded
from kit.tasks.families.labeling.data import Inputs, LabelReader, encode_all, feature_names, in_order, numbered
from kit.tasks.families.labeling.objectives import LabelObjective, TaggingObjective
from kit.tasks.families.labeling.task import FineTuning, Predictions, predict_rows, predict_with_loss
from kit.tasks.tagging.recipe import TaggingRecipe
from kit.training.objective import Batch, Objective
from kit.verify.learning import cross_entropy_by_hand

Sentences = list[list[str]]


@dataclass(frozen=True)
class Tagged:
    """Encoded sentences with the tags of their tokens."""

    inputs: Inputs
    labels: RaggedTokens
    """For each token the number of its tag, or -100."""
    first_tokens: RaggedTokens
    """For each word its first token; -1 for a word without tokens."""
    cut: int = 0
    without_tokens: int = 0
    """Words of which nothing is left, such as control characters, and words behind the end of what can be read."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        return self.inputs.batch(indices) | {"labels": self.labels.padded(indices, IGNORE_INDEX)}

    def select(self, indices: np.ndarray) -> "Tagged":
        inputs, labels = self.inputs.select(indices), self.labels.select(indices)
        return Tagged(inputs, labels, self.first_tokens.select(indices))


@dataclass(frozen=True)
class WordTokens:
    """Encoded sentences, and which tokens are of which words."""

    inputs: Inputs
    word_ids: list[list[int | None]]
    """For each token the number of its word; None for special ones."""
    first_tokens: list[list[int]]
    """For each word its first token; -1 for a word without tokens."""
    long: np.ndarray
    """Which sentences had to be cut."""


class Tagging(FineTuning[Tagged]):
    """What a recipe of this task does at each station on the way of the data."""

    auto_class: ClassVar[Any] = AutoModelForTokenClassification
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {"ignore_labels": []}
    recipe: TaggingRecipe

    @property
    def no_tag(self) -> str:
        """What a word is predicted to be of which nothing can be read."""
        return "" if self.recipe.data.scheme == "none" else OUTSIDE

    def words_to_learn(self, rows: Dataset) -> Iterable[str]:
        return (" ".join(words) for words in self.words(rows, "train"))

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().check_tokenizer(tokenizer)
        self.needs_fast(tokenizer)

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        tokenizers = super().build_tokenizers(splits)
        backend = tokenizers.source.backend_tokenizer
        if isinstance(backend.pre_tokenizer, ByteLevel) and not backend.pre_tokenizer.add_prefix_space:
            # Byte-level tokenizers know a word by the space before it, which words in a list do not have.
            backend.pre_tokenizer.add_prefix_space = True
            tokenizers.source.init_kwargs["add_prefix_space"] = True
        return tokenizers

    # ---- words and tags → tokens -------------------------------------------------------------------------------------

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Tagged]:
        tags = {name: self.tags(rows, name) for name, rows in splits.datasets.items()}
        for name, found in tags.items():
            if found.source != self.recipe.data.scheme:
                note_once(splits.report, f"{name}: tags are {found.source}, and become {self.recipe.data.scheme}")
            if found.repaired:
                note_once(splits.report, f"{name}: {found.repaired} tags in an order that {found.source} does not have")
        self.labels = self.order_of_pretrained(self.find_labels(tags["train"].sequences))
        config = self.config(tokenizers)
        self.suit_inputs(tokenizers.source, config)
        encoded, left_out = {}, {}
        for name, rows in splits.datasets.items():
            examples, long = self.encode_rows(rows, tags[name].sequences, tokenizers, config, name)
            if name == "train" and self.recipe.data.truncation == "do_not_truncate" and long.any():
                if long.all():
                    raise DataError("data.max_length: no training example is short enough.")
                examples, left_out["max_length"] = examples.select(np.flatnonzero(~long)), int(long.sum())
            if examples.without_tokens:
                note_once(
                    splits.report, f"{name}: {examples.without_tokens} words without a token, or beyond the limit"
                )
            encoded[name] = examples
        return Encoded(encoded, left_out)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Tagged:
        self.take_labels(config)
        return self.encode_rows(rows, self.tags(rows, "evaluated").sequences, tokenizers, config, "evaluated")[0]

    def encode_rows(
        self, rows: Dataset, tags: Sentences, tokenizers: Tokenizers, config: PreTrainedConfig, split: str
    ) -> tuple[Tagged, np.ndarray]:
        """The rows as examples, and which of them had to be cut."""
        data = self.recipe.data
        assert self.labels is not None
        places = {label: place for place, label in enumerate(self.labels)}
        words = self.encode_words(self.words(rows, split), tokenizers.source, config)
        labels = []
        for row, (ids_of_words, firsts, right) in enumerate(
            zip(words.word_ids, words.first_tokens, tags, strict=True), start=1
        ):
            ids = []
            for token, word in enumerate(ids_of_words):
                if word is None:
                    ids.append(IGNORE_INDEX)
                    continue
                first = firsts[word] == token
                tag = right[word] if first else self.going_on(right[word])
                if tag not in places:
                    raise DataError(
                        f'data.tags: {data.path}, {split}, row {row}: the tag "{tag}" is not among those of the '
                        "training data, so that the model cannot know it. Leave the row out, or train on such rows."
                    )
                ids.append(places[tag] if first or data.label_all_tokens else IGNORE_INDEX)
            labels.append(ids)
        without = sum(first < 0 for firsts in words.first_tokens for first in firsts)
        first_tokens = RaggedTokens(words.first_tokens)
        return Tagged(words.inputs, RaggedTokens(labels), first_tokens, int(words.long.sum()), without), words.long

    def encode_words(
        self, sentences: Sentences, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
    ) -> WordTokens:
        """The tokens of sentences, and the words that they are of."""
        found, long = encode_all(
            lambda portion, **how: tokenizer(portion, is_split_into_words=True, **how),
            sentences, self.limit(tokenizer, config), self.recipe.data.truncation,
        )  # fmt: skip
        names = found[0][0].keys() if found else ()
        inputs = Inputs.of({name: [encoded[name][at] for encoded, at in found] for name in names}, tokenizer)
        word_ids, first_tokens = [encoded.word_ids(at) for encoded, at in found], []
        for words, ids in zip(sentences, word_ids, strict=True):
            firsts = [-1] * len(words)
            for token, word in reversed(list(enumerate(ids))):  # the first one comes last, and stays
                if word is not None:
                    firsts[word] = token
            first_tokens.append(firsts)
        return WordTokens(inputs, word_ids, first_tokens, long)

    def going_on(self, tag: str) -> str:
        """The tag of the later parts of a word."""
        goes_on = self.recipe.data.scheme in ("BIO", "IOB1") and tag[:1] == "B"
        return f"I{tag[1:]}" if goes_on else tag

    def words(self, rows: Dataset, split: str) -> Sentences:
        """The words of each sentence. Raises DataError if a column does not hold lists of texts."""
        found: list[Any] = list(ColumnView(rows, "tokens"))
        for row, words in enumerate(found, start=1):
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise DataError(
                    f"data.tokens: {self.recipe.data.path}, {split}, row {row}: expected a list of words, got "
                    f"{str(words)[:60]!r}. Sentences in columns of words and tags are read from .conll files."
                )
        return found

    def tags(self, rows: Dataset, split: str) -> Conversion:
        """The tags of each sentence in the scheme of the recipe."""
        data = self.recipe.data
        reader = LabelReader(f"data.tags: {data.path}, {split}", data.label_names or feature_names(rows, "tags"))
        found: Sentences = []
        for (row, cell), words in zip(numbered(rows, "tags"), ColumnView(rows, "tokens"), strict=True):
            tags = reader.listed(cell, row)
            if len(tags) != len(words):
                raise DataError(f"{reader.where}, row {row}: {len(tags)} tags for {len(words)} words.")
            found.append(tags)
        if data.scheme == "none":
            return Conversion(found, "none", 0)
        try:
            return convert(found, data.scheme)
        except DataError as error:
            raise DataError(f"{reader.where}: {error} For tags that are no spans set data.scheme: none.") from None

    def find_labels(self, sequences: Sentences) -> list[str]:
        """Every tag there can be. Raises DataError if there is nothing to tell apart."""
        data = self.recipe.data
        seen = {tag for tags in sequences for tag in tags}
        if data.scheme == "none":
            labels = in_order(data.label_names or sorted(seen))
        else:
            labels = all_tags({split_tag(tag)[1] for tag in seen if tag != OUTSIDE}, data.scheme)
        if len(labels) < 2:
            only = f'only the tag "{labels[0]}"' if labels else "no tags"
            raise DataError(f"data.tags: the training data of {data.path} has {only}: there is nothing to learn.")
        return labels

    # ---- loss, evaluation and what is left behind --------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> TaggingObjective:
        return TaggingObjective(model, self.recipe.train.label_smoothing_factor)

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Tagged],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        """Loss of tokens, and metrics of words; a word without tokens is predicted to be outside of all spans."""
        assert isinstance(objective, TaggingObjective)
        assert self.labels is not None
        examples, section = encoded.splits[split], self.recipe.eval
        best, loss = predict_with_loss(objective, examples, evaluator, best_tags)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.cut:
            figures["cut"] = examples.cut
        if examples.without_tokens:
            figures["words_without_tokens"] = examples.without_tokens
        predictions = self.tags_of_words(best, examples.first_tokens)
        texts = splits.datasets[split]
        right = self.tags(texts, split).sequences
        figures |= compute_metrics(section.metrics, predictions, right)
        rows = [
            {"tokens": words, "tags": tags, "prediction": found}
            for words, tags, found in zip(self.words(texts, split), right, predictions, strict=True)
        ]
        return Evaluation(figures, rows)

    def tags_of_words(self, best: list[np.ndarray], first_tokens: RaggedTokens) -> Sentences:
        """The tag of each word, that of its first token, from the numbers of the tags of all tokens."""
        assert self.labels is not None
        return [
            [self.no_tag if first < 0 else self.labels[numbers[first]] for first in first_tokens[row]]
            for row, numbers in enumerate(best)
        ]

    def predict(self, objective: LabelObjective, rows: Dataset, tokenizers: Tokenizers) -> Predictions:
        config = objective.model.config
        self.take_labels(config)
        words = self.encode_words(self.words(rows, "given"), tokenizers.source, config)
        best = predict_rows(objective, words.inputs, self.recipe.eval.tokens_per_batch, best_tags)
        tags = self.tags_of_words(best, RaggedTokens(words.first_tokens))
        return Predictions([{"prediction": found} for found in tags], int(words.long.sum()))

    def shown(self, row: dict[str, Any]) -> str:
        shown = []
        for word, tag, found in zip(row["tokens"], row["tags"], row["prediction"], strict=True):
            if found == tag:
                shown.append(word if tag == OUTSIDE else f"{word}/{tag}")
            else:
                shown.append(f"{word}/{found or '-'}≠{tag}")
        return " ".join(shown)[:300]

    def draw(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, plots: Path) -> None:
        """Which tags are taken for which, and how well spans of each type are found."""
        rows = evaluation.rows
        pairs = [pair for row in rows for pair in zip(row["tags"], row["prediction"], strict=True)]
        if pairs:
            draw_confusion(pairs, plots / "confusion.png")
        if self.recipe.data.scheme != "none":
            scores = entity_measure([row["prediction"] for row in rows], [row["tags"] for row in rows], "f1")
            if scores["by_type"]:
                draw_types(scores["by_type"], plots / "types.png")

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        words = [clean(word) for word in (rows[0] if rows else {}).get("tokens", ["…"])]
        call = f"{json.dumps(words, ensure_ascii=False)}, is_split_into_words=True"
        examples = [[" ".join(row[name]) for name in ("tokens", "tags", "prediction")] for row in rows]
        return {
            "call": call,
            "results_note": "Metrics are over whole words, or spans of words, and out of 1.",
            "examples_split": split,
            "examples_table": table(("words", "tags", "prediction"), examples),
        }

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch) -> float:
        smoothing = self.recipe.train.label_smoothing_factor
        summed = cross_entropy_by_hand(output["logits"], batch["labels"], smoothing)
        return summed / int((batch["labels"] != IGNORE_INDEX).sum())

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """The tag of each word, that of its first token."""
        words, tags = row["tokens"], dict[int, str]()
        (entities,) = pipe(words, is_split_into_words=True) if words else ([],)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        for entity in entities:
            tags.setdefault(int(np.searchsorted(starts, entity["start"], side="right")) - 1, entity["entity"])
        return {"prediction": [tags.get(index, self.no_tag) for index in range(len(words))]}


def best_tags(output: dict[str, Tensor], batch: Batch) -> list[np.ndarray]:
    """The number of the likeliest tag of each token."""
    return list(output["logits"].argmax(-1).cpu().numpy())
