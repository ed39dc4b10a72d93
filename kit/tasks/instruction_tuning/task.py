"""Instruction tuning: a causal language model learns to answer prompts; only answers count in the loss."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
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
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers, train_tokenizer
from kit.decoding.settings import GenerationSettings
from kit.errors import DataError, RecipeError, RunError
from kit.evaluation.evaluation import UNKNOWN_TOKENS, Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.pipelines.text_to_text import decode_text, unknown_id
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder
from kit.pretrained.positions import check_length, position_limit
from kit.pretrained.vocabulary import named_tokenizers
from kit.tasks.base import Encoded, Task, TaskState, TextTokens, TokenView
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS
from kit.tasks.families.language_modeling.proofs import GENERATED_TOKENS, PROOFS, overfitting
from kit.tasks.families.language_modeling.task import PLAIN, new_config, perplexity
from kit.tasks.instruction_tuning.inference import Answerer, tokenize_prompts
from kit.tasks.instruction_tuning.recipe import InstructionTuningRecipe
from kit.training.lm_objectives import AnswerObjective
from kit.training.objective import Batch, Objective
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject


@dataclass(frozen=True)
class PromptExamples:
    """Encoded prompts with their answers, each of which ends with the end token."""

    prompts: RaggedTokens
    answers: RaggedTokens
    pad: int
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens that the model reads: the last token is only predicted."""
        return self.prompts.lengths + self.answers.lengths - 1

    def select(self, indices: np.ndarray) -> "PromptExamples":
        return PromptExamples(self.prompts.select(indices), self.answers.select(indices), self.pad, self.truncated)

    def batch(self, indices: np.ndarray) -> Batch:
        """Prompt and answer of each example in one row. `labels` are shifted: the label of the last token of the prompt
        is the first token of the answer, and earlier tokens have none."""
        texts = [np.concatenate([self.prompts[i], self.answers[i]]) for i in indices]
        labels = [
            np.concatenate([np.full(len(self.prompts[i]) - 1, IGNORE_INDEX, dtype=np.int32), self.answers[i]])
            for i in indices
        ]
        rows = np.arange(len(indices))
        input_ids = RaggedTokens(ids[:-1] for ids in texts).padded(rows, self.pad)  # (batch, longest)
        lengths = torch.from_numpy(self.lengths[indices])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": RaggedTokens(labels).padded(rows, IGNORE_INDEX),
        }

    def prompt_batch(self, indices: np.ndarray) -> Batch:
        """The prompts alone, padded on the left, so that generation continues from the end of each."""
        prompts = [self.prompts[i] for i in indices]
        longest = max(map(len, prompts))
        missing = torch.tensor([[longest - len(ids)] for ids in prompts])  # (batch, 1)
        rows = [np.concatenate([np.full(longest - len(ids), self.pad), ids]) for ids in prompts]
        mask = (torch.arange(longest) >= missing).long()
        return {"input_ids": torch.from_numpy(np.stack(rows)).long(), "attention_mask": mask}


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

    # ---- state -------------------------------------------------------------------------------------------------------

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

    # ---- prompts and answers → examples ------------------------------------------------------------------------------

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[PromptExamples]:
        """Training examples that are too long are dropped; other examples are truncated."""
        examples, limit = self.encode_rows(rows, state.tokenizers, split), position_limit(state.config)
        if split != "train":
            return Encoded(self.fit_to_positions(examples, limit))
        fits = examples.lengths + 1 <= (self.recipe.data.max_length or limit or np.inf)
        if not fits.any():
            raise DataError("data.max_length: no training example is short enough.")
        return Encoded(examples.select(np.flatnonzero(fits)), {"max_length": int((~fits).sum())})

    def encode_rows(self, rows: Dataset, tokenizers: Tokenizers, split: str) -> PromptExamples:
        """Prompts in the template, and answers with the end token.

        They are tokenized separately, so that a prompt has the same tokens whatever its answer, as in inference.
        """
        tokenizer, data = tokenizers.source, self.recipe.data
        prompts = tokenize_prompts(tokenizer, data.template, list(ColumnView(rows, "prompt")))
        for number, ids in enumerate(prompts, start=1):
            if not ids:
                raise DataError(f"data.prompt: {data.path}, {split}, row {number}: there is no token to answer to.")
        texts = list(ColumnView(rows, "answer"))
        answers = tokenizer(texts, **PLAIN)["input_ids"] if texts else []
        ended = RaggedTokens([*ids, tokenizer.eos_token_id] for ids in answers)
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return PromptExamples(RaggedTokens(prompts), ended, pad)

    def fit_to_positions(self, examples: PromptExamples, limit: int | None) -> PromptExamples:
        """The examples cut to `limit` positions, None for no limit, and how many had to be cut.

        A prompt loses its beginning, so that its answer, or eval.max_new_tokens of output, fits after it. An answer
        loses its end only if it fills the positions alone. Raises RecipeError if there is no room for a prompt.
        """
        if limit is None:
            return examples
        max_new_tokens = self.recipe.eval.max_new_tokens
        if max_new_tokens >= limit:
            raise RecipeError(
                f"eval.max_new_tokens: {max_new_tokens} leaves no room for a prompt: the model has {limit} positions."
            )
        answers = [examples.answers[i][: limit - 1] for i in range(len(examples))]
        rooms = [limit - max(max_new_tokens, len(answer)) for answer in answers]
        prompts = [examples.prompts[i][-room:] for i, room in enumerate(rooms)]
        truncated = [
            len(prompt) < prompt_length or len(answer) < answer_length
            for prompt, prompt_length, answer, answer_length in zip(
                prompts, examples.prompts.lengths, answers, examples.answers.lengths, strict=True
            )
        ]
        # the lengths are NumPy's, and so would be their sum, which JSON does not have
        count = int(np.count_nonzero(truncated))
        return PromptExamples(RaggedTokens(prompts), RaggedTokens(answers), examples.pad, count)

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

    @property
    def evaluates_alike(self) -> bool:
        return True

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

    def answers(
        self,
        model: PreTrainedModel,
        examples: PromptExamples,
        selected: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        evaluator: Evaluator,
    ) -> list[tuple[str, bool, int]]:
        """The generated answers to the selected prompts, in order, whether each is finished, and its number of unknown
        tokens."""
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

        lengths = examples.prompts.lengths[selected] + self.recipe.eval.max_new_tokens
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
