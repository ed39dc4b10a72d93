"""Causal language modeling: predict the next token of documents that are packed into full blocks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.contiguous import ContiguousPlan
from kit.data.batching.packing import CausalBlocks
from kit.data.batching.plan import EpochPlan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.batching.token_cache import Arrays, map_in_chunks
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.text.tokenizer import Tokenizers
from kit.errors import RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.evaluation.losses import MIN_DOCUMENTS, loss_figures, total_sums
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import is_causal_lm
from kit.pretrained.folder import ModelFolder
from kit.tasks.causal_lm.examples import TextBlocks, in_streams
from kit.tasks.causal_lm.losses import losses_of_blocks, losses_of_documents, losses_of_text_blocks
from kit.tasks.causal_lm.recipe import CausalLMRecipe
from kit.tasks.causal_lm.samples import sample_continuations
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS, Completer
from kit.tasks.families.language_modeling.proofs import causal_batch
from kit.tasks.families.language_modeling.task import LanguageModelingTask, LanguageModelState, PlainTokens
from kit.tasks.stages import Encoded, TextTokens, TokenView
from kit.training.lm_objectives import CausalLMObjective, TruncatedBPTTObjective
from kit.training.objective import Batch, Objective


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

    # ---- data --------------------------------------------------------------------------------------------------------

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise RecipeError("tokenizer.pretrained: it has no end token, which separates documents. Use another one.")

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
        words_and_bytes = [
            (len(text.split()), len(text.encode("utf-8", "replace"))) for text in ColumnView(rows, "text")
        ]
        sizes = np.column_stack([tokens.lengths, np.array(words_and_bytes, dtype=np.int64).reshape(-1, 2)])
        blocks = CausalBlocks.pack(tokens, tokenizer.eos_token_id, data.block_size)
        return TextBlocks(blocks, sizes, data.separate_documents)

    def cache_key(self, split: str) -> dict[str, Any]:
        # the cache holds the text as one sequence, which is divided into blocks afterwards
        return {"sizes": "tokens, words and bytes of each document"}

    def arrays(self, examples: TextBlocks) -> Arrays:
        return {"stream": examples.blocks.stream, "sizes": examples.sizes}

    def from_arrays(self, arrays: Arrays, tokenizer: PreTrainedTokenizerBase) -> TextBlocks:
        data = self.recipe.data
        blocks = CausalBlocks(arrays["stream"], tokenizer.eos_token_id, data.block_size)
        return TextBlocks(blocks, arrays["sizes"], data.separate_documents)

    def concat(self, parts: Sequence[TextBlocks], tokenizer: PreTrainedTokenizerBase) -> TextBlocks:
        data, separator = self.recipe.data, tokenizer.eos_token_id
        first = np.array([separator], dtype=np.int32)
        stream = np.concatenate([first, *(part.blocks.stream[1:] for part in parts)])
        blocks = CausalBlocks(stream, separator, data.block_size)
        sizes = np.concatenate([np.zeros((0, 3), dtype=np.int64), *(part.sizes for part in parts)])
        return TextBlocks(blocks, sizes, data.separate_documents)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def plan(self, examples: TextBlocks, seed: int | None = None) -> EpochPlan:
        if not self.recipe.data.carry_state:
            return super().plan(examples, seed)
        return ContiguousPlan(examples.lengths, self.streams, self.recipe.train.micro_batches)

    def collate(
        self, examples: TextBlocks, indices: np.ndarray, random: np.random.Generator, state: LanguageModelState
    ) -> Batch:
        return in_streams(examples, self.streams, indices) if self.recipe.data.carry_state else examples.batch(indices)

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

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def objective(self, model: PreTrainedModel, state: LanguageModelState) -> CausalLMObjective:
        return TruncatedBPTTObjective(model, self.streams) if self.recipe.data.carry_state else CausalLMObjective(model)

    # ---- evaluation and results --------------------------------------------------------------------------------------

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
        examples, tokenizer = encoded.examples, state.tokenizers.source
        if self.recipe.data.carry_state:
            of_blocks, sums = self.read_through(objective.model, examples, evaluator)
        else:
            objective.eval()
            compute = partial(losses_of_blocks, objective)
            of_blocks, sums = evaluator.outputs_and_sums(examples.lengths, examples.batch, compute)
        losses = losses_of_documents(examples, rows, of_blocks)
        figures: dict[str, Any] = dict(loss_figures({**total_sums(losses), "loss": sums[0]}))
        figures |= {"examples": len(examples), "tokens": len(examples.blocks.stream) - 1}
        if len(losses) < MIN_DOCUMENTS:
            losses = losses_of_text_blocks(examples, of_blocks, tokenizer)
        section, seed = self.recipe.eval, self.recipe.train.seed
        samples = sample_continuations(objective.model, examples, tokenizer, section, seed)
        return Evaluation(figures, samples, losses=losses)

    @torch.inference_mode()
    def read_through(
        self, model: PreTrainedModel, examples: TextBlocks, evaluator: Evaluator
    ) -> tuple[list[np.ndarray], list[float]]:
        """The losses of the labels of each block, and their sum, with one state carried through the whole text.

        A single process reads the text, because each block depends on the blocks before it.
        """
        plan = ContiguousPlan(examples.lengths, 1, 1)
        objective = TruncatedBPTTObjective(model.eval(), 1)
        of_blocks, sums = list[np.ndarray](), list[list[float]]()
        if evaluator.is_main:
            for step in range(plan.steps_per_epoch):
                batch = in_streams(examples, 1, plan.step(step)[0])
                batch = {name: tensor.to(evaluator.device) for name, tensor in batch.items()}
                of_batch, (total,) = losses_of_blocks(objective, batch)
                of_blocks += of_batch
                sums.append([float(total)])
        return evaluator.gather(of_blocks), evaluator.total(sums)

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

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_batch(
        self, examples: TextBlocks, indices: np.ndarray, state: LanguageModelState, limit: int | None
    ) -> Batch:
        rows, pad = self.token_lists(examples, state)["text"].lists, state.tokenizers.source.pad_token_id
        return causal_batch([rows[int(index)] for index in indices], 0 if pad is None else pad, limit)
