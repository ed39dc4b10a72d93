"""Dates in many scripts, with tokenizers and a tiny model that answer questions about them."""

from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast

from kit.data.builtin.dates import LANGUAGES, days_of_splits, formats

DAYS = days_of_splits(0)["train"][:9]
TEXTS = {
    language: " ".join(style.write(day) + "." for style in formats(language)[:4] for day in DAYS[:3])
    for language in LANGUAGES
}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
KINDS = ("wordpiece", "bytes", "metaspace")
"""Kinds of tokenizers: of words and their parts, of bytes, and of pieces that include the space before them."""


@cache
def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    """A tokenizer of this kind, trained on dates in many scripts."""
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL, show_progress=False)
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=600, special_tokens=SPECIAL, unk_token="[UNK]", show_progress=False
        )
    tokenizer.train_from_iterator(TEXTS.values(), trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def tiny_model(**config_settings: Any) -> BertForQuestionAnswering:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=600,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        initializer_range=1.0,  # answers must differ
        **config_settings,
    )
    return BertForQuestionAnswering(config).eval()
