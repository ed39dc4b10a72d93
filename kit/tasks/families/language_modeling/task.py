"""The base class of the tasks that pretrain on documents: masked and causal language models."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.data.batching.plan import BatchPlan
from kit.data.batching.ragged import RaggedTokens
from kit.data.batching.token_cache import Arrays, cached_arrays, tokenizer_key
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.streamed import load_streamed
from kit.data.streaming.plan import StreamEncoder
from kit.data.text.tokenizer import Tokenizers, train_tokenizer
from kit.errors import DataError
from kit.pretrained.export import export_model
from kit.pretrained.folder import ModelFolder, load_config
from kit.pretrained.positions import check_length, position_limit
from kit.pretrained.vocabulary import named_tokenizers
from kit.recipe.base import Recipe
from kit.recipe.model_settings import config_class
from kit.system.console import Reporter
from kit.tasks.base import Task
from kit.tasks.families.language_modeling.documents import blank_line_warnings, load_documents
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS
from kit.tasks.families.language_modeling.proofs import PROOFS
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe
from kit.tasks.stages import Encoded, TaskState
from kit.training.objective import Batch
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

PLAIN: dict[str, Any] = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
"""Tokenizer arguments for documents: no special tokens are added, and text that looks like one is plain text."""

STREAM = "stream"
"""The split name of a part of a stream."""
FIRST_CHARACTERS, FIRST_TOKENS = 80, 32
"""How much of a text identifies it in a table of losses; the tokens are enough for the characters."""
SPECIAL = ("bos", "eos", "pad", "sep", "cls", "mask")


@dataclass(frozen=True)
class LanguageModelState(TaskState):
    """The state of a language model."""

    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """The fingerprint of each split, under which its tokens are cached."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The number of documents of each split with a fingerprint."""


class Blocks(Protocol):
    """Examples of about the same length."""

    @property
    def truncated(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each example."""

    def __len__(self) -> int: ...


B = TypeVar("B", bound=Blocks)


class LanguageModelingTask(Task[B, LanguageModelState]):
    """Pretraining of a language model on documents."""

    card_template: ClassVar[str] = "language_model"
    tokenizer_kind: ClassVar[Literal["masked", "causal"]]
    """Which special tokens a trained tokenizer has: those of "masked" or of "causal" models."""

    recipe: LanguageModelRecipe
    proofs: ClassVar[Sequence[Proof]] = PROOFS

    # ---- data --------------------------------------------------------------------------------------------------------

    def load_splits(self) -> Splits:
        data = self.recipe.data
        if not data.streaming:
            return load_documents(data)
        splits = load_streamed(data, self.row_steps())
        splits.report.warnings += blank_line_warnings(data)
        return splits

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        tokenizers = named_tokenizers(self.recipe)
        if tokenizers is None:
            texts = ColumnView(self.vocabulary_rows(splits), "text")
            tokenizer = train_tokenizer(self.recipe.tokenizer, texts, self.tokenizer_kind)
            tokenizers = Tokenizers(tokenizer, tokenizer)
        self.check_tokenizer(tokenizers.source)
        return tokenizers

    @abstractmethod
    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise RecipeError if a tokenizer lacks a token that the task needs."""

    def fit(self, splits: Splits, tokenizers: Tokenizers) -> LanguageModelState:
        config = new_config(self.recipe, tokenizers.source)
        if hasattr(config, INSTRUCTIONS):  # the model no longer expects the template of its instruction tuning
            delattr(config, INSTRUCTIONS)
        check_length("data.block_size", self.recipe.data.block_size, position_limit(config))
        sizes = {split: len(rows) for split, rows in splits.datasets.items()}
        return LanguageModelState(tokenizers, config, splits.fingerprints, sizes)

    def restore(self, folder: ModelFolder, splits: Splits | None = None) -> LanguageModelState:
        check_length("data.block_size", self.recipe.data.block_size, position_limit(folder.config))
        return LanguageModelState(Tokenizers.load(folder.path), folder.config)

    def encode(self, rows: Dataset, state: LanguageModelState, split: str) -> Encoded[B]:
        """Encode the documents of a split, or read its examples from the token cache."""
        tokenizers, data = state.tokenizers, self.recipe.data
        reporter = Reporter(quiet=os.environ.get("RANK", "0") != "0")

        def make() -> B:
            with reporter.progress(f"{split}: tokenizing documents", len(rows)) as advance:
                return self.encode_documents(rows, tokenizers, split, data.num_proc, advance)

        fingerprint, tokenizer = state.fingerprints.get(split), tokenizer_key(tokenizers.source)
        is_whole = len(rows) == state.sizes.get(split)  # the cost estimate encodes parts of a split
        if data.streaming or not data.cache or fingerprint is None or tokenizer is None or not is_whole:
            examples = make()
        else:
            key = {"text": fingerprint, "tokenizer": tokenizer, "task": self.recipe.task, **self.cache_key(split)}
            arrays = cached_arrays(key, lambda: self.arrays(make()), reporter)
            examples = self.from_arrays(arrays, tokenizers.source)
        if split == "train" and not len(examples):
            raise DataError(f"{data.path}: the training text is too short for a single example.")
        left_out = self.left_out(examples)
        if split == "train":
            return Encoded(examples, left_out)
        counts = {self.filter_name(name): count for name, count in left_out.items() if count}
        notes = (f"{split}: {count:,} left out by {reason}" for reason, count in counts.items())
        return Encoded(examples, notes=tuple(notes))

    @abstractmethod
    def encode_documents(
        self,
        rows: Dataset,
        tokenizers: Tokenizers,
        split: str,
        workers: int = 1,
        advance: Callable[[int], object] = lambda documents: None,
    ) -> B:
        """Tokenize documents and make examples of them. Anything random in them follows the seed of the data."""

    def left_out(self, examples: B) -> Mapping[str, int]:
        """The number of documents or segments that became no example, by filter."""
        return {}

    @abstractmethod
    def cache_key(self, split: str) -> dict[str, Any]:
        """The settings that determine `arrays`, besides the text and the tokenizer."""

    @abstractmethod
    def arrays(self, examples: B) -> Arrays:
        """The parts of examples that are slow to compute, for the token cache."""

    @abstractmethod
    def from_arrays(self, arrays: Arrays, tokenizer: PreTrainedTokenizerBase) -> B:
        """Make examples of cached `arrays`."""

    def stream_encoder(self, state: LanguageModelState) -> StreamEncoder[B]:
        tokenizers = state.tokenizers

        def encode(rows: Dataset) -> tuple[B, dict[str, int]]:
            examples = self.encode_documents(rows, tokenizers, STREAM)
            return examples, dict(self.left_out(examples))

        return StreamEncoder(encode, lambda parts: self.concat(parts, tokenizers.source), self.plan_of_buffer)

    def plan_of_buffer(self, examples: B, seed: int) -> BatchPlan:
        """Plan the batches of one buffer of a stream."""
        return self.plan_lengths([examples.lengths], seed)

    @abstractmethod
    def concat(self, parts: Sequence[B], tokenizer: PreTrainedTokenizerBase) -> B:
        """Join the examples of all parts of a buffer; there may be no part."""

    # ---- evaluation and results --------------------------------------------------------------------------------------

    @property
    def evaluates_alike(self) -> bool:
        return True

    def export(self, folder: Path, model: PreTrainedModel, state: LanguageModelState) -> None:
        export_model(folder, model, state.tokenizers)

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load_training_splits()
        model, state = self.open_model(model_folder, splits)
        examples = self.encode_documents(splits.datasets["validation"], state.tokenizers, "validation")
        indices = np.arange(min(MAX_EXAMPLES, len(examples)))
        batch = self.proof_batch(examples, indices, state, position_limit(model.config))
        return Subject(model, batch, self.recipe.train.seed, state.tokenizers), f"{len(indices)} blocks of validation"

    @abstractmethod
    def proof_batch(self, examples: B, indices: np.ndarray, state: LanguageModelState, limit: int | None) -> Batch:
        """Make a batch of these examples for proofs, truncated to `limit` tokens."""


def new_config(recipe: Recipe, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The configuration of a model with one tokenizer, new or pretrained."""
    section = recipe.model
    if section.pretrained is not None:
        return load_config(section.pretrained, section.settings)
    assert section.type is not None
    kind = config_class(section.type, recipe.kit_types, recipe.mapping)
    return kind(**section.settings, **vocabulary_settings(kind, tokenizer))


def vocabulary_settings(kind: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """The fields of a new model's configuration that its tokenizer determines."""
    ids = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in SPECIAL}
    known = {name: value for name, value in ids.items() if value is not None and hasattr(kind, name)}
    # The defaults of a class are those of its published vocabulary: BOS and EOS of ModernBERT are 50281 and 50282.
    for name, substitute in (("bos_token_id", "cls_token_id"), ("eos_token_id", "sep_token_id")):
        if name not in known and getattr(kind, name, None) is not None:
            known[name] = ids[substitute]
    return {"vocab_size": len(tokenizer), **known}


@dataclass(frozen=True)
class PlainTokens:
    """Encodes documents without special tokens; a class, so that worker processes can receive it."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: list[str]) -> RaggedTokens:
        return RaggedTokens(self.tokenizer(texts, **PLAIN)["input_ids"])


def beginning_of(text: str) -> str:
    """What identifies a text in a table of losses."""
    return text[:FIRST_CHARACTERS]
