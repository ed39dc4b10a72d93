"""Instruction tuning: a causal model learns to answer prompts, from the answers alone."""

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
from kit.data.batching.plan import BatchPlan, Plan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizer
from kit.decoding.settings import GenerationSettings
from kit.errors import DataError, RecipeError, RunError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.metrics import compute_metrics
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.loading import ModelFolder, export_model, load_config, load_model, new_or_pretrained
from kit.pretrained.positions import position_limit
from kit.recipe.model_settings import config_class
from kit.tasks.base import Encoded, MakeBatch, Task, TextTokens, TokenView
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS
from kit.tasks.families.language_modeling.proofs import GENERATED_TOKENS, PROOFS, overfitting
from kit.tasks.families.language_modeling.task import PLAIN, perplexity, vocabulary_settings
from kit.tasks.instruction_tuning.inference import Answerer, tokenize_prompts
from kit.tasks.instruction_tuning.recipe import InstructionTuningRecipe
from kit.training.lm_objectives import AnswerObjective
from kit.training.objective import Batch, Objective
from kit.verify.learning import MICRO_BATCHES
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject


@dataclass(frozen=True)
class Answered:
    """Encoded prompts, each with its answer, which ends with the end token."""

    prompts: RaggedTokens
    answers: RaggedTokens
    pad: int
    cut: int = 0

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens that are read of each: the last one is only written."""
        return self.prompts.lengths + self.answers.lengths - 1

    def select(self, indices: np.ndarray) -> "Answered":
        return Answered(self.prompts.select(indices), self.answers.select(indices), self.pad, self.cut)

    def batch(self, indices: np.ndarray) -> Batch:
        """Each example in a row of its own. `labels` stand beside the tokens that they are predicted from: the last
        token of the prompt has the first of the answer, and all before it have none."""
        whole = [np.concatenate([self.prompts[i], self.answers[i]]) for i in indices]
        labels = [
            np.concatenate([np.full(len(self.prompts[i]) - 1, IGNORE_INDEX, dtype=np.int32), self.answers[i]])
            for i in indices
        ]
        every = np.arange(len(indices))
        input_ids = RaggedTokens(ids[:-1] for ids in whole).padded(every, self.pad)  # (batch, longest)
        lengths = torch.from_numpy(self.lengths[indices])
        return {
            "input_ids": input_ids,
            "attention_mask": (torch.arange(input_ids.shape[1]) < lengths[:, None]).long(),
            "labels": RaggedTokens(labels).padded(every, IGNORE_INDEX),
        }

    def prompt_batch(self, indices: np.ndarray) -> Batch:
        """The prompts alone, padded at their beginning, so that the model goes on from the end of each."""
        prompts = [self.prompts[i] for i in indices]
        longest = max(map(len, prompts))
        missing = torch.tensor([[longest - len(ids)] for ids in prompts])  # (batch, 1)
        rows = [np.concatenate([np.full(longest - len(ids), self.pad), ids]) for ids in prompts]
        mask = (torch.arange(longest) >= missing).long()
        return {"input_ids": torch.from_numpy(np.stack(rows)).long(), "attention_mask": mask}


class InstructionTuning(Task[Answered]):
    """What a recipe of this task does at each station on the way of the data."""

    card_template: ClassVar[str] = "instruction_tuned"
    # overfitting would need a rate for large pretrained models
    proofs: ClassVar[Sequence[Proof]] = tuple(proof for proof in PROOFS if proof is not overfitting)
    recipe: InstructionTuningRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return is_causal_lm(config) and hasattr(config, INSTRUCTIONS)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Answerer:
        return Answerer(folder, options)

    # ---- text → tokens → batches -------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        pretrained = self.recipe.tokenizer.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            tokenizers = load_pretrained_tokenizers(pretrained)
        else:
            rows = self.vocabulary_rows(splits)
            prompts = (self.recipe.data.written(prompt) for prompt in ColumnView(rows, "prompt"))
            tokenizer = train_tokenizer(self.recipe.tokenizer, chain(prompts, ColumnView(rows, "answer")), "causal")
            tokenizers = Tokenizers(tokenizer, tokenizer)
        if tokenizers.source.eos_token_id is None:
            raise RecipeError("tokenizer.pretrained: it has no end token, which ends answers. Use another one.")
        return tokenizers

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[Answered]:
        config = self.config(tokenizers)
        limit, wanted = position_limit(config), self.recipe.data.max_length
        if limit is not None and wanted is not None and wanted > limit:
            raise RecipeError(f"data.max_length: {wanted} tokens are more than the model has positions for: {limit}.")
        encoded = {name: self.encode_rows(rows, tokenizers, name) for name, rows in splits.datasets.items()}
        short = encoded["train"].lengths + 1 <= (wanted or limit or np.inf)
        if not short.any():
            raise DataError("data.max_length: no training example is short enough.")
        left_out = {"max_length": int((~short).sum())}
        encoded["train"] = encoded["train"].select(np.flatnonzero(short))
        for name in encoded.keys() - {"train"}:
            encoded[name] = self.cut_prompts(encoded[name], limit)
        return Encoded(encoded, left_out)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> Answered:
        return self.cut_prompts(self.encode_rows(rows, tokenizers, "evaluated"), position_limit(config))

    def encode_rows(self, rows: Dataset, tokenizers: Tokenizers, split: str) -> Answered:
        """Prompts as the template has them and answers with the end token, cut into tokens apart from each other: a
        prompt has the same tokens whatever its answer, as it has when the model is used."""
        tokenizer, data = tokenizers.source, self.recipe.data
        prompts = tokenize_prompts(tokenizer, data.template, list(ColumnView(rows, "prompt")))
        for number, ids in enumerate(prompts, start=1):
            if not ids:
                raise DataError(f"data.prompt: {data.path}, {split}, row {number}: there is no token to answer to.")
        texts = list(ColumnView(rows, "answer"))
        answers = tokenizer(texts, **PLAIN)["input_ids"] if texts else []
        ended = RaggedTokens([*ids, tokenizer.eos_token_id] for ids in answers)
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        return Answered(RaggedTokens(prompts), ended, pad)

    def cut_prompts(self, examples: Answered, limit: int | None) -> Answered:
        """Leave room for the answer by cutting off the beginning of prompts, and the end of answers that are too long
        by themselves."""
        if limit is None:
            return examples
        most = self.recipe.eval.max_new_tokens
        if most >= limit:
            raise RecipeError(
                f"eval.max_new_tokens: {most} leave no room for a prompt: the model has {limit} positions."
            )
        answers = [ids[: limit - 1] for ids in map(examples.answers.__getitem__, range(len(examples)))]
        rooms = [limit - max(most, len(ids)) for ids in answers]
        prompts = [examples.prompts[i][-room:] for i, room in enumerate(rooms)]
        cut = sum(
            len(prompt) < before or len(answer) < its
            for prompt, before, answer, its in zip(
                prompts, examples.prompts.lengths, answers, examples.answers.lengths, strict=True
            )
        )
        return Answered(RaggedTokens(prompts), RaggedTokens(answers), examples.pad, cut)

    def plan(self, examples: Answered, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.lengths], seed)

    def batch_maker(self, encoded: Encoded[Answered], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        examples = encoded.splits["train"]
        return lambda indices, random: examples.batch(indices)

    def token_lists(self, examples: Answered, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        tokenizer = tokenizers.source
        return {"prompt": TextTokens(examples.prompts, tokenizer), "answer": TextTokens(examples.answers, tokenizer)}

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        return {
            "reads": TokenView(tokenizers.source, batch["input_ids"], batch["attention_mask"].bool()),
            "learns": TokenView(tokenizers.source, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained."""
        section = self.recipe.model
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
        else:
            assert section.type is not None
            kind = config_class(section.type, self.recipe.kit_types, self.recipe.mapping)
            config = kind(**section.settings, **vocabulary_settings(kind, tokenizers.source))
        setattr(config, INSTRUCTIONS, {"template": self.recipe.data.template})
        return config

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        config = self.config(tokenizers)
        return new_or_pretrained(AutoModelForCausalLM, self.recipe, config, tokenizers.source, new_head=False)[0]

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_model(AutoModelForCausalLM, place)

    def objective(self, model: PreTrainedModel, plan: Plan | None = None) -> AnswerObjective:
        return AnswerObjective(model)

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[Answered],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        """Loss and perplexity of a token of an answer, and metrics of the answers that the model writes."""
        assert isinstance(objective, AnswerObjective)
        examples, section = encoded.splits[split], self.recipe.eval

        def sums(batch: Batch) -> list[Tensor]:
            return [objective.summed_loss(batch), objective.normalizers(batch).sum()]

        objective.eval()
        nats, tokens = evaluator.sums(examples.lengths, examples.batch, sums)
        loss = nats / tokens
        figures: dict[str, Any] = {"loss": loss, "perplexity": perplexity(loss), "examples": len(examples)}
        if examples.cut:
            figures["cut"] = examples.cut
        few = np.linspace(0, len(examples) - 1, min(section.examples, len(examples))).astype(int)
        places = np.arange(len(examples)) if section.metrics else few
        written = self.answers(objective.model, examples, places, tokenizers.source, evaluator)
        rows = [
            {**row, "prediction": text, "finished": finished}
            for row, (text, finished) in zip(splits.datasets[split].select(places), written, strict=True)
        ]
        predictions, right = [row["prediction"] for row in rows], [row["answer"] for row in rows]
        return Evaluation(figures | compute_metrics(section.metrics, predictions, right), rows)

    def answers(
        self,
        model: PreTrainedModel,
        examples: Answered,
        selected: np.ndarray,
        tokenizer: PreTrainedTokenizerBase,
        evaluator: Evaluator,
    ) -> list[tuple[str, bool]]:
        """The model's answers to the selected prompts, in order, and whether each came to an end."""
        model.eval()
        settings, end = self.search(tokenizer), tokenizer.eos_token_id

        def generate(batch: Batch) -> list[tuple[str, bool]]:
            output = model.generate(**batch, generation_config=settings)[:, batch["input_ids"].shape[1] :]
            return [
                (tokenizer.decode(ids[: ids.index(end)] if end in ids else ids, skip_special_tokens=True), end in ids)
                for ids in output.tolist()
            ]

        lengths = examples.prompts.lengths[selected] + self.recipe.eval.max_new_tokens
        return evaluator.outputs(lengths, lambda indices: examples.prompt_batch(selected[indices]), generate)

    def search(self, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
        """How answers are written: the likeliest token each time."""
        return GenerationSettings(max_new_tokens=self.recipe.eval.max_new_tokens).causal_config(tokenizer)

    def shown(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["answer"] else "≠"
        return f"{row['prompt']} → {row['prediction']} {mark} {row['answer']}"

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        export_model(folder, model, tokenizers, self.search(tokenizers.source))

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        data = self.recipe.data
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        headings = ("prompt", "answer", "prediction")
        prompt = data.written(rows[0]["prompt"] if rows else "…")
        examples = [[row[name] for name in headings] for row in rows]
        return {
            # not `quoted`, which drops line ends: they may be a part of the template
            "call": f"{json.dumps(prompt, ensure_ascii=False)}, return_full_text=False",
            "results_note": "The loss, in nats per token, is over the tokens of the answers and their end; exact match "
            "is out of 1. Answers are generated by greedy search. The prompt template is "
            f"`{code(json.dumps(data.template))}`.",
            "examples_split": split,
            "examples_table": table(headings, examples),
        }

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load()
        if model_folder is None:
            tokenizers = self.build_tokenizers(splits)
            model = self.build_model(tokenizers)
        else:
            tokenizers, model = self.load_tokenizers(model_folder), self.load_model(model_folder)
        name = "validation" if "validation" in splits.datasets else next(iter(splits.datasets))
        rows = splits.datasets[name]
        rows = rows.select(range(min(MAX_EXAMPLES, len(rows))))
        examples, limit = self.encode_split(rows, tokenizers, model.config), position_limit(model.config)
        short = np.flatnonzero(examples.lengths <= (limit or np.inf) - GENERATED_TOKENS)
        if not len(short):
            raise RunError(f"none of the first {len(rows)} examples of {name} leaves the model room to write on")
        indices = np.resize(short, max(MICRO_BATCHES, len(short)))
        subject = Subject(model, examples.batch(indices), self.recipe.train.seed, tokenizers)
        return subject, f"{len(short)} examples of {name}"
