"""Instruction tuning: a causal language model learns to answer prompts; only answers count in the loss."""

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import code, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers, train_tokenizer
from kit.decoding.settings import GenerationSettings
from kit.errors import DataError, RecipeError, RunError
from kit.evaluation.evaluation import UNKNOWN_TOKENS, Evaluation, perplexity
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.pipelines.text_to_text import decode_text, unknown_id
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder
from kit.pretrained.positions import check_length, position_limit
from kit.pretrained.vocabulary import named_tokenizers
from kit.tasks.base import Task
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS
from kit.tasks.families.language_modeling.proofs import GENERATED_TOKENS, PROOFS, overfitting
from kit.tasks.families.language_modeling.task import new_config
from kit.tasks.instruction_tuning.examples import PromptExamples, encode_prompts, truncate_to_positions
from kit.tasks.instruction_tuning.inference import Answerer
from kit.tasks.instruction_tuning.recipe import InstructionTuningRecipe
from kit.tasks.stages import Encoded, TaskState, TextTokens, TokenView
from kit.training.lm_objectives import AnswerObjective
from kit.training.objective import Batch, Objective
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject


class InstructionTuning(Task[PromptExamples, TaskState]):
    """Instruction tuning: a causal language model learns to answer prompts; only answers count in the loss."""

    auto_class: ClassVar[Any] = AutoModelForCausalLM
    card_template: ClassVar[str] = "instruction_tuned"
    # overfitting would need a learning rate for large pretrained models
    proofs: ClassVar[Sequence[Proof]] = tuple(proof for proof in PROOFS if proof is not overfitting)
    recipe: InstructionTuningRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return is_causal_lm(config) and hasattr(config, INSTRUCTIONS)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Answerer:
        return Answerer(folder, options)

    # ---- data --------------------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        tokenizers = named_tokenizers(self.recipe)
        if tokenizers is None:
            rows = self.vocabulary_rows(splits)
            prompts = (self.recipe.data.written(prompt) for prompt in ColumnView(rows, "prompt"))
            tokenizer = train_tokenizer(self.recipe.tokenizer, chain(prompts, ColumnView(rows, "answer")), "causal")
            tokenizers = Tokenizers(tokenizer, tokenizer)
        if tokenizers.source.eos_token_id is None:
            raise RecipeError("tokenizer.pretrained: it has no end token, which ends answers. Use another one.")
        return tokenizers

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> TaskState:
        config = new_config(self.recipe, tokenizers.source)
        setattr(config, INSTRUCTIONS, {"template": self.recipe.data.template})
        check_length("data.max_length", self.recipe.data.max_length, position_limit(config))
        return TaskState(tokenizers, config)

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> TaskState:
        return TaskState(Tokenizers.load(folder.path), folder.config)

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[PromptExamples]:
        """Encode prompts with answers. Training examples that are too long are dropped; others are truncated."""
        data, limit = self.recipe.data, position_limit(state.config)
        examples = encode_prompts(rows, state.tokenizers.source, data, split)
        if split != "train":
            return Encoded(truncate_to_positions(examples, limit, self.recipe.eval.max_new_tokens))
        fits = examples.lengths + 1 <= (data.max_length or limit or np.inf)
        if not fits.any():
            raise DataError("data.max_length: no training example is short enough.")
        kept = np.flatnonzero(fits)
        return Encoded(examples.select(kept), {"max_length": int((~fits).sum())}, kept)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def token_lists(self, examples: PromptExamples, state: TaskState) -> dict[str, TextTokens]:
        tokenizer = state.tokenizers.source
        return {"prompt": TextTokens(examples.prompts, tokenizer), "answer": TextTokens(examples.answers, tokenizer)}

    def describe_batch(self, batch: Batch, state: TaskState) -> dict[str, TokenView]:
        tokenizer = state.tokenizers.source
        return {
            "reads": TokenView(tokenizer, batch["input_ids"], batch["attention_mask"].bool()),
            "learns": TokenView(tokenizer, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: TaskState) -> AnswerObjective:
        return AnswerObjective(model)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[PromptExamples],
        state: TaskState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Loss and perplexity per token of an answer, and metrics of the generated answers."""
        assert isinstance(objective, AnswerObjective)
        examples, section = encoded.examples, self.recipe.eval

        def sums(batch: Batch) -> list[Tensor | float]:
            return [objective.summed_loss(batch), *objective.normalizers(batch)]

        objective.eval()
        nats, tokens = evaluator.sums(examples.lengths, examples.batch, sums)
        loss = nats / tokens
        figures: dict[str, Any] = {"loss": loss, "perplexity": perplexity(loss), "examples": len(examples)}
        if examples.truncated:
            figures["truncated"] = examples.truncated
        few = np.linspace(0, len(examples) - 1, min(section.examples, len(examples))).astype(int)
        selected = np.arange(len(examples)) if section.metrics else few
        answers = self.answers(objective.model, examples, selected, state.tokenizers.source, evaluator)
        predicted = [
            {**row, "prediction": text, "finished": finished}
            for row, (text, finished, _) in zip(rows.select(selected), answers, strict=True)
        ]
        if unknown := sum(count for _, _, count in answers):
            figures[UNKNOWN_TOKENS] = unknown
        predictions, references = [row["prediction"] for row in predicted], [row["answer"] for row in predicted]
        return Evaluation(figures | compute_metrics(section.metrics, predictions, references), predicted)

    @property
    def evaluates_alike(self) -> bool:
        return True

    def answers(
        self,
        model: PreTrainedModel,
        examples: PromptExamples,
        selected: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        evaluator: Evaluator,
    ) -> list[tuple[str, bool, int]]:
        """Generate answers to the selected prompts, in order: the text, whether it is finished, and its number of
        unknown tokens."""
        model.eval()
        settings, end, unknown = self.generation_config(tokenizer), tokenizer.eos_token_id, unknown_id(tokenizer)

        def generate(batch: Batch) -> list[tuple[str, bool, int]]:
            output = model.generate(**batch, generation_config=settings)[:, batch["input_ids"].shape[1] :]
            rows = output.tolist()
            answers = [ids[: ids.index(end)] if end in ids else ids for ids in rows]
            return [
                (decode_text(tokenizer, answer), end in ids, answer.count(unknown))
                for answer, ids in zip(answers, rows, strict=True)
            ]

        lengths = examples.alone.lengths[selected] + self.recipe.eval.max_new_tokens
        return evaluator.outputs(lengths, lambda indices: examples.prompt_batch(selected[indices]), generate)

    def generation_config(self, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
        """The generation settings of answers: greedy search."""
        return GenerationSettings(max_new_tokens=self.recipe.eval.max_new_tokens).causal_config(tokenizer)

    def format_prediction(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["answer"] else "≠"
        return f"{row['prompt']} → {row['prediction']} {mark} {row['answer']}"

    def export(self, folder: Path, model: PreTrainedModel, state: TaskState) -> None:
        export_model(folder, model, state.tokenizers, self.generation_config(state.tokenizers.source))

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (self.recipe.data.written(row["prompt"]) + row["prediction"],)

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        data = self.recipe.data
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        headings = ("prompt", "answer", "prediction")
        prompt = data.written(rows[0]["prompt"] if rows else "…")
        examples = [[row[name] for name in headings] for row in rows]
        return {
            # not `quoted`, which drops line ends: they may be a part of the template
            "call": f"{json.dumps(prompt, ensure_ascii=False)}, return_full_text=False",
            "tokenized": json.dumps(prompt, ensure_ascii=False),
            "results_note": "The loss, in nats per token, is over the tokens of the answers and their end; exact match "
            "is out of 1. Answers are generated by greedy search. The prompt template is "
            f"`{code(json.dumps(data.template))}`.",
            "examples_split": split,
            "examples_table": table(headings, examples),
        }

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load_training_splits()
        model, state = self.open_model(model_folder, splits)
        rows = splits.datasets["validation"]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples, limit = self.encode(rows, state, "validation").examples, position_limit(model.config)
        short = np.flatnonzero(examples.lengths <= (limit or np.inf) - GENERATED_TOKENS)
        if not len(short):
            raise RunError(f"none of the first {len(rows)} examples of validation leaves the model room to generate")
        indices = np.resize(short, max(MICRO_BATCHES, len(short)))
        subject = Subject(model, examples.batch(indices), self.recipe.train.seed, state.tokenizers)
        return subject, f"{len(short)} examples of validation"
