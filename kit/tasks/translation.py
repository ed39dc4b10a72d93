"""Translation, in the widest sense: from one text to another."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from kit.data.batches import BatchPlan
from kit.data.bpe_dropout import CutAnew
from kit.data.examples import Pairs, TokenLists
from kit.data.rows import Texts
from kit.data.sources import Splits
from kit.data.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizers
from kit.errors import DataError, RecipeError
from kit.evaluation.predict import Evaluation, evaluate_split
from kit.hub import load_seq2seq
from kit.recipe import Recipe
from kit.recipe_model import config_class
from kit.training.objective import Batch, Objective, Seq2SeqObjective


@dataclass(frozen=True)
class Encoded:
    """Examples of each split as token ids, and how many training examples each filter left out."""

    splits: dict[str, Pairs]
    left_out: dict[str, int] = field(default_factory=dict)
    cut_anew: CutAnew | None = None  # training examples under tokenizer.bpe_dropout


class Translation:
    """What a recipe of this task does at each station on the way of the data."""

    pipelines = ("translation",)

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    # ---- text → tokens -----------------------------------------------------------------------------------------------

    def build_tokenizers(self, splits: Splits) -> Tokenizers:
        """Train them on the training split, or load those that the recipe names."""
        section = self.recipe.tokenizer
        pretrained = section.pretrained or self.recipe.model.pretrained
        if pretrained is not None:
            return load_pretrained_tokenizers(pretrained)
        train = splits.datasets["train"]
        return train_tokenizers(section, Texts(train, "source"), Texts(train, "target"))

    def encode(self, splits: Splits, tokenizers: Tokenizers) -> Encoded:
        """Token ids of every split; the length filters apply to the training split only."""
        encoded = {name: encode_pairs(dataset, tokenizers) for name, dataset in splits.datasets.items()}
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
            cut_anew = CutAnew(encoded["train"], Texts(texts, "source"), Texts(texts, "target"), tokenizers, dropout)
        return Encoded(encoded, left_out, cut_anew)

    def filter_lengths(self, pairs: Pairs, tokenizers: Tokenizers) -> tuple[np.ndarray, dict[str, int]]:
        """Which examples the recipe trains on, and how many each filter leaves out (the first that applies counts)."""
        data = self.recipe.data
        # what the tokenizer adds is no token of the text, so it does not count
        source = pairs.source.lengths - len(tokenizers.encode_source([""])[0])
        target = pairs.target.lengths - len(tokenizers.encode_target([""])[0])
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        too_long = longer > (data.max_length or np.inf)
        too_short = shorter < data.min_length
        uneven = longer > (data.max_length_ratio or np.inf) * np.maximum(shorter, 1)
        keep = np.ones(len(pairs), dtype=bool)
        left_out = {}
        for name, refused in (("max_length", too_long), ("min_length", too_short), ("max_length_ratio", uneven)):
            left_out[name] = int((keep & refused).sum())
            keep &= ~refused
        return keep, left_out

    # ---- tokens → batches --------------------------------------------------------------------------------------------

    def plan(self, pairs: Pairs) -> BatchPlan:
        """The plan of training batches."""
        train = self.recipe.train
        by_tokens = train.tokens_per_batch is not None
        return BatchPlan(
            [pairs.source.lengths, pairs.target.lengths],
            seed=train.seed,
            size=train.tokens_per_batch or train.batch_size or 1,
            unit="tokens" if by_tokens else "examples",
            micro_batches=train.micro_batches,
        )

    def batch_maker(
        self, encoded: Encoded, tokenizers: Tokenizers
    ) -> Callable[[np.ndarray, np.random.Generator], Batch]:
        """From indices of training examples to tensors; what is random in them comes from the generator."""
        pairs, cut_anew, pad = encoded.splits["train"], encoded.cut_anew, tokenizers.source.pad_token_id
        if cut_anew is not None:
            return lambda indices, random: cut_anew.batch(indices, pad, random)
        return lambda indices, random: pairs.batch(indices, pad)

    # ---- model and loss ----------------------------------------------------------------------------------------------

    def build_model(self, tokenizers: Tokenizers) -> PreTrainedModel:
        """A new model with weights by `train.seed`, or a pretrained one; in the precision of the recipe."""
        section, train = self.recipe.model, self.recipe.train
        torch.manual_seed(train.seed)
        if section.pretrained is not None:
            model = load_seq2seq(section.pretrained, section.settings)
        else:
            assert section.type is not None
            config = config_class(section.type)(**section.settings, **vocabulary_settings(tokenizers))
            model = AutoModelForSeq2SeqLM.from_config(config)
        known = model.get_input_embeddings().num_embeddings
        if known < len(tokenizers.source):
            raise RecipeError(
                f"tokenizer.pretrained has {len(tokenizers.source)} tokens, but model.pretrained knows only {known}: "
                "use the model's own tokenizer by leaving tokenizer.pretrained out"
            )
        return model.to(getattr(torch, train.dtype))

    def objective(self, model: PreTrainedModel) -> Seq2SeqObjective:
        train = self.recipe.train
        return Seq2SeqObjective(model, train.label_smoothing_factor, train.normalize_by)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        objective: Objective,
        splits: Splits,
        encoded: Encoded,
        tokenizers: Tokenizers,
        split: str,
        num_beams: int,
        accelerator: Accelerator,
    ) -> Evaluation:
        """Figures and predictions of a split."""
        assert isinstance(objective, Seq2SeqObjective)
        examples, texts = encoded.splits[split], splits.datasets[split]
        return evaluate_split(objective, examples, texts, tokenizers, self.recipe.eval, num_beams, accelerator)


def encode_pairs(dataset: Dataset, tokenizers: Tokenizers) -> Pairs:
    """Source and target of every row as token ids."""
    return Pairs(
        TokenLists(tokenizers.encode_source(list(Texts(dataset, "source")))),
        TokenLists(tokenizers.encode_target(list(Texts(dataset, "target")))),
    )


def vocabulary_settings(tokenizers: Tokenizers) -> dict[str, Any]:
    """What the tokenizers decide about a new model."""
    target = tokenizers.target
    return {
        "vocab_size": len(tokenizers.source),
        "decoder_vocab_size": len(target),
        "separate_vocabularies": not tokenizers.shared,
        "bos_token_id": target.bos_token_id,
        "pad_token_id": target.pad_token_id,
        "eos_token_id": target.eos_token_id,
        "decoder_start_token_id": target.bos_token_id,
    }
