"""Translation, in the widest sense: one text in, another text out."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import BatchPlan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens, TokenPairs
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.steps import RowSteps
from kit.data.streaming.plan import StreamEncoder
from kit.data.text.languages import PREFIX_KEY, set_language_codes
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.pipelines.dialogue import SETTINGS as DIALOGUE
from kit.pipelines.text_to_text import PIPELINES
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import architecture
from kit.pretrained.loading import ModelFolder, load_model, merged_weights
from kit.pretrained.positions import encode_truncated, position_limit
from kit.tasks.base import BuiltModel, Encoded, TaskState, TextTokens, TokenView
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.tasks.families.seq2seq.inference import Translator
from kit.tasks.families.seq2seq.task import Seq2SeqTask, fit_to_tokenizer
from kit.tasks.translation.bpe_dropout import BPEDropoutPairs
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.recipe import TranslationRecipe
from kit.training.objective import Batch, Objective, Seq2SeqObjective

POSITIONS = "positions"
"""Name of the filter that drops examples with more tokens than the model has positions."""


class Translation(Seq2SeqTask[TokenPairs]):
    """Text to text: translation, also between several languages, summarization, correction."""

    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    card_template: ClassVar[str] = "seq2seq"
    recipe: TranslationRecipe

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        # older models of transformers have the names of classes that are gone
        other_head = architecture(config).endswith(("Classification", "QuestionAnswering"))
        is_text_model = type(config) in AutoModelForSeq2SeqLM._model_mapping
        return is_text_model and not other_head and not hasattr(config, DIALOGUE)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: GenerateOptions) -> Translator:
        return Translator(folder, options)

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

    def row_steps(self) -> RowSteps:
        data = self.recipe.data
        return DirectionSteps(data) if data.directions is not None else RowSteps(data)

    # ---- text → tokens -----------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        section, data = self.recipe.tokenizer, self.recipe.data
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            tokenizers = load_pretrained_tokenizers(pretrained)
        else:
            train = self.vocabulary_rows(splits)
            tokenizers = train_tokenizers(section, ColumnView(train, "source"), ColumnView(train, "target"))
        set_language_codes(tokenizers.source, section, [direction.split("-") for direction in data.directions or ()])
        if data.source_prefix is not None:
            tokenizers.source.init_kwargs[PREFIX_KEY] = data.source_prefix
        return tokenizers

    def encode(self, rows: Dataset, state: TaskState, split: str) -> Encoded[TokenPairs]:
        """Training examples that are too long are dropped; other examples are truncated to the model's positions."""
        tokenizers, limit = state.tokenizers, position_limit(state.config)
        if split != "train":
            return Encoded(encode_pairs(rows, tokenizers, limit))
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

    def filter_name(self, name: str) -> str:
        return "the positions of the model" if name == POSITIONS else super().filter_name(name)

    def filter_lengths(self, pairs: TokenPairs, state: TaskState) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples pass the filters of the recipe, and how many each filter drops (the first one counts)."""
        tokenizers, limit = state.tokenizers, position_limit(state.config)
        data = self.recipe.data
        # tokens that the tokenizer adds do not count
        source = pairs.source.lengths - len(tokenizers.encode_empty_source())
        target = pairs.target.lengths - len(tokenizers.encode_empty_target())
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        too_long = longer > (data.max_length or np.inf)
        beyond = np.maximum(pairs.source.lengths, pairs.target.lengths) > (limit or np.inf)
        too_short = shorter < data.min_length
        uneven = longer > (data.max_length_ratio or np.inf) * np.maximum(shorter, 1)
        keep = np.ones(len(pairs), dtype=bool)
        dropped = {}
        filters = {
            "max_length": too_long,
            "min_length": too_short,
            "max_length_ratio": uneven,
            POSITIONS: beyond,
        }
        for name, rejected in filters.items():
            dropped[name] = int((keep & rejected).sum())
            keep &= ~rejected
        return keep, dropped

    # ---- tokens → batches --------------------------------------------------------------------------------------------

    def plan(self, examples: TokenPairs, seed: int | None = None) -> BatchPlan:
        return self.plan_lengths([examples.source.lengths, examples.target.lengths], seed)

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

    def collate(
        self, examples: TokenPairs, indices: np.ndarray, random: np.random.Generator, state: TaskState
    ) -> Batch:
        pad = state.tokenizers.source.pad_token_id
        if isinstance(examples, BPEDropoutPairs):
            return examples.segmented_batch(indices, pad, random)
        return examples.batch(indices, pad)

    def token_lists(self, examples: TokenPairs, state: TaskState) -> dict[str, TextTokens]:
        tokenizers = state.tokenizers
        source, target = len(tokenizers.encode_empty_source()), len(tokenizers.encode_empty_target())
        return {
            "source": TextTokens(examples.source, tokenizers.source, source, "source"),
            "target": TextTokens(examples.target, tokenizers.target, target, "target", as_target=True),
        }

    def beyond_filters(self, examples: TokenPairs, state: TaskState) -> dict[str, int]:
        return self.filter_lengths(examples, state)[1]

    def unreachable_references(self, examples: TokenPairs) -> np.ndarray:
        lengths = examples.target.lengths
        return lengths[lengths > self.recipe.eval.max_new_tokens]

    def describe_batch(self, batch: Batch, state: TaskState) -> dict[str, TokenView]:
        source, target = state.tokenizers.source, state.tokenizers.target
        return {
            "source": TokenView(source, batch["input_ids"], batch["attention_mask"].bool()),
            "target": TokenView(target, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: TaskState) -> BuiltModel:
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        if section.pretrained is not None:
            with merged_weights(section.pretrained) as folder:
                model = load_model(self.auto_class, folder, section.settings)
            before = model.get_input_embeddings().num_embeddings
            fit_to_tokenizer(model, state.tokenizers)
            if self.recipe.peft.method is not None and model.get_input_embeddings().num_embeddings != before:
                raise RecipeError(
                    "peft.method: adapters have no vectors for the new language tags of the tokenizer. Train the model "
                    "itself first"
                )
        else:
            model = self.auto_class.from_config(copy.deepcopy(state.config), trust_remote_code=False)
        return BuiltModel(model.to(getattr(torch, train.dtype)))

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[TokenPairs],
        state: TaskState,
        *,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, Seq2SeqObjective)
        beams = self.num_beams(final)
        return evaluate_split(objective, encoded.examples, rows, state.tokenizers, self.recipe.eval, beams, evaluator)

    def format_prediction(self, row: dict[str, Any]) -> str:
        mark = "=" if row["prediction"] == row["target"] else "≠"
        return f"{row['source']} → {row['prediction']} {mark} {row['target']}"

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        data, section = self.recipe.data, self.recipe.eval
        split, rows = predicted_rows(run_folder, section.examples)
        examples = [
            (row["source"], row["target"] if isinstance(row["target"], str) else row["target"][0], row["prediction"])
            for row in rows
        ]
        example = clean(examples[0][0]) if examples else "…"
        # the first example is in the first direction
        task = f"translation_{data.directions[0].replace('-', '_to_')}" if data.directions else self.recipe.pipeline_tag
        return {
            "pipeline": task,
            "custom_pipeline": True,
            "call": quoted(example),
            "results_note": results_note(self.recipe, results),
            "examples_split": split,
            "examples_table": table(("source", "reference", "output"), examples),
            "has_directions": data.directions is not None,
            "prefixed_example": json.dumps((data.source_prefix or "") + example, ensure_ascii=False),
            "shared_vocabulary": self.recipe.tokenizer.shared,
            "max_new_tokens": section.max_new_tokens,
            "max_length": data.max_length,
        }

    def batch_of(self, examples: TokenPairs, indices: np.ndarray, state: TaskState) -> Batch:
        return examples.batch(indices, state.tokenizers.source.pad_token_id)


def encode_pairs(dataset: Dataset, tokenizers: Tokenizers, limit: int | None = None) -> TokenPairs:
    """Source and target of every row as token ids, in the languages of the row if the tokenizer needs to know them.

    Texts with more than `limit` ids are truncated, and their examples counted.
    """
    sources, targets = (list(ColumnView(dataset, role)) for role in ("source", "target"))
    source_ids: list[list[int]] = [[] for _ in sources]
    target_ids: list[list[int]] = [[] for _ in targets]
    truncated: set[int] = set()
    directions = row_directions(dataset, tokenizers)
    for source, target in dict.fromkeys(directions):
        rows = [row for row, direction in enumerate(directions) if direction == (source, target)]
        encoded, long = encode_truncated(
            limit, tokenizers.encode_source, [sources[row] for row in rows], source, target
        )
        references, too_long = encode_truncated(limit, tokenizers.encode_target, [targets[row] for row in rows], target)
        truncated.update(rows[index] for index in (*long, *too_long))
        for row, ids, reference in zip(rows, encoded, references, strict=True):
            source_ids[row], target_ids[row] = ids, reference
    languages = None if (None, None) in directions else np.array([target for _, target in directions])
    return TokenPairs(RaggedTokens(source_ids), RaggedTokens(target_ids), languages, len(truncated))


def row_directions(dataset: Dataset, tokenizers: Tokenizers) -> list[tuple[str | None, str | None]]:
    """Source and target language of every row; None if the tokenizer does not need them, or has a single direction."""
    if not tokenizers.languages.per_example or "target_language" not in dataset.column_names:
        return [(None, None)] * len(dataset)
    return list(zip(ColumnView(dataset, "source_language"), ColumnView(dataset, "target_language"), strict=True))
