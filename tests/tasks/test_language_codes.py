"""Languages of pretrained encoder-decoders: codes of the tokenizer, and tags in front of the source."""

import importlib.util
import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from conftest import RunKit
from support.fine_tuning import DIRECTIONS, PAIRS, fine_tuning, multilingual_model, recipe_file, write_pairs
from support.pretrained_models import CODES, FAMILIES, LETTERS, Family, mbart, nllb
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, NllbTokenizer

from kit import Translator, evaluate, load_recipe
from kit.data.text.languages import set_language_codes
from kit.data.text.tokenizer import Tokenizers, load_pretrained_tokenizers
from kit.decoding.settings import GenerationSettings
from kit.errors import RecipeError, RunError
from kit.evaluation.evaluator import Evaluator
from kit.pretrained.export import export_model
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.runs.prepare import Prepared, prepare
from kit.tasks.families.seq2seq.evaluation import by_language, evaluate_split, predict
from kit.training.objective import Seq2SeqObjective


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=FAMILIES)
def prepared(request: pytest.FixtureRequest, tmp_path: Path, data: Path) -> Prepared:
    family = FAMILIES[request.param]()
    return prepare(load_recipe(fine_tuning(tmp_path, data, family, family.recipe)))


@pytest.mark.parametrize(
    ("name", "tokenizer", "message"),
    [
        ("nllb", {}, r"tokenizer\.source_language is missing: .*NllbTokenizer.* codes \(deu_Latn"),
        ("nllb", {"source_language": "deu_Latn"}, r"tokenizer\.target_language is missing"),
        ("nllb", {"target_language": "eng_Latn"}, r"tokenizer\.source_language is missing"),
        (
            "nllb",
            {"source_language": "deu_Latin", "target_language": "eng_Latn"},
            r'tokenizer\.source_language: .* has no code "deu_Latin".* Did you mean "deu_Latn"\?',
        ),
        (
            "nllb",
            {"source_language": "deu_Latn", "target_language": "en"},
            r'tokenizer\.target_language: .* has no code "en".* Did you mean "eng_Latn"\?',
        ),
        ("t5", {"target_language": "en"}, r"tokenizer\.target_language: .*T5Tokenizer.* no language codes.*prefix"),
    ],
)
def test_missing_unknown_and_redundant_codes_are_rejected(
    name: str, tokenizer: dict[str, str], message: str, tmp_path: Path, data: Path
) -> None:
    path = fine_tuning(tmp_path, data, FAMILIES[name](), {"tokenizer": tokenizer})
    with pytest.raises(RecipeError, match=message):
        prepare(load_recipe(path))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"model": {"type": "rnn_seq2seq"}, "tokenizer": {"source_language": "de"}},
            "newly trained tokenizer has no language",
        ),
        (
            {"model": {"pretrained": "x"}, "tokenizer": {"target_language": "en"}, "data": {"directions": DIRECTIONS}},
            r"tokenizer\.target_language: it has no effect with data\.directions",
        ),
        (
            {"model": {"pretrained": "x"}, "tokenizer": {"language_codes": {"de": "de_DE"}}},
            r"tokenizer\.language_codes: it has no effect without data\.directions",
        ),
        (
            {
                "model": {"pretrained": "x"},
                "tokenizer": {"language_codes": {"dee": "de_DE"}},
                "data": {"directions": DIRECTIONS},
            },
            r'language_codes\.dee: it is not a language of data\.directions\. Did you mean "de"\?',
        ),
        (
            {"model": {"pretrained": "x"}, "tokenizer": {"vocab_size": 100}},
            r"tokenizer\.vocab_size: it has no effect on the tokenizer of model\.pretrained",
        ),
    ],
)
def test_contradictory_recipes_are_rejected(parts: dict[str, Any], message: str, tmp_path: Path, data: Path) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe_file(tmp_path, data, parts))


@pytest.mark.parametrize("build", [mbart, nllb])
def test_codes_behind_the_text_are_rejected(
    build: Callable[[], Family], tmp_path: Path, data: Path, kit_here: RunKit
) -> None:
    family = build()
    path = fine_tuning(tmp_path, data, family, family.recipe)
    folder = tmp_path / "pretrained"
    if build is nllb:
        config = folder / "tokenizer_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "legacy_behaviour": True}))
    message = "puts the language code after the text, as in first-generation mBART"
    remedy = r"Use mBART-50, NLLB or M2M-100 \(NLLB without legacy_behaviour"
    with pytest.raises(RecipeError, match=f"^tokenizer: .*{message}.* {remedy}"):
        prepare(load_recipe(path))
    for keys in ({}, {"data": {"directions": DIRECTIONS}}):  # also where language codes are missing
        path = recipe_file(tmp_path, data, {"model": {"pretrained": str(folder)}}, keys)
        with pytest.raises(RecipeError, match=message):
            prepare(load_recipe(path))
    (tmp_path / "in.txt").write_text("ja\n")
    for command in (("generate", folder, "in.txt"), ("plot", folder, "--sentence", "ja")):
        done = kit_here(*command)
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_unsupported_codes_are_rejected(tmp_path: Path, data: Path) -> None:
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁", *LETTERS]
    vocabulary = {word: number for number, word in enumerate(words)}
    family = nllb()
    family = Family(family.config, NllbTokenizer(vocab=vocabulary, extra_special_tokens=["__java__"]))
    message = r"NllbTokenizer\) has language codes that kit does not know\. Use mBART-50"
    with pytest.raises(RecipeError, match=message):
        prepare(load_recipe(fine_tuning(tmp_path, data, family, {"tokenizer": {"target_language": "__java__"}})))
    with pytest.raises(RunError, match=message):
        Translator(tmp_path / "pretrained").translate(["ja"])


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("nllb", dict(zip(("de", "en", "fr"), CODES["nllb"], strict=True))),
        ("mbart50", dict(zip(("de", "en", "fr"), CODES["mbart50"], strict=True))),
    ],
)
def test_every_example_has_the_languages_of_its_direction(
    name: str, codes: dict[str, str], tmp_path: Path, data: Path
) -> None:
    keys = {"tokenizer": {"language_codes": codes}, "data": {"directions": DIRECTIONS}}
    prepared = prepare(load_recipe(fine_tuning(tmp_path, data, FAMILIES[name](), keys)))
    tokenizers, tokenizer, model = prepared.tokenizers, prepared.tokenizers.source, prepared.model.double().eval()
    examples, texts = prepared.encoded["validation"].examples, prepared.splits.datasets["validation"]
    plan = GenerationSettings(num_beams=2, max_new_tokens=6)
    # small batches: several for each language
    evaluator = Evaluator(60, Accelerator())
    predictions = predict(
        Seq2SeqObjective(model), examples, tokenizer.pad_token_id,
        by_language(plan, examples, tokenizers), evaluator,
    )  # fmt: skip
    for row, text in enumerate(texts):
        tokenizer.src_lang, tokenizer.tgt_lang = codes[text["source_language"]], codes[text["target_language"]]
        stock = tokenizer(text["source"], text_target=text["target"], return_tensors="pt")
        assert examples.source[row].tolist() == stock["input_ids"][0].tolist()
        assert examples.target[row].tolist() == stock["labels"][0].tolist()
        if row % 4:  # the search is slow, and rows of a direction are consecutive
            continue
        first = tokenizer.convert_tokens_to_ids(codes[text["target_language"]])
        written = model.generate(
            input_ids=stock["input_ids"], attention_mask=stock["attention_mask"],
            num_beams=2, max_new_tokens=6, forced_bos_token_id=first,
        )  # fmt: skip
        tokens = written[0, 1:].tolist()
        assert predictions[row].tokens == tokens[: len(predictions[row].tokens)]
        assert tokens[0] == first

    # the saved tokenizer knows the codes, but not which to use
    tokenizers.save(tmp_path / "saved")
    loaded = Tokenizers.load(tmp_path / "saved")
    assert loaded.languages.targets == ["de", "en", "fr"]
    for language in ("fr", codes["fr"]):
        assert loaded.encode_source(["ja"], language, "en") == tokenizers.encode_source(["ja"], "fr", "en")
        assert (
            loaded.generation_tokens(language)
            == tokenizers.generation_tokens("fr")
            != tokenizers.generation_tokens("en")
        )
    with pytest.raises(RunError, match="needs to know which language to read"):
        loaded.encode_source(["ja"], target_language="en")
    with pytest.raises(RunError, match='no target language "ro"'):
        loaded.encode_source(["ja"], "de", "ro")


class Pieces:
    """The part of the sentencepiece package that the M2M tokenizer needs: splitting at spaces."""

    def Load(self, path: str) -> None:
        pass

    def encode(self, text: str, out_type: type) -> list[str]:
        return [f"▁{word}" for word in text.split()]

    def decode(self, pieces: list[str]) -> str:
        return "".join(pieces).replace("▁", " ").strip()


def test_codes_of_m2m(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokenizer names codes and tokens differently from all others."""
    stand_in = types.ModuleType("sentencepiece")
    stand_in.SentencePieceProcessor = Pieces  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentencepiece", stand_in)
    module = "transformers.models.m2m_100.tokenization_m2m_100"
    monkeypatch.delitem(sys.modules, module, raising=False)
    tokenizer_class = importlib.import_module(module).M2M100Tokenizer
    monkeypatch.delitem(sys.modules, module)
    words = ["<s>", "<pad>", "</s>", "<unk>", "▁ein", "▁hund", "▁a", "▁dog"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    tokenizer = tokenizer_class(str(tmp_path / "vocab.json"), str(tmp_path / "model"))
    with pytest.raises(RecipeError, match="source_language is missing"):
        set_language_codes(tokenizer, Seq2SeqTokenizerSection(), [])
    with pytest.raises(RecipeError, match='no code "deu_Latn"'):
        set_language_codes(tokenizer, Seq2SeqTokenizerSection(source_language="deu_Latn", target_language="en"), [])
    set_language_codes(tokenizer, Seq2SeqTokenizerSection(source_language="de", target_language="en"), [])
    tokenizers = Tokenizers(tokenizer, tokenizer)
    german, english, french = (tokenizer.get_lang_id(code) for code in ("de", "en", "fr"))
    assert tokenizers.encode_source(["ein hund"]) == [[german, 4, 5, 2]]
    assert tokenizers.encode_target(["a dog"]) == [[english, 6, 7, 2]]
    assert tokenizers.encode_target(["a dog"], "fr") == [[french, 6, 7, 2]]
    assert tokenizers.generation_tokens() == {"forced_bos_token_id": english}
    assert tokenizers.generation_tokens("fr") == {"forced_bos_token_id": french}
    assert tokenizers.decode([[english, 6, 7, 2, 1]]) == ["a dog"]
    assert len(tokenizers.languages.targets) == 100


@pytest.mark.skipif(importlib.util.find_spec("sentencepiece") is not None, reason="the package is there")
def test_missing_tokenizer_package_is_reported(tmp_path: Path) -> None:
    FAMILIES["marian"]().config.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
    for file in ("vocab.json", "source.spm", "target.spm"):
        (tmp_path / file).write_text("{}")
    with pytest.raises(RecipeError, match=r"MarianTokenizer requires .*pip install sentencepiece"):
        load_pretrained_tokenizers(str(tmp_path))


@pytest.mark.parametrize("shared", [True, False])
def test_a_tag_in_front_of_the_source_names_the_target(shared: bool, tmp_path: Path, data: Path) -> None:
    parts = {"tokenizer": {"shared": shared}, "model": {"share_encoder_decoder_embeddings": shared}}
    prepared = multilingual_model(tmp_path, data, parts)
    tokenizers, tokenizer = prepared.tokenizers, prepared.tokenizers.source
    examples, texts = prepared.encoded["train"].examples, prepared.splits.datasets["train"]
    for row, text in enumerate(texts):
        tag = tokenizer.convert_tokens_to_ids(f"<2{text['target_language']}>")
        assert examples.source[row].tolist() == [tag, *tokenizer(text["source"])["input_ids"]]
        assert examples.target[row].tolist() == tokenizers.target(text["target"])["input_ids"]
    assert prepared.model.get_input_embeddings().num_embeddings == len(tokenizer)
    # text is never parsed as a tag
    assert not {tokenizer.convert_tokens_to_ids("<2fr>")} & set(tokenizers.encode_source(["<2fr> ja"], None, "en")[0])
    # tags need no separate searches: languages share batches
    assert list(by_language(GenerationSettings(), examples, tokenizers)) == [None]

    tokenizers.save(tmp_path / "saved")
    loaded, stock = Tokenizers.load(tmp_path / "saved"), AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert loaded.languages.targets == ["en", "fr", "de"]
    assert {"<2en>", "<2fr>", "<2de>"} <= set(stock.all_special_tokens)
    assert loaded.encode_source(["ja"], None, "fr") == tokenizers.encode_source(["ja"], "de", "fr")
    with pytest.raises(RunError, match=r"needs to know which language to write.* en, fr, de"):
        loaded.encode_source(["ja"])
    with pytest.raises(RunError, match=r'no target language "fra".* Did you mean "fr"'):
        loaded.encode_source(["ja"], None, "fra")


def test_single_target_model_needs_no_language(tmp_path: Path, data: Path) -> None:
    tokenizers = multilingual_model(tmp_path, data, {"data": {"directions": ["de-en", "fr-en"]}}).tokenizers
    assert tokenizers.languages.default_target == "en"
    assert tokenizers.encode_source(["ja"]) == tokenizers.encode_source(["ja"], "fr", "en")


def test_single_direction_model_rejects_languages(prepared: Prepared) -> None:
    if prepared.tokenizers.languages.targets:
        assert prepared.tokenizers.languages.default_target is not None
        return
    with pytest.raises(RunError, match="it has a single direction"):
        prepared.tokenizers.encode_source(["ja"], target_language="en")
    with pytest.raises(RunError, match="it has a single direction"):
        prepared.tokenizers.encode_source(["ja"], source_language="de")


@pytest.mark.parametrize("name", ["own", "bart", "t5"])
def test_a_model_learns_new_tags(name: str, tmp_path: Path, data: Path) -> None:
    """Existing embeddings are unchanged."""
    if name == "own":
        first = multilingual_model(tmp_path, data, {"data": {"directions": ["de-en", "en-de"]}})
        export_model(tmp_path / "first", first.model, first.tokenizers, first.model.generation_config, ())
        path = recipe_file(tmp_path, data, {"model": {"pretrained": str(tmp_path / "first")}})
        with pytest.raises(RecipeError, match=r"data\.directions is missing: .* \(en, de\)"):
            prepare(load_recipe(path))
        path = recipe_file(
            tmp_path, data, {"model": {"pretrained": str(tmp_path / "first")}, "data": {"directions": ["de-fr"]}}
        )
        expected = ["en", "de", "fr"]
    else:
        path = fine_tuning(tmp_path, data, FAMILIES[name](), {"data": {"directions": DIRECTIONS}})
        expected = ["en", "fr", "de"]
    before = AutoModelForSeq2SeqLM.from_pretrained(load_recipe(path).model.pretrained).get_input_embeddings().weight
    prepared = prepare(load_recipe(path))
    after = prepared.model.get_input_embeddings().weight
    assert list(prepared.tokenizers.languages.targets) == expected
    assert len(after) == max(len(before), len(prepared.tokenizers.source))
    assert torch.equal(after[: len(before)], before)
    evaluation = evaluate_split(
        Seq2SeqObjective(prepared.model), prepared.encoded["validation"].examples,
        prepared.splits.datasets["validation"], prepared.tokenizers, prepared.recipe.eval, 2,
        prepared.evaluator(Accelerator()),
    )  # fmt: skip
    assert np.isfinite(evaluation.figures["loss"])
    assert len(evaluation.rows) == len(PAIRS) * len(prepared.recipe.data.directions or ())


def test_untrained_direction_can_be_evaluated(multilingual: Path) -> None:
    evaluation = evaluate(multilingual, "test", ["data.directions=[de-fr]", "eval.metrics=[]", "eval.examples=1"])
    assert {(row["source_language"], row["target_language"]) for row in evaluation.rows} == {("de", "fr")}
    sources = [row["source"] for row in evaluation.rows]
    again = Translator(multilingual).translate(sources, source_language="de", target_language="fr")
    assert [best[0].text for best in again] == [row["prediction"] for row in evaluation.rows]
