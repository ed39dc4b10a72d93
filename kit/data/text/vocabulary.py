"""Training of vocabularies: how each kind of tokenizer splits text into tokens, and how it learns its vocabulary.

All kinds except `char` and `byte_bpe` mark the start of a word with "▁" and split off punctuation and symbols, so that
"(word)," and "word" share a token and decoding restores all spaces. Such text cannot contain "▁" itself (it becomes
"_"), and white space at both ends is stripped. `char` and `byte_bpe` preserve all text, including spaces.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from kit.errors import DataError, RecipeError

if TYPE_CHECKING:
    from kit.recipe.model import TokenizerSection

BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (BOS, PAD, EOS, UNK)
BERT_SPECIAL_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
"""Special tokens of masked language models: the first four have the same ids as the corresponding ones above."""
WORD_START = "▁"
CONTINUATION = "##"
SYMBOL = rf"{WORD_START}?[[\p{{P}}\p{{S}}\s]&&[^{WORD_START}]]"
# The space that a mark stands for is removed before the words are marked, so that their offsets start after it.
SPACE_BEFORE_WORD = " (?! )"
# Longest word that WordPiece splits (in quadratic time); a longer one is unknown. Its default of 100 is shorter than a
# Thai or Chinese clause, which is written without spaces.
MAX_WORD_LENGTH = 1000


def train_vocabulary(
    section: "TokenizerSection", texts: Iterable[str], side: str, special: Sequence[str] = SPECIAL_TOKENS
) -> Tokenizer:
    """A tokenizer of the kind `section.train`, trained on texts that can be iterated repeatedly.

    The same text gives the same tokens with the same ids. The `special` tokens have the ids 0, 1, …; the fourth one is
    the unknown token. Raises DataError if there is nothing to learn from, and RecipeError if `vocab_size` is smaller
    than the alphabet.
    """
    if not any(text.strip() for text in texts):
        raise DataError(f"The {side} text is empty: no tokenizer can be trained on it.")
    tokenizer = TRAINERS[section.train](section, texts, list(special))
    if tokenizer.get_vocab_size() > section.vocab_size:
        raise vocab_too_small(section, tokenizer.get_vocab_size())
    if tokenizer.get_vocab_size() == len(special):
        raise DataError(
            f"tokenizer.min_frequency: nothing in the {side} text occurs {section.min_frequency} times. Set it to 1."
        )
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def vocab_too_small(section: "TokenizerSection", needed: int) -> RecipeError:
    return RecipeError(
        f"tokenizer.vocab_size: {section.vocab_size} is too small for the special tokens and the characters of the "
        f"text: {section.train} needs at least {needed} here."
    )


def normalizer(section: "TokenizerSection", word_marks: bool) -> normalizers.Normalizer:
    forms: dict[str, list[normalizers.Normalizer]] = {
        "nfc": [normalizers.NFC()],
        "nfkc": [normalizers.NFKC()],
        "none": [],
    }
    steps = list(forms[section.normalize])
    if section.lowercase:
        # Lowercasing can undo the Unicode form ("İ" becomes two characters), and the form can introduce capitals ("℡").
        steps += [normalizers.Lowercase(), *forms[section.normalize]]
    if word_marks:
        steps += [normalizers.Replace(WORD_START, "_"), normalizers.Strip()]
    return normalizers.Sequence(steps)


def word_tokenizer(model: models.Model, section: "TokenizerSection") -> Tokenizer:
    """A tokenizer that splits text into words, which start with the mark, and single symbols."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer(section, word_marks=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPACE_BEFORE_WORD), "removed"), *mark_words()]
    )
    tokenizer.decoder = decoders.Metaspace(WORD_START, "always")
    return tokenizer


def mark_words() -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Metaspace(WORD_START, "always"), pre_tokenizers.Split(Regex(SYMBOL), "isolated")]


def unknown_word(token: str) -> decoders.Decoder:
    """A decoder that marks the unknown token as a word. It stands for one, or for a symbol, which is rarer."""
    return decoders.Replace(token, f"{WORD_START}{token}")


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while batch := list(islice(rest, 1000)):
        yield batch


def learn(
    tokenizer: Tokenizer,
    trainer_class: Callable[..., trainers.Trainer],
    section: "TokenizerSection",
    texts: Iterable[str],
    **settings: Any,
) -> Tokenizer:
    """Train a tokenizer with the vocabulary size and the minimum frequency of the recipe, or those in `settings`."""
    settings = {"vocab_size": section.vocab_size, "min_frequency": section.min_frequency, **settings}
    trainer = trainer_class(**settings, show_progress=False)
    tokenizer.train_from_iterator(batches(texts), trainer)
    return tokenizer


def train_words(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = word_tokenizer(models.WordLevel(unk_token=special[3]), section)
    tokenizer.decoder = decoders.Sequence([unknown_word(special[3]), decoders.Metaspace(WORD_START, "always")])
    return learn(tokenizer, trainers.WordLevelTrainer, section, texts, special_tokens=special)


def train_characters(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=special[3]))
    tokenizer.normalizer = normalizer(section, word_marks=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    # all of Unicode: a vocabulary without some of the characters is an error, reported by train_vocabulary
    return learn(
        tokenizer, trainers.WordLevelTrainer, section, texts, special_tokens=special, vocab_size=sys.maxunicode + 1
    )


def train_bpe(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = word_tokenizer(models.BPE(unk_token=special[3]), section)
    return learn(tokenizer, trainers.BpeTrainer, section, texts, special_tokens=special)


def train_byte_bpe(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """Byte-level BPE as in GPT-2: no text is unknown, and decoding restores every byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if section.vocab_size < len(special) + len(alphabet):
        raise vocab_too_small(section, len(special) + len(alphabet))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer(section, word_marks=False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=True)
    return learn(tokenizer, trainers.BpeTrainer, section, texts, special_tokens=special, initial_alphabet=alphabet)


def train_wordpiece(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """WordPiece, made deterministic.

    `tokenizers` numbers the continuation characters in the order of a hash table, which differs between processes, and
    breaks ties between merges by number. Passing them as special tokens in sorted order fixes all that follows.
    """

    def train(vocab_size: int, initial: list[str]) -> dict[str, int]:
        tokenizer = word_tokenizer(models.WordPiece(unk_token=special[3]), section)
        return learn(
            tokenizer,
            trainers.WordPieceTrainer,
            section,
            texts,
            vocab_size=vocab_size,
            special_tokens=special + initial,
            continuing_subword_prefix=CONTINUATION,
        ).get_vocab()

    alphabet = train(len(special), [])
    vocabulary = train(section.vocab_size, sorted(token for token in alphabet if token.startswith(CONTINUATION)))
    model = models.WordPiece(
        vocabulary,
        unk_token=special[3],
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=MAX_WORD_LENGTH,
    )
    # "#" is a symbol and thus a token by itself, so no token of the text starts with two of them.
    tokenizer = word_tokenizer(model, section)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(Regex(f"^{CONTINUATION}"), ""),
            unknown_word(special[3]),
            decoders.Metaspace(WORD_START, "always"),
        ]
    )
    # The space stays in the offsets of a word: the token-classification pipeline of transformers takes a token of
    # WordPiece for a part of the word before it if it is longer than its text, as it would be by its mark.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(mark_words())
    return tokenizer


def train_unigram(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """Unigram, made deterministic.

    `tokenizers` finds the same pieces in every process, but their order, the last digits of their scores, and the
    scores of the rarest characters follow a hash table. So scores are rounded, the rarest characters get the same
    score, and pieces are sorted by score and then by text.
    """
    trained = word_tokenizer(models.Unigram(), section)
    trainer = trainers.UnigramTrainer(
        vocab_size=section.vocab_size, special_tokens=special, unk_token=special[3], show_progress=False
    )
    try:
        trained.train_from_iterator(batches(texts), trainer)
    except Exception as error:
        if "not large enough" not in str(error):
            raise
        raise vocab_too_small(section, len(special) + len(alphabet(trained, texts))) from error
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    pieces = {piece: score for piece, score in vocabulary if piece not in special}
    # Characters that did not become a piece are added by the library, each with a score 0.0001 above the one before.
    lowest = min(pieces.values())
    highest_added = lowest + 0.0001 * sum(len(piece) == 1 for piece in pieces)
    for piece, score in pieces.items():
        pieces[piece] = round(lowest if len(piece) == 1 and score < highest_added else score, 4)
    ranked = sorted(pieces.items(), key=lambda entry: (-entry[1], entry[0]))
    # If the characters fill the vocabulary, the library exceeds its size: keep them, and truncate the longer pieces.
    room = section.vocab_size - len(special) - sum(len(piece) == 1 for piece in pieces)
    if room < 0:
        raise vocab_too_small(section, section.vocab_size - room)
    longer = {piece for piece, _ in [entry for entry in ranked if len(entry[0]) > 1][:room]}
    selected = [entry for entry in ranked if len(entry[0]) == 1 or entry[0] in longer]
    model = models.Unigram([(token, 0.0) for token in special] + selected, 3)
    return word_tokenizer(model, section)


def alphabet(tokenizer: Tokenizer, texts: Iterable[str]) -> set[str]:
    """The characters of the text after normalization and pre-tokenization."""
    normalized = (tokenizer.normalizer.normalize_str(text) for text in texts)
    return {
        letter for text in normalized for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text) for letter in word
    }


TRAINERS = {
    "word": train_words,
    "char": train_characters,
    "bpe": train_bpe,
    "byte_bpe": train_byte_bpe,
    "wordpiece": train_wordpiece,
    "unigram": train_unigram,
}
