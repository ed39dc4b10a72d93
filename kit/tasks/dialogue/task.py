"""Dialogue: generate the next turn from the turns before it.

A hierarchical model encodes each turn separately. Any other model, the baseline, reads all turns as one sequence, each
with its end token. With `data.max_turns: 1` both see only the last turn.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import PreTrainedConfig

from kit.cards.markdown import clean, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.rows import ColumnView
from kit.data.splits import Splits, load_splits
from kit.data.steps import RowSteps
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import by_kind, compute_metrics
from kit.pipelines.dialogue import SETTINGS, TASK, reads_turns
from kit.prediction.options import GenerateOptions
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import BuiltModel
from kit.pretrained.positions import encode_truncated, position_limit
from kit.tasks.dialogue.examples import EMPTY, POSITIONS, Conversations, encode_histories, filter_lengths
from kit.tasks.dialogue.inference import Responder
from kit.tasks.dialogue.recipe import DialogueRecipe
from kit.tasks.dialogue.rows import DialogueSteps, in_replies, new_turns
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.tasks.families.seq2seq.text import TextToTextTask
from kit.tasks.stages import Encoded, TaskState, TextTokens, TokenView
from kit.training.objective import Batch, Objective, Seq2SeqObjective


class Dialogue(TextToTextTask[Conversations]):
    """Dialogue: generate the next turn from the turns before it."""

    card_template: ClassVar[str] = "dialogue"
    recipe: DialogueRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return hasattr(config, SETTINGS)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Responder:
        return Responder(folder, options)

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (TASK,)

    # ---- data --------------------------------------------------------------------------------------------------------

    def row_steps(self) -> RowSteps:
        return DialogueSteps(self.recipe.data)

    def load_splits(self) -> Splits:
        """Load a row for each reply. Dialogues are assigned to splits as a whole."""
        splits = load_splits(self.recipe.data, self.row_steps())
        report, replies = splits.report, {}
        for name, rows in splits.datasets.items():
            replies[name] = in_replies(rows, self.recipe.data, name, report.splits[name])
            report.notes.append(f"{name}: {len(replies[name]):,} replies in {len(rows):,} dialogues")
        return replace(splits, datasets=DatasetDict(replies))

    def vocabulary_texts(self, rows: Dataset) -> list[str]:
        if self.recipe.data.target is None:  # a reply is among the turns of the next row
            turns = new_turns(ColumnView(rows, "turns"), ColumnView(rows, "target"))
        else:
            turns = [turn for turns in ColumnView(rows, "turns") for turn in turns]
        return [*turns, *ColumnView(rows, "target")]

    def new_config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        config = super().new_config(tokenizers)
        setattr(config, SETTINGS, {"max_turns": self.recipe.data.max_turns})
        return config

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[Conversations]:
        """Encode replies and their turns. Old turns are left out, and evaluated replies truncated, to fit the
        positions of the model; training replies that do not fit are dropped."""
        tokenizers, limit = state.tokenizers, position_limit(state.config)
        separate = reads_turns(state.config)
        turns, max_turns = ColumnView(rows, "turns"), self.recipe.data.max_turns
        histories, long_histories = encode_histories(turns, tokenizers, max_turns, None if separate else limit)
        reply_limit = None if split == "train" else limit
        texts = list(ColumnView(rows, "target"))
        replies, long_replies = encode_truncated(reply_limit, tokenizers.encode_target, texts)
        examples = Conversations.of(histories, replies, separate, len(long_histories | set(long_replies)))
        if split != "train":
            return Encoded(examples)
        keep, dropped = self.filter_lengths(examples, state)
        if not keep.any():
            raise DataError(f"no training example is left: {sum(dropped.values())} were left out for their length")
        kept = np.flatnonzero(keep)
        return Encoded(replace(examples.select(kept), truncated=examples.truncated), dropped, kept)

    def filter_lengths(self, examples: Conversations, state: TaskState) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples pass the filters of the recipe, and how many each filter drops."""
        return filter_lengths(examples, self.recipe.data, state.tokenizers, position_limit(state.config))

    # ---- batches -----------------------------------------------------------------------------------------------------

    def token_lists(self, examples: Conversations, state: TaskState) -> dict[str, TextTokens]:
        source, target = state.tokenizers.source, state.tokenizers.target
        return {"turns": TextTokens(examples.source, source), "reply": TextTokens(examples.target, target)}

    def describe_batch(self, batch: Batch, state: TaskState) -> dict[str, TokenView]:
        source, target = state.tokenizers.source, state.tokenizers.target
        return {
            "turns": TokenView(source, batch["input_ids"].flatten(1), batch["attention_mask"].flatten(1).bool()),
            "reply": TokenView(target, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    def beyond_filters(self, examples: Conversations, state: TaskState) -> dict[str, int]:
        return self.filter_lengths(examples, state)[1]

    def filter_name(self, name: str) -> str:
        names = {EMPTY: "an empty reply", POSITIONS: "the positions of the model"}
        return names.get(name) or super().filter_name(name)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: TaskState) -> BuiltModel:
        built = super().build_model(state)
        setattr(built.model.config, SETTINGS, dict(getattr(state.config, SETTINGS)))  # a pretrained one has others
        return built

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[Conversations],
        state: TaskState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Loss and metrics of replies, the variety of all replies, and the share that contains the answer."""
        assert isinstance(objective, Seq2SeqObjective)
        section, tokenizers = self.recipe.eval, state.tokenizers
        kinds = by_kind(section.metrics)
        variety, has_answers = kinds.get("variety", []), self.recipe.data.answer is not None
        # both need the replies, which are generated only if there are metrics or examples to show
        changes = {"metrics": kinds.get("text", []), "examples": section.examples or int(bool(variety) or has_answers)}
        evaluation = evaluate_split(
            objective, encoded.examples, rows, tokenizers, section.model_copy(update=changes), self.num_beams(final),
            evaluator,
        )  # fmt: skip
        figures = dict(evaluation.figures)
        if evaluation.rows:
            replies = [row["prediction"] for row in evaluation.rows]
            figures |= compute_metrics(variety, replies, [row["target"] for row in evaluation.rows])
        if has_answers:
            figures |= answer_figures(evaluation.rows)
            if "by" in figures:
                figures["by"] = answers_by_group(figures["by"], evaluation.rows)
        return replace(evaluation, figures=figures)

    def format_prediction(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["target"] else "≠"
        return f"{' / '.join(row['turns'][-3:])} → {row['prediction']} {mark} {row['target']}"

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [(" / ".join(row["turns"]), row["target"], row["prediction"]) for row in rows]
        turns = [clean(turn) for turn in rows[0]["turns"]] if rows else ["…"]
        note = results_note(self.recipe, results, "Exact match, token accuracy and distinct-n")
        if self.recipe.data.answer is not None:
            note += "  \nAnswer accuracy is the share of replies (out of 1) that contain the answer verbatim."
        return {
            "pipeline": TASK,
            "custom_pipeline": True,
            "call": json.dumps(turns, ensure_ascii=False),
            "results_note": note,
            "examples_split": split,
            "examples_table": table(("turns", "reference", "reply"), examples),
            "max_turns": self.recipe.data.max_turns,
            "max_new_tokens": self.recipe.eval.max_new_tokens,
        }


def answer_figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The share of replies that contain the answer, word for word, and the share of the most frequent answer."""
    if not rows:
        return {}
    correct = [f" {row['answer']} " in f" {' '.join(row['prediction'].strip(' .!?').split())} " for row in rows]
    majority = Counter(row["answer"] for row in rows).most_common(1)[0][1]
    return {"answer_accuracy": sum(correct) / len(rows), "answer_majority": majority / len(rows)}


def answers_by_group(groups: Mapping[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add the figures of answers to the figures of each group of rows."""
    return {
        column: {
            value: {**figures, **answer_figures([row for row in rows if str(row.get(column)) == value])}
            for value, figures in of_column.items()
        }
        for column, of_column in groups.items()
    }
