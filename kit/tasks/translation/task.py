"""Translation, in the widest sense: one text in, another text out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig

from kit.data.batching.ragged import TokenPairs
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.steps import RowSteps
from kit.data.streaming.plan import StreamEncoder
from kit.data.text.languages import PREFIX_KEY, set_language_codes
from kit.data.text.tokenizer import Tokenizers, train_tokenizers
from kit.errors import DataError
from kit.pipelines.dialogue import SETTINGS as DIALOGUE
from kit.pipelines.text_to_text import PIPELINES
from kit.pretrained.architecture import architecture
from kit.pretrained.positions import position_limit
from kit.tasks.families.seq2seq.examples import encode_pairs
from kit.tasks.families.seq2seq.text import TextToTextTask
from kit.tasks.stages import Encoded, TaskState
from kit.tasks.translation.bpe_dropout import BPEDropoutPairs
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.examples import POSITIONS, filter_lengths
from kit.tasks.translation.recipe import TranslationRecipe
from kit.training.objective import Batch


class Translation(TextToTextTask[TokenPairs]):
    """Text to text: translation, also between several languages, summarization, correction."""

    recipe: TranslationRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        # older models of transformers have the names of classes that are gone
        other_head = architecture(config).endswith(("Classification", "QuestionAnswering"))
        is_text_model = type(config) in AutoModelForSeq2SeqLM._model_mapping
        return is_text_model and not other_head and not hasattr(config, DIALOGUE)

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The text-to-text pipelines; for a model of several languages, also one for each direction."""
        section, data = self.recipe.tokenizer, self.recipe.data
        pairs = {tuple(direction.split("-")) for direction in data.directions or ()}
        if section.source_language and section.target_language:
            pairs = {(section.source_language, section.target_language)}
        languages = {language for pair in pairs for language in pair}
        # users may try a direction that was never trained, if another one has its target
        directions = sorted({(source, target) for source in languages for _, target in pairs if source != target})
        return (*PIPELINES, *(f"translation_{source}_to_{target}" for source, target in directions))

    # ---- data --------------------------------------------------------------------------------------------------------

    def row_steps(self) -> RowSteps:
        data = self.recipe.data
        return DirectionSteps(data) if data.directions is not None else RowSteps(data)

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section, data = self.recipe.tokenizer, self.recipe.data
        if section.pretrained or self.recipe.model.pretrained:
            tokenizers = super().build_tokenizers(splits)
        else:
            train = self.vocabulary_rows(splits)
            tokenizers = train_tokenizers(section, ColumnView(train, "source"), ColumnView(train, "target"))
        set_language_codes(tokenizers.source, section, [direction.split("-") for direction in data.directions or ()])
        if data.source_prefix is not None:
            tokenizers.source.init_kwargs[PREFIX_KEY] = data.source_prefix
        return tokenizers

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[TokenPairs]:
        """Encode pairs of texts. Training examples that are too long are dropped; others are truncated to the
        positions of the model."""
        tokenizers, limit = state.tokenizers, position_limit(state.config)
        if split != "train":
            return super().encode(rows, state, split)
        pairs = encode_pairs(rows, tokenizers)
        keep, dropped = self.filter_lengths(pairs, state)
        if not keep.any():
            raise DataError(
                f"no training example is left: {sum(dropped.values())} were left out by the length filters "
                f"of `data` ({', '.join(f'{name}: {n}' for name, n in dropped.items() if n)})"
            )
        kept = np.flatnonzero(keep)
        pairs = pairs.select(kept)
        if dropout := self.recipe.tokenizer.bpe_dropout:
            texts = rows.select(kept)
            sources = (tokenizers.prefix + source for source in ColumnView(texts, "source"))
            pairs = BPEDropoutPairs.of(pairs, sources, ColumnView(texts, "target"), tokenizers, dropout, limit)
        return Encoded(pairs, dropped, kept)

    def filter_lengths(self, pairs: TokenPairs, state: TaskState) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples pass the filters of the recipe, and how many each filter drops."""
        return filter_lengths(pairs, self.recipe.data, state.tokenizers, position_limit(state.config))

    def stream_encoder(self, state: TaskState) -> StreamEncoder[TokenPairs]:
        data, train, tokenizers = self.recipe.data, self.recipe.train, state.tokenizers
        if data.max_length is not None:  # fail now, not in mid-training, if the longest examples do not fit a batch
            added = max(len(tokenizers.encode_empty_source()), len(tokenizers.encode_empty_target()))
            longest = min(data.max_length + added, position_limit(state.config) or np.inf)
            self.plan_lengths([np.full(train.micro_batches, longest, np.int64)])

        def encode(rows: Dataset) -> tuple[TokenPairs, dict[str, int]]:
            pairs = encode_pairs(rows, tokenizers)
            keep, dropped = self.filter_lengths(pairs, state)
            return pairs.select(np.flatnonzero(keep)), dropped

        return StreamEncoder(encode, TokenPairs.concat, self.plan)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def collate(
        self, examples: TokenPairs, indices: np.ndarray, random: np.random.Generator, state: TaskState
    ) -> Batch:
        if isinstance(examples, BPEDropoutPairs):
            return examples.segmented_batch(indices, state.tokenizers.source.pad_token_id, random)
        return super().collate(examples, indices, random, state)

    def beyond_filters(self, examples: TokenPairs, state: TaskState) -> dict[str, int]:
        return self.filter_lengths(examples, state)[1]

    def filter_name(self, name: str) -> str:
        return "the positions of the model" if name == POSITIONS else super().filter_name(name)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    @property
    def source_prefix(self) -> str:
        return self.recipe.data.source_prefix or ""

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        sections, data = super().card_sections(results, run_folder), self.recipe.data
        if data.directions is not None:  # the first example is in the first direction
            sections |= {"pipeline": f"translation_{data.directions[0].replace('-', '_to_')}", "has_directions": True}
        return sections | {"max_length": data.max_length}
