"""How text is cut into tokens, for each kind of tokenizer, and how their vocabularies are learned.

All kinds but `char` and `byte_bpe` mark the beginning of a word with "▁" and set punctuation and symbols apart, so that
"(word)," and "word" share a token, and nothing is lost in joining them again. Marked text cannot hold "▁" itself (it
becomes "_"), and white space at both ends is cut off. `char` and `byte_bpe` keep all text as it is, spaces included.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from kit.errors import DataError, RecipeError

if TYPE_CHECKING:
    from kit.recipe.inputs import TokenizerSection

BOS, PAD, EOS, UNK = "<s>", "<pad>", "</s>", "<unk>"
SPECIAL_TOKENS = (BOS, PAD, EOS, UNK)
BERT_SPECIAL_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")
"""The special tokens of masked language models: the first four have the same place as those above."""
WORD_START = "▁"
CONTINUATION = "##"
SYMBOL = rf"{WORD_START}?[[\p{{P}}\p{{S}}\s]&&[^{WORD_START}]]"
# Longest word that WordPiece cuts up (it tries all parts); beyond, the word is unknown. Its default of 100 is a Thai or
# Chinese clause.
LONGEST_WORD = 1000


def train_vocabulary(
    section: "TokenizerSection", texts: Iterable[str], side: str, special: Sequence[str] = SPECIAL_TOKENS
) -> Tokenizer:
    """A tokenizer of the kind `section.train`, learned from texts that can be read more than once.

    The same text gives the same tokens with the same ids; those of the `special` ones are 0, 1, …, and the fourth of
    them stands for the unknown. Raises DataError if there is nothing to learn from and
    RecipeError if `vocab_size` cannot hold the alphabet.
    """
    if not any(text.strip() for text in texts):
        raise DataError(f"The {side} text is empty, so that no tokenizer can be trained on it.")
    tokenizer = LEARN[section.train](section, texts, list(special))
    if tokenizer.get_vocab_size() > section.vocab_size:
        raise too_small(section, tokenizer.get_vocab_size())
    if tokenizer.get_vocab_size() == len(special):
        raise DataError(
            f"tokenizer.min_frequency: nothing in the {side} text occurs {section.min_frequency} times. Set it to 1."
        )
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def too_small(section: "TokenizerSection", needed: int) -> RecipeError:
    return RecipeError(
        f"tokenizer.vocab_size: {section.vocab_size} cannot hold the special tokens and the characters of the text: "
        f"{section.train} needs at least {needed} here."
    )


def normalizer(section: "TokenizerSection", marked: bool) -> normalizers.Normalizer:
    forms: dict[str, list[normalizers.Normalizer]] = {
        "nfc": [normalizers.NFC()],
        "nfkc": [normalizers.NFKC()],
        "none": [],
    }
    steps = list(forms[section.normalize])
    if section.lowercase:
        # Lower case can undo the form ("İ" becomes two characters), and the form can bring capitals ("℡").
        steps += [normalizers.Lowercase(), *forms[section.normalize]]
    if marked:
        steps += [normalizers.Replace(WORD_START, "_"), normalizers.Strip()]
    return normalizers.Sequence(steps)


def marked(model: models.Model, section: "TokenizerSection", decoder: decoders.Decoder | None = None) -> Tokenizer:
    """A tokenizer of words that begin with the mark and of single symbols."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizer(section, marked=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(WORD_START, "always"), pre_tokenizers.Split(Regex(SYMBOL), "isolated")]
    )
    tokenizer.decoder = decoder or decoders.Metaspace(WORD_START, "always")
    return tokenizer


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    rest = iter(texts)
    while batch := list(islice(rest, 1000)):
        yield batch


def learn_words(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = marked(models.WordLevel(unk_token=special[3]), section)
    trainer = trainers.WordLevelTrainer(
        vocab_size=section.vocab_size,
        min_frequency=section.min_frequency,
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches(texts), trainer)
    return tokenizer


def learn_characters(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token=special[3]))
    tokenizer.normalizer = normalizer(section, marked=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        # All characters there are: a vocabulary that leaves out frequent ones is refused, not cut.
        vocab_size=0x110000,
        min_frequency=section.min_frequency,
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches(texts), trainer)
    return tokenizer


def learn_bpe(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = marked(models.BPE(unk_token=special[3]), section)
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size,
        min_frequency=section.min_frequency,
        special_tokens=special,
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches(texts), trainer)
    return tokenizer


def learn_byte_bpe(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """Subwords of bytes, as GPT-2 has them: all text is known, and comes back to the byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if section.vocab_size < len(special) + len(alphabet):
        raise too_small(section, len(special) + len(alphabet))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer(section, marked=False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size,
        min_frequency=section.min_frequency,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(batches(texts), trainer)
    return tokenizer


def learn_wordpiece(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """The library numbers the continuing characters in the order of a hash table that differs from process to process,
    and breaks ties between merges by number. Given in order beforehand they, and so all that follows, are fixed."""

    def learn(vocab_size: int, first: list[str]) -> dict[str, int]:
        tokenizer = marked(models.WordPiece(unk_token=special[3]), section)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=section.min_frequency,
            special_tokens=special + first,
            continuing_subword_prefix=CONTINUATION,
            show_progress=False,
        )
        tokenizer.train_from_iterator(batches(texts), trainer)
        return tokenizer.get_vocab()

    alphabet = learn(len(special), [])
    vocabulary = learn(section.vocab_size, sorted(token for token in alphabet if token.startswith(CONTINUATION)))
    model = models.WordPiece(
        vocabulary,
        unk_token=special[3],
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    # "#" is a symbol, so that no token of the text itself begins with two of them.
    joined = [decoders.Replace(Regex(f"^{CONTINUATION}"), ""), decoders.Metaspace(WORD_START, "always")]
    return marked(model, section, decoders.Sequence(joined))


def learn_unigram(section: "TokenizerSection", texts: Iterable[str], special: list[str]) -> Tokenizer:
    """The library finds the same pieces in every process, but their order, the last digits of their scores, and the
    scores of the rarest characters follow a hash table. Here the scores are rounded, the rarest characters get one
    score, and the pieces are sorted by score and then by text."""
    trained = marked(models.Unigram(), section)
    trainer = trainers.UnigramTrainer(
        vocab_size=section.vocab_size, special_tokens=special, unk_token=special[3], show_progress=False
    )
    try:
        trained.train_from_iterator(batches(texts), trainer)
    except Exception as error:
        if "not large enough" not in str(error):
            raise
        raise too_small(section, len(special) + len(alphabet(trained, texts))) from error
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    pieces = {piece: score for piece, score in vocabulary if piece not in special}
    # Characters that are no piece by merit are put in by the library, each 0.0001 above the one before.
    lowest = min(pieces.values())
    forced = lowest + 0.0001 * sum(len(piece) == 1 for piece in pieces)
    for piece, score in pieces.items():
        pieces[piece] = round(lowest if len(piece) == 1 and score < forced else score, 4)
    ranked = sorted(pieces.items(), key=lambda entry: (-entry[1], entry[0]))
    # With no room beyond the characters the library does not stop at the size; they come first, and the rest is cut.
    room = section.vocab_size - len(special) - sum(len(piece) == 1 for piece in pieces)
    if room < 0:
        raise too_small(section, section.vocab_size - room)
    longer = {piece for piece, _ in [entry for entry in ranked if len(entry[0]) > 1][:room]}
    kept = [entry for entry in ranked if len(entry[0]) == 1 or entry[0] in longer]
    model = models.Unigram([(token, 0.0) for token in special] + kept, 3)
    return marked(model, section)


def alphabet(tokenizer: Tokenizer, texts: Iterable[str]) -> set[str]:
    """The characters that a tokenizer sees."""
    normal = (tokenizer.normalizer.normalize_str(text) for text in texts)
    return {letter for text in normal for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text) for letter in word}


LEARN = {
    "word": learn_words,
    "char": learn_characters,
    "bpe": learn_bpe,
    "byte_bpe": learn_byte_bpe,
    "wordpiece": learn_wordpiece,
    "unigram": learn_unigram,
}
