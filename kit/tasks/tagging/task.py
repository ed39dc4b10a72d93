"""Tagging: a tag for each word, learned on its tokens and evaluated on whole words."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

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
from kit.data.rows import to_dataset
from kit.data.splits import Splits
from kit.data.text.tag_schemes import OUTSIDE
from kit.data.text.tokenizer import Tokenizers
from kit.data.text.words import split_words
from kit.errors import DataError
from kit.evaluation.errors import CONFUSIONS, LABELS, MAX_CONFUSIONS, confused_pairs, label_table
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.evaluation.metrics.tags import entity_measure
from kit.plots.labels import predicted_label_figures, predicted_label_tables, types_figure
from kit.pretrained.folder import ModelFolder
from kit.tasks.families.labeling.evaluation import Predictions, predict_rows, predict_with_loss
from kit.tasks.families.labeling.labels import label_names, with_labels
from kit.tasks.families.labeling.objectives import LabelObjective, TaggingObjective
from kit.tasks.families.labeling.task import LabelingState, LabelingTask
from kit.tasks.stages import Encoded, EvaluatedSplit
from kit.tasks.tagging.examples import TaggedSentences, WordTokens, token_labels, tokenize_words
from kit.tasks.tagging.recipe import TaggingRecipe
from kit.tasks.tagging.rows import Sentences, find_labels, tags_of_rows, words_of_rows
from kit.training.objective import Batch, Objective
from kit.verify.learning import cross_entropy_by_hand

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Tagging(LabelingTask[TaggedSentences]):
    """Token classification, such as named entities: a tag for each word of a sentence."""

    auto_class: ClassVar[Any] = AutoModelForTokenClassification
    needs_offsets: ClassVar[bool] = True
    pipeline_arguments: ClassVar[Mapping[str, Any]] = {"aggregation_strategy": "none", "ignore_labels": []}
    recipe: TaggingRecipe

    @property
    def predicted_names(self) -> tuple[str, ...]:
        return ("prediction", "score")

    @property
    def empty_tag(self) -> str:
        """The prediction for a word without tokens."""
        return "" if self.recipe.data.scheme == "none" else OUTSIDE

    @property
    def has_spans(self) -> bool:
        """Whether the tags mark spans in a form that the pipelines of transformers can read."""
        return self.recipe.data.scheme in ("BIO", "IOB1")

    def input_table(self, table: pa.Table) -> pa.Table:
        """Split plain text into words, and convert tags that the file has to the scheme of the model, so that the
        output has a single scheme."""
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
        tags = pa.array(tags_of_rows(rows, data, "given").sequences, pa.list_(pa.string()))
        return table.set_column(table.column_names.index(data.tags), data.tags, tags)

    # ---- data --------------------------------------------------------------------------------------------------------

    def vocabulary_texts(self, rows: Dataset) -> Iterable[str]:
        return (" ".join(words) for words in words_of_rows(rows, self.recipe.data, "train"))

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

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LabelingState:
        state = super().fit(splits, tokenizers)
        labels = find_labels(splits.datasets["train"], self.recipe.data)
        return replace(state, config=with_labels(state.config, labels), labels=tuple(labels))

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> LabelingState:
        state = super().restore(folder, splits)
        return replace(state, labels=label_names(state.config))

    def encode(self, rows: Dataset, state: LabelingState, split: str) -> Encoded[TaggedSentences]:
        data, tags = self.recipe.data, tags_of_rows(rows, self.recipe.data, split)
        words = self.tokenize(rows, state, split)
        labels, first_tokens = token_labels(words, tags.sequences, state.labels, data, split), words.first_tokens
        count = int(words.too_long.sum())
        examples = TaggedSentences(words.inputs, labels, RaggedTokens(first_tokens), truncated=count)
        dropped, kept = dict[str, int](), None
        if split == "train" and data.truncation == "do_not_truncate" and count:
            if words.too_long.all():
                raise DataError("data.max_length: no training example is short enough.")
            dropped, kept = {"max_length": count}, np.flatnonzero(~words.too_long)
            examples = examples.select(kept)
        notes = []
        if tags.source != data.scheme:
            notes.append(f"{split}: tags are {tags.source}, and become {data.scheme}")
        if tags.repaired:
            notes.append(f"{split}: {tags.repaired} tags in an order that {tags.source} does not have")
        if examples.without_tokens:
            notes.append(f"{split}: {examples.without_tokens} words without a token, or beyond the limit")
        return Encoded(examples, dropped, kept, tuple(notes))

    def tokenize(self, rows: Dataset, state: LabelingState, split: str) -> WordTokens:
        """Tokenize the words of the rows, truncated to what the model can read."""
        tokenizer, data = state.tokenizers.source, self.recipe.data
        limit = self.max_length(tokenizer, state.config)
        return tokenize_words(words_of_rows(rows, data, split), tokenizer, limit, data.truncation)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def count_labels(self, rows: Dataset) -> dict[str, int]:
        sequences = tags_of_rows(rows, self.recipe.data, "data").sequences
        return dict(Counter(tag for tags in sequences for tag in tags).most_common())

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LabelingState) -> TaggingObjective:
        return TaggingObjective(model, self.recipe.train.label_smoothing_factor)

    # ---- evaluation and results --------------------------------------------------------------------------------------

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
        best, loss = predict_with_loss(objective, examples, evaluator, best_tags_and_scores)
        figures: dict[str, Any] = {"loss": loss, "examples": len(examples)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        if examples.without_tokens:
            figures["words_without_tokens"] = examples.without_tokens
        predictions = self.tags_of_words([indices for indices, _ in best], examples.first_tokens, state)
        words = words_of_rows(rows, self.recipe.data, "evaluated")
        tags = tags_of_rows(rows, self.recipe.data, "evaluated").sequences
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
        """The tag of each word, which is that of its first token. `best` has the index of the tag of every token."""
        return [
            [self.empty_tag if first < 0 else state.labels[indices[first]] for first in first_tokens[row]]
            for row, indices in enumerate(best)
        ]

    def predict(
        self, objective: LabelObjective, rows: Dataset, state: LabelingState, top_k: int | None = None
    ) -> Predictions:
        words = self.tokenize(rows, state, "given")
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

    def figures(self, evaluated: EvaluatedSplit) -> "dict[str, Figure]":
        """The confusion of tags, and the figures of each tag and of each type of span."""
        rows = evaluated.predictions
        true, predicted = tags_of(rows)
        figures = predicted_label_figures(true, predicted) if true else {}
        if self.recipe.data.scheme != "none":
            scores = entity_measure([row["prediction"] for row in rows], [row["tags"] for row in rows], "f1")
            if scores["by_type"]:
                figures["types"] = types_figure(scores["by_type"])
        return figures

    def tables(self, evaluated: EvaluatedSplit) -> dict[str, str]:
        true, predicted = tags_of(evaluated.predictions)
        return predicted_label_tables(true, predicted) if true else {}

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

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def loss_by_hand(self, output: dict[str, Tensor], batch: Batch, state: LabelingState) -> float:
        smoothing = self.recipe.train.label_smoothing_factor
        summed = cross_entropy_by_hand(output["logits"], batch["labels"], smoothing)
        return summed / int((batch["labels"] != IGNORE_INDEX).sum())

    def pipeline_prediction(self, pipe: Pipeline, row: dict[str, Any]) -> dict[str, Any]:
        """Run the pipeline on the words of a row. Tag and score of a word are those of its first token."""
        words, first_entities = row["tokens"], dict[int, dict[str, Any]]()
        (entities,) = pipe(words, is_split_into_words=True) if words else ([],)
        starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1]
        for entity in entities:
            first_entities.setdefault(int(np.searchsorted(starts, entity["start"], side="right")) - 1, entity)
        absent = {"entity": self.empty_tag, "score": None}
        tags = [first_entities.get(index, absent) for index in range(len(words))]
        return {
            "prediction": [tag["entity"] for tag in tags],
            "score": [None if tag["score"] is None else float(tag["score"]) for tag in tags],
        }


def best_tags_and_scores(output: dict[str, Tensor], batch: Batch) -> list[tuple[np.ndarray, np.ndarray]]:
    """The index of the most probable tag of each token, and its probability."""
    logits = output["logits"]  # (sentences, tokens, tags)
    # of the logits: unequal ones can have equal probabilities in 32 bits
    indices = logits.argmax(-1)
    scores = logits.softmax(-1).gather(-1, indices[..., None])[..., 0]
    return list(zip(indices.cpu().numpy(), scores.cpu().numpy(), strict=True))


def tags_of(predictions: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """The true and the predicted tag of every word."""
    true, predicted = ([tag for row in predictions for tag in row[name]] for name in ("tags", "prediction"))
    return true, predicted
