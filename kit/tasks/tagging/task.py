"""Tagging: a tag for each word, learned on its tokens and evaluated on whole words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from datasets import Dataset
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import Sequence as Processors
from torch import Tensor
from transformers import (
    AutoModelForTokenClassification,
    Pipeline,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.columns import is_text
from kit.data.rows import ColumnView, to_dataset
from kit.data.splits import Splits
from kit.data.text.tag_schemes import OUTSIDE, Conversion, all_tags, convert, split_tag
from kit.data.text.tokenizer import Tokenizers
from kit.data.text.words import split_words
from kit.errors import DataError
from kit.evaluation.errors import CONFUSIONS, LABELS, MAX_CONFUSIONS, confused_pairs, label_table
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.evaluation.metrics.tags import entity_measure
from kit.plots.labels import draw_predicted_labels, draw_types
from kit.pretrained.folder import ModelFolder
from kit.tasks.base import Encoded
from kit.tasks.families.labeling.data import Inputs, LabelReader, encode_all, in_order, numbered
from kit.tasks.families.labeling.objectives import LabelObjective, TaggingObjective
from kit.tasks.families.labeling.task import (
    LabelingState,
    LabelingTask,
    Predictions,
    label_names,
    predict_rows,
    predict_with_loss,
    with_labels,
)
from kit.tasks.tagging.recipe import TaggingRecipe
from kit.training.objective import Batch, Objective
from kit.verify.learning import cross_entropy_by_hand

Sentences = list[list[str]]


@dataclass(frozen=True)
class TaggedSentences:
    """Encoded sentences with the tags of their tokens."""

    inputs: Inputs
    labels: RaggedTokens
    """The index of the tag of each token, or -100."""
    first_tokens: RaggedTokens
    """The first token of each word; -1 for a word without tokens."""
    truncated: int = 0
    without_tokens: int = 0
    """Number of words without a token: words of control characters only, and words beyond the length limit."""

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def lengths(self) -> np.ndarray:
        return self.inputs.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        return self.inputs.batch(indices) | {"labels": self.labels.padded(indices, IGNORE_INDEX)}

    def select(self, indices: np.ndarray) -> "TaggedSentences":
        inputs, labels = self.inputs.select(indices), self.labels.select(indices)
        return TaggedSentences(inputs, labels, self.first_tokens.select(indices))


@dataclass(frozen=True)
class WordTokens:
    """Encoded sentences, with the alignment of tokens and words."""

    inputs: Inputs
    word_ids: list[list[int | None]]
    """The index of the word of each token; None for special tokens."""
    first_tokens: list[list[int]]
    """The first token of each word; -1 for a word without tokens."""
    too_long: np.ndarray
    """Which sentences were too long and are truncated."""


class Tagging(LabelingTask[TaggedSentences]):
    """Token classification, such as named entities: a tag for each word of a sentence."""

    auto_class: ClassVar[Any] = AutoModelForTokenClassification
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {"aggregation_strategy": "none", "ignore_labels": []}
    recipe: TaggingRecipe

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction", "score")

    def input_table(self, table: pa.Table, file: str) -> pa.Table:
        """Plain text becomes a list of words, and tags that the file has are converted to the scheme of the model, so
        that the output has a single scheme."""
        data = self.recipe.data
        source = data.tokens if data.tokens in table.column_names else "text"
        if source in table.column_names and is_text(table.schema.field(source).type):
            words = [None if text is None else split_words(text) for text in table[source].to_pylist()]
            if source == data.tokens:
                table = table.drop_columns([source])
            table = table.append_column(data.tokens, pa.array(words, pa.list_(pa.string())))
        if not {data.tokens, data.tags} <= set(table.column_names) or table[data.tags].null_count:
            return table
        rows = to_dataset(table.select([data.tokens, data.tags]).rename_columns(["tokens", "tags"]))
        tags = pa.array(self.tags(rows, "given").sequences, pa.list_(pa.string()))
        return table.set_column(table.column_names.index(data.tags), data.tags, tags)

    @property
    def empty_tag(self) -> str:
        """The prediction for a word without tokens."""
        return "" if self.recipe.data.scheme == "none" else OUTSIDE

    def tokenizer_corpus(self, rows: Dataset) -> Iterable[str]:
        return (" ".join(words) for words in self.words(rows, "train"))

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        super().check_tokenizer(tokenizer)
        self.check_is_fast(tokenizer)

    def configure_tokenizer(self, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
        super().configure_tokenizer(tokenizer, config)
        backend = tokenizer.backend_tokenizer
        pre_tokenizer = backend.pre_tokenizer
        if isinstance(pre_tokenizer, ByteLevel) and not pre_tokenizer.add_prefix_space:
            # byte-level tokenizers know a word by the space before it, which the words of a list do not have
            pre_tokenizer.add_prefix_space = True
            tokenizer.init_kwargs["add_prefix_space"] = True
            # what trims the offsets would trim a letter in place of the space that is not in the text
            processor: Any = backend.post_processor
            parts: Any = processor if isinstance(processor, Processors) else [processor]
            for part in parts:
                if hasattr(part, "add_prefix_space"):
                    part.add_prefix_space = True

    @property
    def has_spans(self) -> bool:
        """Whether the tags mark spans as pipelines of transformers read them."""
        return self.recipe.data.scheme in ("BIO", "IOB1")

    # ---- state -------------------------------------------------------------------------------------------------------

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LabelingState:
        state = super().fit(splits, tokenizers)
        labels = self.find_labels(self.tags(splits.datasets["train"], "train").sequences)
        return replace(state, config=with_labels(state.config, labels), labels=tuple(labels))

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> LabelingState:
        state = super().restore(folder, splits)
        return replace(state, labels=label_names(state.config))

    def find_labels(self, sequences: Sentences) -> list[str]:
        """All possible tags. Raises DataError if there is only one."""
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

    # ---- words and tags → tokens -------------------------------------------------------------------------------------

    def encode(self, rows: Dataset, state: LabelingState, split: str) -> Encoded[TaggedSentences]:
        data, tags = self.recipe.data, self.tags(rows, split)
        words = self.encode_words(self.words(rows, split), state)
        labels = self.token_labels(words, tags.sequences, state, split)
        without_tokens = sum(first < 0 for sentence in words.first_tokens for first in sentence)
        examples = TaggedSentences(
            words.inputs, labels, RaggedTokens(words.first_tokens), int(words.too_long.sum()), without_tokens
        )
        dropped = {}
        if split == "train" and data.truncation == "do_not_truncate" and words.too_long.any():
            if words.too_long.all():
                raise DataError("data.max_length: no training example is short enough.")
            examples = examples.select(np.flatnonzero(~words.too_long))
            dropped["max_length"] = int(words.too_long.sum())
        notes = []
        if tags.source != data.scheme:
            notes.append(f"{split}: tags are {tags.source}, and become {data.scheme}")
        if tags.repaired:
            notes.append(f"{split}: {tags.repaired} tags in an order that {tags.source} does not have")
        if examples.without_tokens:
            notes.append(f"{split}: {examples.without_tokens} words without a token, or beyond the limit")
        return Encoded(examples, dropped, notes=tuple(notes))

    def count_labels(self, rows: Dataset) -> dict[str, int]:
        return dict(Counter(tag for tags in self.tags(rows, "data").sequences for tag in tags).most_common())

    def token_labels(self, words: WordTokens, tags: Sentences, state: LabelingState, split: str) -> RaggedTokens:
        """The index of the tag of each token, or -100. Raises DataError for a tag that the model does not know."""
        data, index = self.recipe.data, {label: number for number, label in enumerate(state.labels)}
        labels = []
        for row, (word_ids, first_tokens, tags_of_words) in enumerate(
            zip(words.word_ids, words.first_tokens, tags, strict=True), start=1
        ):
            ids = []
            for token, word in enumerate(word_ids):
                if word is None:
                    ids.append(IGNORE_INDEX)
                    continue
                is_first = first_tokens[word] == token
                tag = tags_of_words[word] if is_first else self.continuation_tag(tags_of_words[word])
                if tag not in index:
                    raise DataError(
                        f'data.tags: {data.path}, {split}, row {row}: the tag "{tag}" is not among those of the '
                        "training data, so that the model cannot know it. Leave the row out, or train on such rows."
                    )
                ids.append(index[tag] if is_first or data.label_all_tokens else IGNORE_INDEX)
            labels.append(ids)
        return RaggedTokens(labels)

    def encode_words(self, sentences: Sentences, state: LabelingState) -> WordTokens:
        """The tokens of sentences, and the words that they belong to."""
        tokenizer = state.tokenizers.source
        encodings, too_long, lengths = encode_all(
            lambda chunk, **options: tokenizer(chunk, is_split_into_words=True, **options),
            sentences, self.max_length(tokenizer, state.config), self.recipe.data.truncation,
        )  # fmt: skip
        names = encodings[0][0].keys() if encodings else ()
        lists = {name: [encoding[name][index] for encoding, index in encodings] for name in names}
        word_ids, first_tokens = [encoding.word_ids(index) for encoding, index in encodings], []
        for words, ids in zip(sentences, word_ids, strict=True):
            firsts = [-1] * len(words)
            for token, word in reversed(list(enumerate(ids))):  # the first token comes last and is kept
                if word is not None:
                    firsts[word] = token
            first_tokens.append(firsts)
        return WordTokens(Inputs.of(lists, tokenizer, lengths), word_ids, first_tokens, too_long)

    def continuation_tag(self, tag: str) -> str:
        """The tag of the further tokens of a word with this tag."""
        continues = self.recipe.data.scheme in ("BIO", "IOB1") and tag[:1] == "B"
        return f"I{tag[1:]}" if continues else tag

    def words(self, rows: Dataset, split: str) -> Sentences:
        """The words of each sentence. Raises DataError if a row does not hold a list of texts."""
        sentences: list[Any] = list(ColumnView(rows, "tokens"))
        for row, words in enumerate(sentences, start=1):
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise DataError(
                    f"data.tokens: {self.recipe.data.path}, {split}, row {row}: expected a list of words, got "
                    f"{str(words)[:60]!r}. Sentences in columns of words and tags are read from .conll files."
                )
        return sentences

    def tags(self, rows: Dataset, split: str) -> Conversion:
        """The tags of each sentence, converted to the scheme of the recipe. Raises DataError for unusable tags."""
        data = self.recipe.data
        reader = LabelReader.of(rows, "tags", data.label_names, f"data.tags: {data.path}, {split}")
        sequences: Sentences = []
        for (row, cell), words in zip(numbered(rows, "tags"), ColumnView(rows, "tokens"), strict=True):
            tags = reader.listed(cell, row)
            if len(tags) != len(words):
                raise DataError(f"{reader.where}, row {row}: {len(tags)} tags for {len(words)} words.")
            sequences.append(tags)
        if data.scheme == "none":
            return Conversion(sequences, "none", 0)
        try:
            return convert(sequences, data.scheme)
        except DataError as error:
            raise DataError(f"{reader.where}: {error} For tags that are not spans, set data.scheme: none.") from None

    # ---- loss, evaluation and results --------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LabelingState) -> TaggingObjective:
        return TaggingObjective(model, self.recipe.train.label_smoothing_factor)

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[TaggedSentences],
        state: LabelingState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """The loss of tokens, and metrics of words; a word without tokens is predicted to be outside of all spans."""
        assert isinstance(objective, TaggingObjective)
        examples = encoded.examples
        best, loss = predict_with_loss(objective, examples, evaluator, best_tags)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        if examples.without_tokens:
            figures["words_without_tokens"] = examples.without_tokens
        predictions = self.tags_of_words(best, examples.first_tokens, state)
        words, tags = self.words(rows, "evaluated"), self.tags(rows, "evaluated").sequences
        figures |= compute_metrics(self.recipe.eval.metrics, predictions, tags)
        if final:
            true, predicted_tags = ([tag for sentence in side for tag in sentence] for side in (tags, predictions))
            figures[LABELS] = label_table([[tag] for tag in true], [[tag] for tag in predicted_tags])
            figures[CONFUSIONS] = [list(pair) for pair in confused_pairs(true, predicted_tags)[:MAX_CONFUSIONS]]
        return Evaluation(
            figures,
            [
                {"tokens": tokens, "tags": expected, "prediction": predicted}
                for tokens, expected, predicted in zip(words, tags, predictions, strict=True)
            ],
        )

    def tags_of_words(self, best: list[np.ndarray], first_tokens: RaggedTokens, state: LabelingState) -> Sentences:
        """The tag of each word, which is that of its first token; `best` has the indices of the tags of all tokens."""
        return [
            [self.empty_tag if first < 0 else state.labels[indices[first]] for first in first_tokens[row]]
            for row, indices in enumerate(best)
        ]

    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        words = self.encode_words(self.words(rows, "given"), state)
        best = predict_rows(objective, words.inputs, self.recipe.eval.tokens_per_batch, best_tags_and_scores)
        tags = self.tags_of_words([indices for indices, _ in best], RaggedTokens(words.first_tokens), state)
        scores = [
            [None if first < 0 else float(of_tokens[first]) for first in firsts]
            for firsts, (_, of_tokens) in zip(words.first_tokens, best, strict=True)
        ]
        predicted = [{"prediction": row, "score": of_row} for row, of_row in zip(tags, scores, strict=True)]
        return Predictions(predicted, int(words.too_long.sum()))

    def format_prediction(self, row: dict[str, Any]) -> str:
        words = []
        for word, tag, predicted in zip(row["tokens"], row["tags"], row["prediction"], strict=True):
            if predicted == tag:
                words.append(word if tag == OUTSIDE else f"{word}/{tag}")
            else:
                words.append(f"{word}/{predicted or '-'}≠{tag}")
        return " ".join(words)[:300]

    def plots(self, model_folder: Path, splits: Splits, split: str, evaluation: Evaluation, folder: Path) -> None:
        """The confusion of tags, and the figures of each type of span."""
        rows = evaluation.rows
        true, predicted = ([tag for row in rows for tag in row[name]] for name in ("tags", "prediction"))
        if true:
            draw_predicted_labels(true, predicted, folder)
        if self.recipe.data.scheme != "none":
            scores = entity_measure([row["prediction"] for row in rows], [row["tags"] for row in rows], "f1")
            if scores["by_type"]:
                draw_types(scores["by_type"], folder / "types.png")

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (" ".join(row["tokens"]),)

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        words = [clean(word) for word in (rows[0] if rows else {}).get("tokens", ["…"])]
        call = quoted(" ".join(words))
        examples = [[" ".join(row[name]) for name in ("tokens", "tags", "prediction")] for row in rows]
        return {
            "call": call,
            "pipeline_options": ', aggregation_strategy="first"' if self.has_spans else "",
            "tokenized": f"{call}, truncation=True",
            "results_note": "Metrics are over whole words, or spans of words, and out of 1.",
            "examples_split": split,
            "examples_table": table(("words", "tags", "prediction"), examples),
        }

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        smoothing = self.recipe.train.label_smoothing_factor
        summed = cross_entropy_by_hand(output["logits"], batch["labels"], smoothing)
        return summed / int((batch["labels"] != IGNORE_INDEX).sum())

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """The tag of each word, which is that of its first token."""
        words, found = row["tokens"], dict[int, dict[str, Any]]()
        (entities,) = pipe(words, is_split_into_words=True) if words else ([],)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        for entity in entities:
            found.setdefault(int(np.searchsorted(starts, entity["start"], side="right")) - 1, entity)
        absent = {"entity": self.empty_tag, "score": None}
        tags = [found.get(index, absent) for index in range(len(words))]
        return {
            "prediction": [tag["entity"] for tag in tags],
            "score": [None if tag["score"] is None else float(tag["score"]) for tag in tags],
        }


def best_tags(output: dict[str, Tensor], batch: Batch) -> list[np.ndarray]:
    """The index of the most probable tag of each token."""
    return list(output["logits"].argmax(-1).cpu().numpy())


def best_tags_and_scores(output: dict[str, Tensor], batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
    """The index of the most probable tag of each token, and its probability."""
    scores, indices = output["logits"].softmax(-1).max(-1)
    return list(zip(indices.cpu().numpy(), scores.cpu().numpy(), strict=True))
