"""The base class of tasks whose models read a text and generate another one, and the encoding of such pairs."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import BatchPlan
from kit.data.batching.ragged import IGNORE_INDEX, TokenPairs
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.sentences import two_letter_code
from kit.data.text.tokenizer import Chained, Tokenizers
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.pipelines.text_to_text import PIPELINES, TARGET_FILE
from kit.prediction.options import GenerateOptions
from kit.prediction.text import TextPredictor
from kit.pretrained.folder import ModelFolder
from kit.pretrained.positions import position_limit
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.tasks.families.seq2seq.examples import encode_pairs
from kit.tasks.families.seq2seq.inference import Translator
from kit.tasks.families.seq2seq.recipe import Seq2SeqEval
from kit.tasks.families.seq2seq.task import Seq2SeqTask
from kit.tasks.stages import Encoded, TaskState, TextTokens, TokenView
from kit.training.objective import Batch, Objective, Seq2SeqObjective

P = TypeVar("P", bound=TokenPairs)

BLEU_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab"}
"""sacrebleu's tokenizers for scripts without spaces, by language. Under 13a a sentence would be a single word."""


class TextToTextTask(Seq2SeqTask[P]):
    """Tasks that read a text and write another one. Rows have the columns `source` and `target`, unless a subclass
    encodes others."""

    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    card_template: ClassVar[str] = "seq2seq"

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> TextPredictor[Any]:
        return Translator(folder, options)

    @property
    def pipelines(self) -> tuple[str, ...]:
        return (*PIPELINES,)

    # ---- data --------------------------------------------------------------------------------------------------------

    def vocabulary_texts(self, rows: Dataset) -> Iterable[str]:
        return Chained(ColumnView(rows, "source"), ColumnView(rows, "target"))

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> TaskState:
        if "bleu" in self.recipe.eval.metrics:  # reports a tokenizer that is not installed before the first step
            compute_metrics(["bleu"], ["a"], ["a"], self.eval_section.metric_options)
        return super().fit(splits, tokenizers)

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[Any]:
        """Encode all rows, truncated to the positions of the model."""
        return Encoded(encode_pairs(rows, state.tokenizers, position_limit(state.config)))

    # ---- batches -----------------------------------------------------------------------------------------------------

    def plan(self, examples: P, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.input_lengths, examples.target.lengths], seed)

    def collate(self, examples: P, indices: np.ndarray, random: np.random.Generator, state: TaskState) -> Batch:
        return self.batch_of(examples, indices, state)

    def batch_of(self, examples: P, indices: np.ndarray, state: TaskState) -> Batch:
        return examples.batch(indices, state.tokenizers.source.pad_token_id)

    def token_lists(self, examples: P, state: TaskState) -> dict[str, TextTokens]:
        tokenizers = state.tokenizers
        source, target = len(tokenizers.encode_empty_source()), len(tokenizers.encode_empty_target())
        return {
            "source": TextTokens(examples.source, tokenizers.source, source, "source"),
            "target": TextTokens(examples.target, tokenizers.target, target, "target", as_target=True),
        }

    def describe_batch(self, batch: Batch, state: TaskState) -> dict[str, TokenView]:
        source, target = state.tokenizers.source, state.tokenizers.target
        return {
            "source": TokenView(source, batch["input_ids"], batch["attention_mask"].bool()),
            "target": TokenView(target, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    def unreachable_references(self, examples: P) -> np.ndarray:
        lengths = examples.target.lengths
        return lengths[lengths > self.recipe.eval.max_new_tokens]

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[P],
        state: TaskState,
        *,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, Seq2SeqObjective)
        beams = self.num_beams(final)
        return evaluate_split(objective, encoded.examples, rows, state.tokenizers, self.eval_section, beams, evaluator)

    @property
    def eval_section(self) -> Seq2SeqEval[Any]:
        """The section `eval`, with the tokenizer of BLEU for the target language."""
        section, language = self.recipe.eval, self.recipe.target_language
        if section.bleu_tokenize is not None or language is None:
            return section
        return section.model_copy(update={"bleu_tokenize": BLEU_TOKENIZERS.get(two_letter_code(language))})

    def format_prediction(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["target"] else "≠"
        return f"{row['source']} → {row['prediction']} {mark} {row['target']}"

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [
            (row["source"], row["target"] if isinstance(row["target"], str) else row["target"][0], row["prediction"])
            for row in rows
        ]
        example = clean(examples[0][0]) if examples else "…"
        return {
            "pipeline": self.recipe.hub_task,
            "custom_pipeline": True,
            "call": quoted(example),
            "results_note": results_note(self.recipe, results),
            "examples_split": split,
            "examples_table": table(("source", "reference", "output"), examples),
            "has_directions": False,
            "prefixed_example": json.dumps(self.source_prefix + example, ensure_ascii=False),
            "shared_vocabulary": self.shares_vocabulary(run_folder),
            "max_new_tokens": self.recipe.eval.max_new_tokens,
            "max_length": None,
        }

    def shares_vocabulary(self, run_folder: Path) -> bool:
        """Whether the model of a run has one tokenizer for both sides. A pretrained model decides it, whatever the
        recipe."""
        folder = run_folder / "model"
        return not (folder / TARGET_FILE).is_file() if folder.is_dir() else self.recipe.tokenizer.shares_vocabulary

    @property
    def source_prefix(self) -> str:
        """The text before every source, for models that expect a task prefix."""
        return ""
