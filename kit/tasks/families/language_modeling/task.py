"""What the pretraining of masked and of causal language models has in common."""

import math
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from kit.data.batching.plan import BatchPlan, EpochPlan
from kit.data.batching.ragged import RaggedTokens
from kit.data.batching.token_cache import Arrays, cached_arrays, tokenizer_key
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.streamed import load_streamed
from kit.data.streaming.plan import StreamEncoder
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizer
from kit.errors import DataError, RecipeError
from kit.pretrained.loading import export_model, load_config, load_model, new_or_pretrained
from kit.pretrained.positions import position_limit
from kit.recipe.model_settings import config_class
from kit.system.console import Reporter
from kit.tasks.base import Encoded, Task
from kit.tasks.families.language_modeling.documents import load_documents
from kit.tasks.families.language_modeling.inference import INSTRUCTIONS
from kit.tasks.families.language_modeling.proofs import PROOFS
from kit.tasks.families.language_modeling.recipe import LanguageModelRecipe
from kit.training.objective import Batch
from kit.verify.proof import Proof
from kit.verify.subject import MAX_EXAMPLES, Subject

PLAIN: dict[str, Any] = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
"""How documents are encoded: nothing is added, and text that looks like a special token is text."""


STREAM = "stream"
"""Name of a part of a stream, where a split is named."""
SPECIAL = ("bos", "eos", "pad", "sep", "cls", "mask")


class Blocks(Protocol):
    """Examples of about the same length."""

    @property
    def cut(self) -> int: ...

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each."""

    def __len__(self) -> int: ...


B = TypeVar("B", bound=Blocks)


class LanguageModel(Task[B]):
    """A task that learns from documents alone."""

    card_template: ClassVar[str] = "language_model"
    auto_class: ClassVar[Any]
    """transformers' class that builds and loads models of this task."""

    recipe: LanguageModelRecipe
    proofs: ClassVar[Sequence[Proof]] = PROOFS

    def load(self) -> Splits:
        data = self.recipe.data
        return load_streamed(data, self.row_steps()) if data.streaming else load_documents(data)

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section = self.recipe.tokenizer
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            tokenizers = load_pretrained_tokenizers(pretrained)
        else:
            texts = ColumnView(self.vocabulary_rows(splits), "text")
            tokenizer = train_tokenizer(section, texts, self.kind_of_tokenizer)
            tokenizers = Tokenizers(tokenizer, tokenizer)
        self.check_tokenizer(tokenizers.source)
        return tokenizers

    kind_of_tokenizer: ClassVar[Literal["masked", "causal"]]
    """Which special tokens a trained tokenizer has: those of "masked" or of "causal" models."""

    @abstractmethod
    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise RecipeError if a tokenizer lacks a token that the task needs."""

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded[B]:
        config = self.config(tokenizers)
        limit, wanted = position_limit(config), self.recipe.data.block_size
        if limit is not None and wanted > limit:
            raise RecipeError(f"data.block_size: {wanted} tokens are more than the model has positions for ({limit}).")
        encoded = Encoded(
            {
                name: self.prepared(rows, tokenizers, name, splits.fingerprints.get(name))
                for name, rows in splits.datasets.items()
            }
        )
        if "train" in encoded.splits and not len(encoded.splits["train"]):
            raise DataError(f"{self.recipe.data.path}: the training text is too short for a single example.")
        return encoded

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> B:
        return self.encode_documents(rows, tokenizers, "evaluated")

    def prepared(self, rows: Dataset, tokenizers: Tokenizers, split: str, fingerprint: str | None) -> B:
        """The examples of a split: from disk where they are there already, else made, and kept where that is wanted."""
        reporter = Reporter(quiet=os.environ.get("RANK", "0") != "0")

        def make() -> B:
            with reporter.progress(f"{split}: documents cut into tokens", len(rows)) as advance:
                return self.encode_documents(rows, tokenizers, split, self.recipe.data.num_proc, advance)

        data, tokenizer = self.recipe.data, tokenizer_key(tokenizers.source)
        if data.streaming or not data.cache or fingerprint is None or tokenizer is None:
            return make()
        key = {"text": fingerprint, "tokenizer": tokenizer, "task": self.recipe.task, **self.preparation(split)}
        return self.from_arrays(cached_arrays(key, lambda: self.arrays(make()), reporter), tokenizers.source)

    @abstractmethod
    def encode_documents(
        self,
        rows: Dataset,
        tokenizers: Tokenizers,
        split: str,
        workers: int = 1,
        advance: Callable[[int], object] = lambda documents: None,
    ) -> B:
        """Documents as examples; what is random in making them follows the seed of the data."""

    @abstractmethod
    def preparation(self, split: str) -> dict[str, Any]:
        """All settings that decide what `arrays` has for the same text and tokenizer."""

    @abstractmethod
    def arrays(self, examples: B) -> Arrays:
        """What took time to make of examples."""

    @abstractmethod
    def from_arrays(self, arrays: Arrays, tokenizer: PreTrainedTokenizerBase) -> B:
        """The examples that `arrays` was given."""

    def plan(self, examples: B, seed: int | None = None) -> EpochPlan:
        return self.plan_lengths([examples.lengths], seed)

    def making(self, tokenizers: Tokenizers) -> StreamEncoder[B]:
        def encode(rows: Dataset) -> tuple[B, dict[str, int]]:
            return self.encode_documents(rows, tokenizers, STREAM), {}

        return StreamEncoder(encode, lambda parts: self.joined(parts, tokenizers.source), self.plan_of_buffer)

    def plan_of_buffer(self, examples: B, seed: int) -> BatchPlan:
        """The plan of a part of a stream."""
        return self.plan_lengths([examples.lengths], seed)

    @abstractmethod
    def joined(self, parts: Sequence[B], tokenizer: PreTrainedTokenizerBase) -> B:
        """The examples of all parts of a buffer, of which there may be none."""

    # ---- model -------------------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained."""
        section, tokenizer = self.recipe.model, tokenizers.source
        if section.pretrained is not None:
            config = load_config(section.pretrained, section.settings)
            if hasattr(config, INSTRUCTIONS):  # the model no longer expects the template of its instruction tuning
                delattr(config, INSTRUCTIONS)
            return config
        assert section.type is not None
        kind = config_class(section.type, self.recipe.kit_types, self.recipe.mapping)
        return kind(**section.settings, **vocabulary_settings(kind, tokenizer))

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        config = self.config(tokenizers)
        return new_or_pretrained(self.auto_class, self.recipe, config, tokenizers.source, new_head=False)[0]

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_model(self.auto_class, place)

    def export(self, folder: Path, model: PreTrainedModel, tokenizers: Tokenizers) -> None:
        export_model(folder, model, tokenizers)

    def proof_subject(self, model_folder: Path | None) -> tuple[Subject, str]:
        splits = self.load()
        if model_folder is None:
            tokenizers = self.build_tokenizers(splits)
            model = self.build_model(tokenizers)
        else:
            tokenizers, model = self.load_tokenizers(model_folder), self.load_model(model_folder)
        name = "validation" if "validation" in splits.datasets else next(iter(splits.datasets))
        examples = self.encode_documents(splits.datasets[name], tokenizers, name)
        indices = np.arange(min(MAX_EXAMPLES, len(examples)))
        batch = self.proof_batch(examples, indices, tokenizers, position_limit(model.config))
        subject = Subject(model, batch, self.recipe.train.seed, tokenizers)
        return subject, f"{len(indices)} blocks of {name}"

    @abstractmethod
    def proof_batch(self, examples: B, indices: np.ndarray, tokenizers: Tokenizers, limit: int | None) -> Batch:
        """A batch of these examples for proofs, with no more than `limit` tokens each."""


def vocabulary_settings(kind: Any, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """What the configuration of a new model has to know about its tokenizer."""
    told = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in SPECIAL}
    known = {name: value for name, value in told.items() if value is not None and hasattr(kind, name)}
    return {"vocab_size": len(tokenizer), **known}


@dataclass(frozen=True)
class PlainTokens:
    """From documents to the tokens of each, without anything that stands around them."""

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, texts: list[str]) -> RaggedTokens:
        return RaggedTokens(self.tokenizer(texts, **PLAIN)["input_ids"])


def perplexity(loss: float) -> float:
    """e to the loss, without an overflow."""
    return math.exp(min(loss, 700))
