"""Tokenizers: lossless, deterministic in every process, and loadable without kit."""

import json
import os
import subprocess
import sys
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kit.data.builtin import load_builtin
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers, train_tokenizers
from kit.errors import DataError, HubError, RecipeError, RunError
from kit.recipe.model import Seq2SeqTokenizerSection

KINDS = ("word", "char", "bpe", "wordpiece", "unigram")
LETTERS = "ab ▁çé中日ñ.,!?'\"()<>/#_-€s\tunkpd\u3000\u2028İＡ1"
SENTENCES = [
    *LETTERS,
    *(f"a{letter}{letter}a {letter} b" for letter in LETTERS),
    "</s> <unk> <pad> <s> ##a # ## b##",
    "the cat sat on the mat, the dog did not!",
    "Größe ist nicht alles (aber viel).",
]
BOS, PAD, EOS, UNK = range(4)
SPECIAL = ["</s>", "<s>", "<unk>", "<pad>", "##a", " ", "a"]


def section(kind: str, **keys) -> Seq2SeqTokenizerSection:
    frequency = {} if kind == "unigram" else {"min_frequency": 1}
    return Seq2SeqTokenizerSection(**({"train": kind, "vocab_size": 400, **frequency} | keys))


def normal(tokenizers: Tokenizers, text: str) -> str:
    return tokenizers.target.backend_tokenizer.normalizer.normalize_str(text)


@cache
def trained(kind: str, form: str = "nfc", lowercase: bool = False) -> Tokenizers:
    return train_tokenizers(section(kind, normalize=form, lowercase=lowercase), SENTENCES, SENTENCES)


@settings(deadline=None)
@given(
    text=st.text(LETTERS, max_size=30)
    | st.lists(st.sampled_from(["</s>", "<s>", "<unk>", "##a", " ", "a"])).map("".join),
    kind=st.sampled_from([kind for kind in KINDS if kind != "word"]),
    form=st.sampled_from(["nfc", "nfkc", "none"]),
    lowercase=st.booleans(),
)
def test_decoding_restores_the_encoded_text(text, kind, form, lowercase):
    tokenizers = trained(kind, form, lowercase)
    expected = normal(tokenizers, text)
    ids = tokenizers.encode_target([text])
    assert UNK not in ids[0]
    assert tokenizers.decode(ids) == [expected]
    assert normal(tokenizers, expected) == expected
    if kind == "char" and form == "none" and not lowercase:
        assert expected == text


@settings(deadline=None)
@given(words=st.lists(st.sampled_from([*["the", "cat", "sat", "on", "mat", "dog"], *".,!?()'#", "</s>", " "])))
def test_known_words_keep_all_their_spaces(words):
    joined = "".join(f"{word} " if word.isalpha() else word for word in words)
    tokenizers = train_tokenizers(section("word"), [joined, "a"], [])
    assert tokenizers.decode(tokenizers.encode_target([joined])) == [joined.strip()]


@settings(deadline=None)
@given(text=st.text(LETTERS, max_size=30), kind=st.sampled_from(["word", "bpe", "byte_bpe", "unigram"]))
def test_offsets_leave_out_the_space_before_a_word(text, kind):
    """The text of a token is the slice of its offsets, so an entity starts at its first letter."""
    encoding = trained(kind, "none").source.backend_tokenizer.encode(text)
    covered = set()
    for token, (start, end) in zip(encoding.tokens[:-1], encoding.offsets[:-1], strict=True):
        part = text[start:end]
        covered.update(range(start, end))
        if token == "▁":  # a further space, or a word that continues in the next token
            assert len(part) == 1
        elif kind == "byte_bpe":
            assert part == part.strip(" ")
        else:
            assert part.replace("▁", "_") == token.removeprefix("▁") or token == "<unk>"
    assert all(position in covered or letter.isspace() for position, letter in enumerate(text))


def test_offsets_of_wordpiece_are_as_long_as_its_tokens():
    """transformers distinguishes words from subwords by it, and counts the space before a word."""
    encoding = trained("wordpiece", "none").source.backend_tokenizer.encode("the cat, sat")
    spans = ["the cat, sat"[start:end] for start, end in encoding.offsets[:-1]]
    assert "".join(spans) == "the cat, sat"
    assert [len(span) for span in spans[1:]] == [
        len(token.removeprefix("##")) for token in encoding.tokens[1:-1]
    ]  # nothing precedes the first


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_the_special_tokens(kind):
    tokenizer = trained(kind).source
    assert tokenizer.convert_tokens_to_ids(["<s>", "<pad>", "</s>", "<unk>"]) == [BOS, PAD, EOS, UNK]
    special = (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert special == (BOS, PAD, EOS, UNK)
    assert sorted(tokenizer.get_vocab().values()) == list(range(len(tokenizer)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("end_of_source", [True, False])
def test_saved_tokenizers_give_the_same_ids_without_kit(tmp_path, kind, shared, end_of_source):
    before = train_tokenizers(section(kind, shared=shared, end_of_source=end_of_source), SENTENCES, SENTENCES[::2])
    assert before.shared == shared
    before.save(tmp_path)
    # The folder has a model of a type that a process without kit does not know.
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard_of"}))
    after = Tokenizers.load(tmp_path)
    assert after.shared == shared
    texts = [*SENTENCES, "", " </s>", "</s>"]
    sources, targets = before.encode_source(texts), before.encode_target(texts)
    assert after.encode_source(texts) == sources
    assert after.encode_target(texts) == targets
    assert after.decode(targets) == before.decode(targets)
    for source, target in zip(sources, targets, strict=True):
        assert target[-1] == EOS
        assert EOS not in target[:-1]
        assert BOS not in target
        assert source.count(EOS) == end_of_source
        if shared:
            assert target == source if end_of_source else target == [*source, EOS]
    if shared:
        for loader in (AutoTokenizer, PreTrainedTokenizerFast):
            assert loader.from_pretrained(tmp_path)(texts)["input_ids"] == sources
    else:
        both = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=True)(texts, text_target=texts)
        assert (both["input_ids"], both["labels"]) == (sources, targets)


def test_saving_into_a_folder_again_replaces_the_tokenizers(tmp_path):
    apart = train_tokenizers(section("bpe", shared=False), ["abc"], ["xyz"])
    shared = train_tokenizers(section("bpe"), ["abc"], ["xyz"])
    apart.save(tmp_path)
    shared.save(tmp_path)
    assert Tokenizers.load(tmp_path).shared
    apart.save(tmp_path)
    assert Tokenizers.load(tmp_path).encode_target(["xyz"]) == apart.encode_target(["xyz"])


def test_decoding_stops_at_the_first_eos():
    tokenizers = trained("char")
    (ids,) = tokenizers.encode_target(["ab"])
    assert tokenizers.decode([[BOS, *ids, *ids, PAD], [*ids[:-1], PAD, PAD], [EOS], []]) == ["ab", "ab", "", ""]
    assert tokenizers.encode_source([]) == tokenizers.encode_target([]) == tokenizers.decode([]) == []


def test_only_unknown_characters_become_unknown_tokens():
    for kind in KINDS:
        tokenizers = trained(kind)
        (ids,) = tokenizers.encode_source(["a 漢 b"])
        assert ids.count(UNK) == 1
        assert tokenizers.decode([ids]) == ["a <unk> b"]


def test_min_frequency_and_vocab_size_are_respected():
    texts = ["often often often rare"] * 2 + ["once"]
    often = train_tokenizers(Seq2SeqTokenizerSection(train="word", min_frequency=3), texts, [])
    assert set(often.source.get_vocab()) == {"<s>", "<pad>", "</s>", "<unk>", "▁often"}
    chars = train_tokenizers(Seq2SeqTokenizerSection(train="char", min_frequency=2), ["aab"], [])
    assert set(chars.source.get_vocab()) == {"<s>", "<pad>", "</s>", "<unk>", "a"}
    for kind in KINDS:
        assert len(train_tokenizers(section(kind, vocab_size=150), SENTENCES, []).source) <= 150


@pytest.mark.parametrize("kind", KINDS)
def test_separate_vocabularies_know_only_their_side(kind):
    tokenizers = train_tokenizers(section(kind, shared=False), iter(["aaa aaa"]), iter(["bbb bbb"]))
    assert UNK in tokenizers.encode_source(["bbb"])[0]
    assert UNK in tokenizers.encode_target(["aaa"])[0]
    assert UNK not in tokenizers.encode_source(["aaa"])[0] + tokenizers.encode_target(["bbb"])[0]


def test_training_is_the_same_in_every_process():
    code = (
        "import hashlib, sys; from kit.data.builtin import load_builtin; "
        "from kit.recipe.model import Seq2SeqTokenizerSection; "
        "from kit.data.text.vocabulary import train_vocabulary; "
        "texts = load_builtin('dates', sizes={'train': 4000})['train']['source'].to_pylist(); "
        "sections = [Seq2SeqTokenizerSection(train=kind, vocab_size=1500) for kind in sys.argv[1:]]; "
        "trained = [train_vocabulary(section, texts, 'source').to_str() for section in sections]; "
        "print([hashlib.sha256(one.encode()).hexdigest() for one in trained])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, *KINDS],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": parallel, "RAYON_NUM_THREADS": threads},
        )
        for parallel, threads in (("false", "1"), ("true", "3"))
    ]
    assert runs[0].stdout == runs[1].stdout
    assert [run.stderr for run in runs] == ["", ""]


def test_training_and_use_print_nothing(tmp_path, capfd, recwarn):
    dates = load_builtin("dates", sizes={"train": 200})["train"]
    for kind in KINDS:
        tokenizers = train_tokenizers(section(kind, vocab_size=1500), dates["source"].to_pylist(), ["1"])
        tokenizers.save(tmp_path / kind)
        (tmp_path / kind / "config.json").write_text('{"model_type": "unheard_of"}')
        tokenizers = load_pretrained_tokenizers(str(tmp_path / kind))
        tokenizers.decode(tokenizers.encode_target(["1 " * 3000]))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], ["  ", "\t"]])
def test_empty_text_is_an_error(kind, texts):
    with pytest.raises(DataError, match="text is empty"):
        train_tokenizers(section(kind), texts, texts)
    with pytest.raises(DataError, match="target text is empty"):
        train_tokenizers(section(kind, shared=False), ["a"], texts)


@pytest.mark.parametrize("kind", ["char", "bpe", "wordpiece", "unigram"])
def test_a_vocabulary_smaller_than_the_alphabet_is_rejected_with_the_size_needed(kind):
    with pytest.raises(RecipeError, match=r"tokenizer\.vocab_size: 20 .*at least \d+") as caught:
        train_tokenizers(section(kind, vocab_size=20), SENTENCES, SENTENCES)
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    assert len(train_tokenizers(section(kind, vocab_size=needed), SENTENCES, SENTENCES).source) <= needed
    with pytest.raises(RecipeError, match=f"at least {needed}"):
        train_tokenizers(section(kind, vocab_size=needed - 1), SENTENCES, SENTENCES)


def test_a_frequency_that_nothing_reaches_is_rejected():
    with pytest.raises(DataError, match=r"tokenizer\.min_frequency: nothing .* occurs 9 times"):
        train_tokenizers(section("word", min_frequency=9), ["a b c"], ["a"])


def test_pretrained_tokenizers_come_from_model_and_run_folders(tmp_path):
    saved = train_tokenizers(section("bpe", shared=False), SENTENCES, SENTENCES[::2])
    saved.save(tmp_path / "run" / "model")
    for folder in ("run", "run/model"):
        loaded = load_pretrained_tokenizers(str(tmp_path / folder))
        assert loaded.encode_target(SENTENCES) == saved.encode_target(SENTENCES)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="contains no tokenizer"):
        load_pretrained_tokenizers(str(tmp_path / "empty"))
    with pytest.raises(HubError, match="no run or model folder org/name, and it cannot be loaded") as caught:
        load_pretrained_tokenizers("org/name")
    assert "\n" not in str(caught.value)


def test_a_foreign_tokenizer_keeps_its_special_tokens(tmp_path):
    """Like that of BERT: no EOS, a token in front, and a separator at the end."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    backend = Tokenizer(models.WordLevel({"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "[PAD]": 3, "a": 4, "b": 5}, "[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 0), ("[SEP]", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]", pad_token="[PAD]"
    ).save_pretrained(tmp_path)
    tokenizers = load_pretrained_tokenizers(str(tmp_path))
    assert tokenizers.encode_source(["a b"]) == tokenizers.encode_target(["a b"]) == [[0, 4, 5, 1]]
    assert tokenizers.decode([[0, 4, 5, 1, 4]]) == ["a b"]
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]").save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match="neither an end token nor a separator"):
        load_pretrained_tokenizers(str(tmp_path)).encode_target(["a"])
