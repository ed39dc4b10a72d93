"""Translation, in the widest sense: from one text to another."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedConfig, PreTrainedModel

from kit.cards.markdown import clean, quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.plan import BatchPlan, Plan
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens, TokenPairs
from kit.data.rows import ColumnView
from kit.data.splits import Splits
from kit.data.steps import RowSteps
from kit.data.streaming.plan import StreamEncoder, StreamPlan
from kit.data.text.languages import PREFIX_KEY, set_language_codes
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.pipelines.dialogue import SETTINGS as DIALOGUE
from kit.pipelines.text_to_text import PIPELINES
from kit.prediction.options import GenerateOptions
from kit.pretrained.architecture import architecture
from kit.pretrained.loading import ModelFolder, load_config, load_seq2seq, plain_weights
from kit.pretrained.positions import encode_within, position_limit
from kit.recipe.model_settings import config_class
from kit.tasks.base import Encoded, MakeBatch, TextTokens, TokenView
from kit.tasks.families.seq2seq.card import results_note
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.tasks.families.seq2seq.inference import Translator
from kit.tasks.families.seq2seq.task import Writing, suit_tokenizers, vocabulary_settings
from kit.tasks.translation.bpe_dropout import CutAnew
from kit.tasks.translation.directions import DirectionSteps
from kit.tasks.translation.recipe import TranslationRecipe
from kit.training.objective import Batch, Objective, Seq2SeqObjective

POSITIONS = "positions"
"""Name of the filter that leaves out what is too long for the model."""


@dataclass(frozen=True)
class EncodedPairs(Encoded[TokenPairs]):
    """Source and target of each example."""

    cut_anew: CutAnew | None = None
    """Training examples under tokenizer.bpe_dropout."""


class Translation(Writing[TokenPairs]):
    """What a recipe of this task does at each station on the way of the data."""

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
        """Tasks of `pipeline()` that the model is saved with; of a model of several languages, each direction too."""
        section, data = self.recipe.tokenizer, self.recipe.data
        pairs = {tuple(direction.split("-")) for direction in data.directions or ()}
        if section.source_language and section.target_language:
            pairs = {(section.source_language, section.target_language)}
        languages = {language for pair in pairs for language in pair}
        # a direction that was never trained can be asked for as well, if some other leads to its target
        asked = sorted({(source, target) for source in languages for _, target in pairs if source != target})
        return (*PIPELINES, *(f"translation_{source}_to_{target}" for source, target in asked))

    def row_steps(self) -> RowSteps:
        data = self.recipe.data
        return DirectionSteps(data) if data.directions is not None else RowSteps(data)

    # ---- text → tokens -----------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        """Train them on the training split, or load those that the recipe names."""
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

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> EncodedPairs:
        """Token ids of every split; the length filters apply to the training split only. A stream is encoded as it is
        read."""
        limit = position_limit(self.config(tokenizers))
        encoded = {
            name: encode_pairs(dataset, tokenizers, None if name == "train" else limit)
            for name, dataset in splits.datasets.items()
        }
        if splits.stream is not None:
            return EncodedPairs(encoded)
        keep, left_out = self.filter_lengths(encoded["train"], tokenizers)
        if not keep.any():
            raise DataError(
                f"no training example is left: {sum(left_out.values())} were left out by the length filters "
                f"of `data` ({', '.join(f'{name}: {n}' for name, n in left_out.items() if n)})"
            )
        kept = np.flatnonzero(keep)
        encoded["train"] = encoded["train"].select(kept)
        cut_anew = None
        if dropout := self.recipe.tokenizer.bpe_dropout:
            texts = splits.datasets["train"].select(kept)
            sources = (tokenizers.prefix + source for source in ColumnView(texts, "source"))
            cut_anew = CutAnew(encoded["train"], sources, ColumnView(texts, "target"), tokenizers, dropout, limit)
        return EncodedPairs(encoded, left_out, kept, cut_anew)

    def encode_split(self, rows: Dataset, tokenizers: Tokenizers, config: PreTrainedConfig) -> TokenPairs:
        return encode_pairs(rows, tokenizers, position_limit(config))

    def filter_name(self, name: str) -> str:
        return "the positions of the model" if name == POSITIONS else super().filter_name(name)

    def filter_lengths(self, pairs: TokenPairs, tokenizers: Tokenizers) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples the recipe trains on, and how many each filter leaves out (the first that applies counts)."""
        return self.filter_within(pairs, tokenizers, position_limit(self.config(tokenizers)))

    def filter_within(
        self, pairs: TokenPairs, tokenizers: Tokenizers, limit: int | None
    ) -> tuple[np.ndarray, dict[str, int]]:
        """The same for a model with so many positions."""
        data = self.recipe.data
        # what the tokenizer adds is no token of the text, so it does not count
        source = pairs.source.lengths - len(tokenizers.encode_empty_source())
        target = pairs.target.lengths - len(tokenizers.encode_empty_target())
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        too_long = longer > (data.max_length or np.inf)
        beyond = np.maximum(pairs.source.lengths, pairs.target.lengths) > (limit or np.inf)
        too_short = shorter < data.min_length
        uneven = longer > (data.max_length_ratio or np.inf) * np.maximum(shorter, 1)
        keep = np.ones(len(pairs), dtype=bool)
        left_out = {}
        filters = {
            "max_length": too_long,
            "min_length": too_short,
            "max_length_ratio": uneven,
            POSITIONS: beyond,
        }
        for name, refused in filters.items():
            left_out[name] = int((keep & refused).sum())
            keep &= ~refused
        return keep, left_out

    # ---- tokens → batches --------------------------------------------------------------------------------------------

    def plan(self, examples: TokenPairs, seed: int | None = None) -> BatchPlan:
        """The plan of training batches, by the seed of the recipe or another."""
        return self.plan_lengths([examples.source.lengths, examples.target.lengths], seed)

    def making(self, tokenizers: Tokenizers) -> StreamEncoder[TokenPairs]:
        data, train = self.recipe.data, self.recipe.train
        limit = position_limit(self.config(tokenizers))
        if data.max_length is not None:  # that a batch can hold the longest examples must not turn out in mid-training
            added = max(len(tokenizers.encode_empty_source()), len(tokenizers.encode_empty_target()))
            self.plan_lengths([np.full(train.micro_batches, min(data.max_length + added, limit or np.inf), np.int64)])

        def encode(rows: Dataset) -> tuple[TokenPairs, dict[str, int]]:
            pairs = encode_pairs(rows, tokenizers)
            keep, left_out = self.filter_within(pairs, tokenizers, limit)
            return pairs.select(np.flatnonzero(keep)), left_out

        return StreamEncoder(encode, TokenPairs.concat, self.plan)

    def batch_maker(self, encoded: Encoded[TokenPairs], tokenizers: Tokenizers, plan: Plan) -> MakeBatch:
        pad = tokenizers.source.pad_token_id
        if isinstance(plan, StreamPlan):
            return lambda indices, random: plan.examples.batch(indices, pad)
        assert isinstance(encoded, EncodedPairs)
        pairs, cut_anew = encoded.splits["train"], encoded.cut_anew
        if cut_anew is not None:
            return lambda indices, random: cut_anew.batch(indices, pad, random)
        return lambda indices, random: pairs.batch(indices, pad)

    def token_lists(self, examples: TokenPairs, tokenizers: Tokenizers) -> dict[str, TextTokens]:
        source, target = len(tokenizers.encode_empty_source()), len(tokenizers.encode_empty_target())
        return {
            "source": TextTokens(examples.source, tokenizers.source, source, "source"),
            "target": TextTokens(examples.target, tokenizers.target, target, "target", as_target=True),
        }

    def beyond_filters(self, examples: TokenPairs, tokenizers: Tokenizers) -> dict[str, int]:
        return self.filter_lengths(examples, tokenizers)[1]

    def unreachable_references(self, examples: TokenPairs) -> np.ndarray:
        lengths = examples.target.lengths
        return lengths[lengths > self.recipe.eval.max_new_tokens]

    def describe_batch(self, batch: Batch, tokenizers: Tokenizers) -> dict[str, TokenView]:
        read = TokenView(tokenizers.source, batch["input_ids"], batch["attention_mask"].bool())
        return {
            "source": read,
            "target": TokenView(tokenizers.target, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def config(self, tokenizers: Tokenizers) -> PreTrainedConfig:
        """The configuration of the model, new or pretrained."""
        section = self.recipe.model
        if section.pretrained is not None:
            return load_config(section.pretrained, section.settings)
        assert section.type is not None
        return config_class(section.type)(**section.settings, **vocabulary_settings(tokenizers))

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with weights by `train.seed`, or a pretrained one; in the precision of the recipe."""
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        if section.pretrained is not None:
            with plain_weights(section.pretrained) as folder:
                model = load_seq2seq(folder, section.settings)
            known = model.get_input_embeddings().num_embeddings
            suit_tokenizers(model, tokenizers)
            if self.recipe.peft.method is not None and model.get_input_embeddings().num_embeddings != known:
                raise RecipeError(
                    "peft.method: adapters have no vectors for the new language tags of the tokenizer. Train the model "
                    "itself first"
                )
        else:
            model = AutoModelForSeq2SeqLM.from_config(self.config(tokenizers), trust_remote_code=False)
        return model.to(getattr(torch, train.dtype))

    def load_model(self, place: str | Path) -> PreTrainedModel:
        return load_seq2seq(place)

    # ---- evaluation and what is left behind --------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded[TokenPairs],
        tokenizers: Tokenizers,
        split: str,
        evaluator: Evaluator,
        final: bool = True,
    ) -> Evaluation:
        assert isinstance(objective, Seq2SeqObjective)
        examples, texts, section = encoded.splits[split], splits.datasets[split], self.recipe.eval
        return evaluate_split(objective, examples, texts, tokenizers, section, self.num_beams(final), evaluator)

    def shown(self, row: dict[str, Any]) -> str:
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

    def batch_of(self, examples: TokenPairs, indices: np.ndarray, tokenizers: Tokenizers) -> Batch:
        return examples.batch(indices, tokenizers.source.pad_token_id)


def encode_pairs(dataset: Dataset, tokenizers: Tokenizers, limit: int | None = None) -> TokenPairs:
    """Source and target of every row as token ids, in the row's languages where the model is told them.

    With `limit`, texts that need more ids are cut, and the examples are counted.
    """
    sources, targets = (list(ColumnView(dataset, role)) for role in ("source", "target"))
    source_ids: list[list[int]] = [[] for _ in sources]
    target_ids: list[list[int]] = [[] for _ in targets]
    cut: set[int] = set()
    directions = row_directions(dataset, tokenizers)
    for source, target in dict.fromkeys(directions):
        rows = [row for row, direction in enumerate(directions) if direction == (source, target)]
        found, long = encode_within(limit, tokenizers.encode_source, [sources[row] for row in rows], source, target)
        wanted, too = encode_within(limit, tokenizers.encode_target, [targets[row] for row in rows], target)
        cut.update(rows[place] for place in (*long, *too))
        for row, one, other in zip(rows, found, wanted, strict=True):
            source_ids[row], target_ids[row] = one, other
    languages = None if (None, None) in directions else np.array([target for _, target in directions])
    return TokenPairs(RaggedTokens(source_ids), RaggedTokens(target_ids), languages, len(cut))


def row_directions(dataset: Dataset, tokenizers: Tokenizers) -> list[tuple[str | None, str | None]]:
    """Source and target language of every row; None where they are not told, or always the same."""
    if not tokenizers.languages.per_example or "target_language" not in dataset.column_names:
        return [(None, None)] * len(dataset)
    return list(zip(ColumnView(dataset, "source_language"), ColumnView(dataset, "target_language"), strict=True))
