"""Masked language modeling: predict masked tokens of packed blocks or of pairs of segments, like BERT."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from datasets import Dataset
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kit.cards.markdown import quoted, table
from kit.cards.tables import predicted_rows
from kit.data.batching.ragged import IGNORE_INDEX, RaggedTokens
from kit.data.batching.token_cache import Arrays, map_in_chunks
from kit.data.rows import ColumnView
from kit.data.shortcuts import LabeledPairs
from kit.data.text.sentences import splitter_version
from kit.data.text.tokenizer import Tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.evaluation import Evaluation
from kit.evaluation.evaluator import Evaluator
from kit.prediction.rows import PredictOptions
from kit.pretrained.architecture import is_causal_lm, is_saved_as
from kit.pretrained.folder import ModelFolder
from kit.pretrained.loading import BuiltModel
from kit.system.files import read_json
from kit.tasks.families.language_modeling.task import (
    STREAM,
    LanguageModelingTask,
    LanguageModelState,
)
from kit.tasks.masked_lm.evaluation import masked_figures
from kit.tasks.masked_lm.examples import MaskedExamples
from kit.tasks.masked_lm.inference import MaskFiller
from kit.tasks.masked_lm.masking import Masking
from kit.tasks.masked_lm.recipe import MaskedLMRecipe
from kit.tasks.masked_lm.samples import sample_predictions
from kit.tasks.masked_lm.sentence_pairs import LABEL_NAMES, SCHEME, make_pairs
from kit.tasks.masked_lm.tokenization import DocumentTokenizer, SentenceTokenizer
from kit.tasks.stages import Encoded, TextTokens, TokenView
from kit.training.lm_objectives import MaskedLMObjective
from kit.training.objective import Batch, Objective

ONE_SENTENCE, UNCOUPLED = "one_sentence", "uncoupled"
PAIR_FILTERS = {
    ONE_SENTENCE: "data.pairs (documents of one sentence have no second segment)",
    UNCOUPLED: "data.pairs (no other document has a segment left to exchange)",
}
"""What makes no pair, and why, by name."""


class MaskedLM(LanguageModelingTask[MaskedExamples]):
    """Masked language modeling, the pretraining of BERT, optionally with pairs of segments."""

    tokenizer_kind: ClassVar[Literal["masked", "causal"]] = "masked"
    recipe: MaskedLMRecipe

    command: ClassVar[Literal["generate", "predict"]] = "predict"

    @classmethod
    def accepts(cls, config: PreTrainedConfig) -> bool:
        saved_by = (AutoModelForMaskedLM, AutoModelForPreTraining)  # the second has causal models, too
        return not is_causal_lm(config) and any(is_saved_as(config, auto_class) for auto_class in saved_by)

    @classmethod
    def predictor(cls, folder: ModelFolder, options: PredictOptions) -> MaskFiller:
        return MaskFiller(folder, options)

    @property
    def auto_class(self) -> Any:
        return AutoModelForMaskedLM if self.recipe.data.pairs == "none" else AutoModelForPreTraining

    @property
    def pair_names(self) -> tuple[str, str]:
        """The names of the two labels of pairs."""
        return LABEL_NAMES[self.recipe.data.pairs]

    # ---- data --------------------------------------------------------------------------------------------------------

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        for name in ("mask", "cls", "sep", "pad"):
            if getattr(tokenizer, f"{name}_token_id") is None:
                raise RecipeError(f"tokenizer.pretrained: it has no {name} token, which masked language models need.")

    def encode(self, rows: Dataset, state: LanguageModelState, split: str) -> Encoded[MaskedExamples]:
        encoded = super().encode(rows, state, split)
        if split != "train" and not encoded.examples.can_be_evaluated:
            data = self.recipe.data
            raise DataError(
                f"data.mlm_probability: {data.path} has so little text in {split} that no token of it is masked with "
                f"{data.mlm_probability}, so there is nothing to measure. Use more text."
            )
        return encoded

    def encode_documents(
        self,
        rows: Dataset,
        tokenizers: Tokenizers,
        split: str,
        workers: int = 1,
        advance: Callable[[int], object] = lambda documents: None,
    ) -> MaskedExamples:
        tokenizer, data = tokenizers.source, self.recipe.data
        masking, texts = self.masking_settings(tokenizer), ColumnView(rows, "text")
        if data.pairs == "none":
            documents = RaggedTokens.concat(list(map_in_chunks(texts, DocumentTokenizer(tokenizer), workers, advance)))
            return MaskedExamples.of_blocks(documents, tokenizer, data.block_size, **masking)
        work = SentenceTokenizer(tokenizer, data.language)
        documents_of_sentences = [
            document for portion in map_in_chunks(texts, work, workers, advance) for document in portion
        ]
        passes = data.pair_passes if split in ("train", STREAM) else 1
        swap = data.pairs == "sentence_order"
        room = data.block_size - 3  # beside [CLS] and two [SEP]
        made = [
            make_pairs(documents_of_sentences, room, np.random.default_rng([data.seed, number]), swap)
            for number in range(passes)
        ]
        pairs = [pair for of_pass in made for pair in of_pass.pairs]
        if not pairs and split != STREAM:  # a part of a stream may well hold a single document
            raise self.no_pairs(split, len(documents_of_sentences), made[0].one_sentence)
        left_out = {ONE_SENTENCE: made[0].one_sentence, UNCOUPLED: sum(of_pass.uncoupled for of_pass in made)}
        return MaskedExamples.of_pairs(pairs, tokenizer, left_out=left_out, **masking)

    def no_pairs(self, split: str, documents: int, one_sentence: int) -> DataError:
        """The error to raise for text of which no pair can be made."""
        data = self.recipe.data
        needed = "at least one document" if data.pairs == "sentence_order" else "at least two documents"
        return DataError(
            f"data.pairs: {data.path} has no pair of segments in {split}: {data.pairs} needs {needed} of several "
            f"sentences, and of the {documents:,} documents there {one_sentence:,} have one. data.documents decides "
            "what a document is: a row or line, the text between blank lines or headings, or a file."
        )

    def masking_settings(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """The fields of `MaskedExamples` that depend on the tokenizer and on the keys of masking."""
        data, special = self.recipe.data, np.array(sorted(tokenizer.all_special_ids))
        ordinary = np.setdiff1d(np.arange(len(tokenizer)), special)
        return {
            "masking": Masking(tokenizer.mask_token_id, ordinary, data.mlm_probability),
            "special": special,
            "pad": tokenizer.pad_token_id,
            "whole_word_mask": data.whole_word_mask,
        }

    def left_out(self, examples: MaskedExamples) -> Mapping[str, int]:
        return examples.left_out

    def cache_key(self, split: str) -> dict[str, Any]:
        data = self.recipe.data
        settings: dict[str, Any] = {"block_size": data.block_size, "pairs": data.pairs}
        if data.pairs != "none":
            passes = data.pair_passes if split == "train" else 1
            settings |= {"passes": passes, "seed": data.seed, "language": data.language, "splitter": splitter_version()}
            settings["scheme"] = SCHEME
        return settings

    def arrays(self, examples: MaskedExamples) -> Arrays:
        pairs = {"first_lengths": examples.first_lengths, "pair_labels": examples.pair_labels}
        of_pairs = {name: array for name, array in pairs.items() if array is not None}
        if of_pairs:
            of_pairs["left_out"] = np.array([examples.left_out[name] for name in PAIR_FILTERS])
        return {"tokens": examples.rows.flat, "lengths": examples.rows.lengths, **of_pairs}

    def from_arrays(self, arrays: Arrays, tokenizer: PreTrainedTokenizerBase) -> MaskedExamples:
        rows = RaggedTokens.from_flat(arrays["tokens"], arrays["lengths"])
        counts = arrays["left_out"].tolist() if "left_out" in arrays else []
        return MaskedExamples(
            rows, arrays.get("first_lengths"), arrays.get("pair_labels"), **self.masking_settings(tokenizer),
            left_out=dict(zip(PAIR_FILTERS, counts, strict=False)),
        )  # fmt: skip

    def concat(self, parts: Sequence[MaskedExamples], tokenizer: PreTrainedTokenizerBase) -> MaskedExamples:
        firsts = [part.first_lengths for part in parts if part.first_lengths is not None]
        labels = [part.pair_labels for part in parts if part.pair_labels is not None]
        return MaskedExamples(
            RaggedTokens.concat([part.rows for part in parts]),
            np.concatenate(firsts) if firsts else None,
            np.concatenate(labels) if labels else None,
            **self.masking_settings(tokenizer),
        )

    # ---- batches -----------------------------------------------------------------------------------------------------

    def collate(
        self, examples: MaskedExamples, indices: np.ndarray, random: np.random.Generator, state: LanguageModelState
    ) -> Batch:
        return examples.batch(indices, random)

    def token_lists(self, examples: MaskedExamples, state: LanguageModelState) -> dict[str, TextTokens]:
        lists = RaggedTokens(examples.rows[i] >> 1 for i in range(len(examples)))
        return {"text": TextTokens(lists, state.tokenizers.source)}

    def describe_batch(self, batch: Batch, state: LanguageModelState) -> dict[str, TokenView]:
        tokenizer = state.tokenizers.source
        return {
            "reads": TokenView(tokenizer, batch["input_ids"], batch["attention_mask"].bool()),
            "predicts": TokenView(tokenizer, batch["labels"], batch["labels"] != IGNORE_INDEX),
        }

    def describe_labels(self, batch: Batch, state: LanguageModelState) -> dict[str, list[str]]:
        labels = batch.get("next_sentence_label")
        return {} if labels is None else {"pair": [self.pair_names[label] for label in labels.tolist()]}

    def labeled_pairs(self, rows: Dataset, examples: MaskedExamples, state: LanguageModelState) -> LabeledPairs | None:
        if examples.segments is None or examples.pair_labels is None:
            return None
        sides = ("first segment", "second segment")
        return LabeledPairs(*examples.segments, examples.pair_labels, self.pair_names, sides, state.tokenizers.source)

    def filter_name(self, name: str) -> str:
        return PAIR_FILTERS.get(name) or super().filter_name(name)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, state: LanguageModelState) -> BuiltModel:
        built = super().build_model(state)
        if self.recipe.data.pairs != "none" and not MaskedLMObjective(built.model).with_pairs:
            raise RecipeError(
                f"data.pairs: a {built.model.config.model_type} has no head that predicts whether two segments belong "
                "together. Use model.type: bert, or data.pairs: none."
            )
        return built

    def objective(self, model: PreTrainedModel, state: LanguageModelState) -> MaskedLMObjective:
        return MaskedLMObjective(model)

    # ---- evaluation and results --------------------------------------------------------------------------------------

    def evaluate(
        self,
        evaluator: Evaluator,
        objective: Objective,
        rows: Dataset,
        encoded: Encoded[MaskedExamples],
        state: LanguageModelState,
        *,
        final: bool = True,
    ) -> Evaluation:
        """Loss and accuracy at masked positions and of pairs, and a few samples."""
        assert isinstance(objective, MaskedLMObjective)
        examples, count, tokenizer = encoded.examples, self.recipe.eval.examples, state.tokenizers.source
        figures, losses = masked_figures(objective, examples, tokenizer, evaluator)
        samples = sample_predictions(objective, examples, tokenizer, count, evaluator.device)
        return Evaluation(figures, samples, losses=losses)

    def format_prediction(self, row: dict[str, Any]) -> str:
        words = [
            f"{predicted} =" if predicted == expected else f"{predicted} ≠ {expected}"
            for predicted, expected in zip(row["prediction"], row["target"], strict=True)
        ]
        return f"{row['text'][:200]} → {', '.join(words[:8])}"

    def example_texts(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return (row["text"],)

    def card_sections(self, results: Mapping[str, Any], run_folder: Path) -> dict[str, Any]:
        split, rows = predicted_rows(run_folder, self.recipe.eval.examples)
        examples = [(row["text"], " ".join(row["target"]), " ".join(row["prediction"])) for row in rows]
        return {
            "call": quoted(f"The {mask_token(run_folder)} statement"),
            "results_note": "The loss is that of masked tokens, in nats, plus that of sentence pairs if there are any.",
            "examples_split": split,
            "examples_table": table(("text", "masked", "predicted"), examples),
        }

    # ---- proofs ------------------------------------------------------------------------------------------------------

    def proof_batch(
        self, examples: MaskedExamples, indices: np.ndarray, state: LanguageModelState, limit: int | None
    ) -> Batch:
        return examples.batch(indices, np.random.default_rng(0))


def mask_token(run_folder: Path) -> str:
    """The mask token of the model of a run, which a pretrained tokenizer determines: RoBERTa's is <mask>."""
    file = run_folder / "model" / "tokenizer_config.json"
    token = read_json(file, "a tokenizer configuration").get("mask_token") if file.is_file() else None
    return str(token["content"] if isinstance(token, dict) else token or "[MASK]")
