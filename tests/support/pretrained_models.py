"""Tiny models of the pretrained families with random weights, each with a tokenizer of its class.

The tokenizers of Marian and M2M need a package that is not among kit's: a fast tokenizer stands in for Marian's, and
M2M is met as NLLB, which is the same model with another tokenizer.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    BartConfig,
    BartTokenizer,
    M2M100Config,
    MarianConfig,
    MBart50Tokenizer,
    MBartConfig,
    MBartTokenizer,
    NllbTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    T5Config,
    T5Tokenizer,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz:"
CODES = {"nllb": ("deu_Latn", "eng_Latn", "fra_Latn"), "mbart50": ("de_DE", "en_XX", "fr_XX")}
SIZES = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 40, "dropout": 0.0, "init_std": 0.1,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A pretrained family: its configuration, its tokenizer, and the recipe keys that it needs."""

    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    recipe: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> Path:
        """Write a model with random weights, in the layout of the Hub."""
        from transformers import AutoModelForSeq2SeqLM

        torch.manual_seed(0)
        model = AutoModelForSeq2SeqLM.from_config(self.config)
        model.generation_config.update(**self.generation)
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return folder


def pieces(first: list[str], score: float = 0.0) -> list[tuple[str, float]]:
    """A unigram vocabulary of letters behind some special tokens."""
    return [*((token, score) for token in first), ("▁", -2.0), *((letter, -3.0) for letter in LETTERS)]


def marian() -> Family:
    backend = Tokenizer(models.Unigram([*pieces(["</s>", "<unk>"]), ("<pad>", 0.0)], unk_id=1))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=40
    )
    pad = tokenizer.pad_token_id
    config = MarianConfig(vocab_size=len(tokenizer), pad_token_id=pad, decoder_start_token_id=pad, **SIZES)
    return Family(config, tokenizer, generation={"bad_words_ids": [[pad]], "max_length": 40, "num_beams": 3})


def t5() -> Family:
    tokenizer = T5Tokenizer(vocab=pieces(["<pad>", "</s>", "<unk>"]), extra_ids=2)
    config = T5Config(
        vocab_size=len(tokenizer) + 3, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0,
    )  # fmt: skip
    return Family(config, tokenizer, recipe={"data": {"source_prefix": "turn: "}, "train": {"max_steps": 120}})


def bart() -> Family:
    words = ["<s>", "<pad>", "</s>", "<unk>", "Ġ", *LETTERS, "<mask>"]
    tokenizer = BartTokenizer(vocab={word: number for number, word in enumerate(words)}, merges=[])
    return Family(
        BartConfig(vocab_size=len(tokenizer), **SIZES),
        tokenizer,
        generation={"forced_bos_token_id": 0, "min_length": 30, "no_repeat_ngram_size": 3},
    )


def mbart() -> Family:
    """The first generation, with the language code behind the text: kit rejects it."""
    tokenizer = MBartTokenizer(vocab=pieces(["<s>", "<pad>", "</s>", "<unk>"]))
    languages = {"source_language": "de_DE", "target_language": "ro_RO"}
    return Family(MBartConfig(vocab_size=len(tokenizer), **SIZES), tokenizer, {"tokenizer": languages})


def mbart50() -> Family:
    vocabulary = [*pieces(["<s>", "<pad>", "</s>", "<unk>"]), *((code, 0.0) for code in CODES["mbart50"])]
    tokenizer = MBart50Tokenizer(vocab=vocabulary)
    config = MBartConfig(vocab_size=len(tokenizer), decoder_start_token_id=2, **SIZES)
    return Family(config, tokenizer, {"tokenizer": {"source_language": "de_DE", "target_language": "en_XX"}})


def nllb() -> Family:
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS]
    tokenizer = NllbTokenizer(
        vocab={word: number for number, word in enumerate(words)}, extra_special_tokens=list(CODES["nllb"])
    )
    config = M2M100Config(vocab_size=len(tokenizer), encoder_layerdrop=0.0, decoder_layerdrop=0.0, **SIZES)
    return Family(config, tokenizer, {"tokenizer": {"source_language": "deu_Latn", "target_language": "eng_Latn"}})


FAMILIES = {"marian": marian, "t5": t5, "bart": bart, "mbart50": mbart50, "nllb": nllb}
