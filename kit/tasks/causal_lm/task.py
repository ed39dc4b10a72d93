"""Causal language modeling: predict the next token of documents that are packed into full blocks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, ClassVar, Literal

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

from kit.cards.markdown import quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.contiguous import ContiguousPlan, stream_of
from kit.data.batching.packing import CausalBlocks, document_positions
from kit.data.batching.plan import EpochPlan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.batching.token_cache import Arrays, map_in_chunks
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.decoding.settings import GenerationSettings
from kit.errors import RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.folder import ModelFolder
from kit.pretrained.positions import position_limit
from kit.tasks.base import Encoded, TextTokens, TokenView
from kit.tasks.causal_lm.recipe import CausalLMRecipe
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS, Completer
from kit.tasks.families.language_modeling.proofs import causal_batch
from kit.tasks.families.language_modeling.task import (
    LanguageModelingTask,
    LanguageModelState,
    PlainTokens,
    perplexity,
)
from kit.training.lm_objectives import CausalLMObjective, TruncatedBPTTObjective
from kit.training.objective import Batch, Objective


@dataclass(frozen=True)
class TextBlocks:
    """The blocks of a split."""

    blocks: CausalBlocks
    bytes: int
    """Length of the text in UTF-8, by which models with different tokenizers are compared."""
    words: int
    """Number of words, separated by white space."""
    separate: bool
    """Whether attention stays within a document."""
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def lengths(self) -> np.ndarray:
        return self.blocks.lengths

    def batch(self, indices: np.ndarray) -> Batch:
        """`input_ids` and `labels`, which are shifted already."""
        tokens, labels = self.blocks.batch(indices)
        batch = {"input_ids": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
        if self.separate:
            batch["position_ids"] = torch.from_numpy(document_positions(tokens, self.blocks.separator))
        return batch


class CausalLM(LanguageModelingTask[TextBlocks]):
    """Causal language modeling, the pretraining of GPT and of recurrent language models."""

    auto_class: ClassVar[Any] = AutoModelForCausalLM
    tokenizer_kind: ClassVar[Literal["masked", "causal"]] = "causal"
    recipe: CausalLMRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        return is_causal_lm(config) and not hasattr(config, INSTRUCTIONS)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Completer:
        return Completer(folder, options)

    @property
    def streams(self) -> int:
        """The number of parallel streams of text under data.carry_state."""
        train = self.recipe.train
        return train.batch_size or max(1, (train.tokens_per_batch or 1) // self.recipe.data.block_size)

    def plan(self, examples: TextBlocks, seed: int | None = None) -> EpochPlan:
        if not self.recipe.data.carry_state:
            return super().plan(examples, seed)
        return ContiguousPlan(examples.lengths, self.streams, self.recipe.train.micro_batches)

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise RecipeError("tokenizer.pretrained: it has no end token, which separates documents. Use another one.")

    def encode_documents(
        self,
        rows: Dataset,
        tokenizers: Tokenizers,
        split: str,
        workers: int = 1,
        advance: Callable[[int], object] = lambda documents: None,
    ) -> TextBlocks:
        tokenizer, data = tokenizers.source, self.recipe.data
        tokens = RaggedTokens.concat(
            list(map_in_chunks(ColumnView(rows, "text"), PlainTokens(tokenizer), workers, advance))
        )
        size = sum(len(text.encode("utf-8", "replace")) for text in ColumnView(rows, "text"))
        words = sum(len(text.split()) for text in ColumnView(rows, "text"))
        blocks = CausalBlocks.pack(tokens, tokenizer.eos_token_id, data.block_size)
        return TextBlocks(blocks, size, words, data.separate_documents)

    def cache_key(self, split: str) -> dict[str, Any]:
        # the cache holds the text as one sequence, which is divided into blocks afterwards
        return {"sizes": "bytes and words"}

    def arrays(self, examples: TextBlocks) -> Arrays:
        return {"stream": examples.blocks.stream, "sizes": np.array([examples.bytes, examples.words])}

    def from_arrays(self, arrays: Arrays, tokenizer: PreTrainedTokenizerBase) -> TextBlocks:
        data = self.recipe.data
        blocks = CausalBlocks(arrays["stream"], tokenizer.eos_token_id, data.block_size)
        size, words = arrays["sizes"].tolist()
        return TextBlocks(blocks, size, words, data.separate_documents)

    def collate(
        self, examples: TextBlocks, indices: np.ndarray, random: np.random.Generator, state: LanguageModelState
    ) -> Batch:
        return in_streams(examples, self.streams, indices) if self.recipe.data.carry_state else examples.batch(indices)

    def concat(self, parts: Sequence[TextBlocks], tokenizer: PreTrainedTokenizerBase) -> TextBlocks:
        data, separator = self.recipe.data, tokenizer.eos_token_id
        first = np.array([separator], dtype=np.int32)
        stream = np.concatenate([first, *(part.blocks.stream[1:] for part in parts)])
        blocks = CausalBlocks(stream, separator, data.block_size)
        size, words = sum(part.bytes for part in parts), sum(part.words for part in parts)
        return TextBlocks(blocks, size, words, data.separate_documents)

    def token_lists(self, examples: TextBlocks, state: LanguageModelState) -> dict[str, TextTokens]:
        tokens = examples.blocks.stream[:-1]
        lists = RaggedTokens(np.split(tokens, np.cumsum(examples.lengths)[:-1]))
        return {"text": TextTokens(lists, state.tokenizers.source)}

    def describe_batch(self, batch: Batch, state: LanguageModelState) -> dict[str, TokenView]:
        tokenizer, mask = state.tokenizers.source, batch["labels"] != IGNORE_INDEX
        return {
            "reads": TokenView(tokenizer, batch["input_ids"], mask),
            "predicts": TokenView(tokenizer, batch["labels"], mask),
        }

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LanguageModelState:
        state, data, recurrent = super().fit(splits, tokenizers), self.recipe.data, self.recipe.kit_types
        kind = state.config.model_type
        if data.separate_documents and kind in recurrent:
            raise RecipeError(
                f"data.separate_documents: a {kind} has no attention that could stay within a document. Leave it out."
            )
        if data.carry_state and kind not in recurrent:
            raise RecipeError(
                f"data.carry_state: a {kind} has no state to carry; recurrent models do (model.type: "
                f"{', '.join(recurrent)}). Leave it out."
            )
        return state

    def objective(self, model: PreTrainedModel, state: LanguageModelState) -> CausalLMObjective:
        return TruncatedBPTTObjective(model, self.streams) if self.recipe.data.carry_state else CausalLMObjective(model)

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[TextBlocks],
        state: LanguageModelState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Loss per token, perplexity per token, word and byte, and a few samples; `final` makes no difference.

        Only the loss of a word or byte compares models with different tokenizers. The end of each document, which the
        model predicts too, counts in the loss but is neither a word nor a byte.
        """
        assert isinstance(objective, CausalLMObjective)
        examples = encoded.examples

        def sums(batch: Batch) -> list[Tensor | float]:
            return [objective.summed_loss(batch), *objective.normalizers(batch)]

        if self.recipe.data.carry_state:
            nats, tokens = self.read_through(objective.model, examples, evaluator)
        else:
            objective.eval()
            nats, tokens = evaluator.sums(examples.lengths, examples.batch, sums)
        loss = nats / tokens
        figures = {
            "loss": loss,
            "perplexity": perplexity(loss),
            "word_perplexity": perplexity(nats / max(1, examples.words)),
            "byte_perplexity": perplexity(nats / max(1, examples.bytes)),
            "bits_per_byte": nats / log(2) / max(1, examples.bytes),
            "examples": len(examples),
            "tokens": int(tokens),
        }
        return Evaluation(figures, self.samples(objective.model, examples, state.tokenizers.source))

    @torch.inference_mode()
    def read_through(self, model: PreTrainedModel, examples: TextBlocks, evaluator: Evaluator) -> list[float]:
        """Sums of the loss and of the labels, with one state carried through the whole text.

        A single process reads the text, because each block depends on those before it.
        """
        plan = ContiguousPlan(examples.lengths, 1, 1)
        objective = TruncatedBPTTObjective(model.eval(), 1)
        sums = []
        if evaluator.is_main:
            for step in range(plan.steps_per_epoch):
                batch = in_streams(examples, 1, plan.step(step)[0])
                batch = {name: tensor.to(evaluator.device) for name, tensor in batch.items()}
                sums.append([float(objective.summed_loss(batch)), *objective.normalizers(batch)])
        return evaluator.total(sums)

    def samples(
        self, model: PreTrainedModel, examples: TextBlocks, tokenizer: PreTrainedTokenizerBase
    ) -> list[dict[str, Any]]:
        """Prompts from the split, each with a sampled continuation; the same weights give the same samples.

        A continuation ends with the positions of the model, and so does a prompt one token earlier.
        """
        section, rows = self.recipe.eval, []
        positions = position_limit(model.config) or section.prompt_tokens + section.max_new_tokens
        settings = self.sampling(tokenizer)
        indices = np.linspace(0, len(examples) - 1, section.examples).astype(int)
        devices = [model.device] if model.device.type == "cuda" else []
        with torch.random.fork_rng(devices), torch.inference_mode():
            torch.manual_seed(self.recipe.train.seed)
            for index in indices:
                beginning = examples.batch(np.array([index]))["input_ids"][0, : section.prompt_tokens][: positions - 1]
                separator = torch.tensor([tokenizer.eos_token_id])
                prompt = beginning if len(beginning) else separator
                settings.max_new_tokens = min(section.max_new_tokens, positions - len(prompt))
                continuation = model.generate(
                    input_ids=prompt[None].to(model.device),
                    attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=model.device),
                    generation_config=settings,
                )[0, len(prompt) :]
                rows.append({"prompt": tokenizer.decode(beginning), "prediction": tokenizer.decode(continuation)})
        return rows

    def sampling(self, tokenizer: PreTrainedTokenizerBase) -> GenerationConfig:
        """The generation settings of `samples`."""
        section = self.recipe.eval
        settings = GenerationSettings(
            max_new_tokens=section.max_new_tokens, do_sample=True, temperature=section.temperature, top_p=section.top_p
        )
        return settings.causal_config(tokenizer)

    def format_prediction(self, row: dict[str, Any]) -> str:
        return f"{row['prompt']}│{row['prediction']}"

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (row["prompt"] + row["prediction"],)

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [(row["prompt"], row["prediction"]) for row in rows]
        return {
            "call": quoted("The "),
            "results_note": "The loss is in nats per token. Perplexities are exponentials of the loss per token, per "
            "word (separated by white space) and per byte of UTF-8.",
            "examples_split": split,
            "examples_table": table(("prompt", "continuation"), examples),
        }

    def proof_batch(
        self, examples: TextBlocks, indices: np.ndarray, state: LanguageModelState, limit: int | None
    ) -> Batch:
        rows, pad = self.token_lists(examples, state)["text"].lists, state.tokenizers.source.pad_token_id
        return causal_batch([rows[int(index)] for index in indices], 0 if pad is None else pad, limit)


def in_streams(examples: TextBlocks, streams: int, indices: np.ndarray) -> Batch:
    """A batch with the `stream` that each row continues, and whether the stream starts there (`fresh`)."""
    numbers, fresh = stream_of(indices, len(examples), streams)
    return {**examples.batch(indices), "stream": torch.from_numpy(numbers), "fresh": torch.from_numpy(fresh)}
