"""Pretrained encoder-decoders are fine-tuned as their classes require: first tokens, frozen parts, prefixes, limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fine_tuning import PAIRS, fine_tuning, multilingual_model, recipe_file, write_pairs, write_text
from support.pretrained_models import FAMILIES
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from kit import Translator, load_recipe, train
from kit.data.text.languages import set_language_codes
from kit.data.text.tokenizer import Tokenizers
from kit.decoding.search import search
from kit.errors import RecipeError
from kit.prediction.options import GenerateOptions
from kit.pretrained.export import export_model
from kit.pretrained.positions import position_limit
from kit.recipe.model import Seq2SeqTokenizerSection
from kit.runs.prepare import Prepared, prepare
from kit.runs.verify import verify
from kit.tasks.families.seq2seq.evaluation import evaluate_split
from kit.training.objective import Seq2SeqObjective
from kit.verify.generation import perturb_parameters


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data"))


@pytest.fixture(params=FAMILIES)
def prepared(request: pytest.FixtureRequest, tmp_path: Path, data: Path) -> Prepared:
    family = FAMILIES[request.param]()
    return prepare(load_recipe(fine_tuning(tmp_path, data, family, family.recipe)))


def test_loss_equals_that_of_the_model(prepared: Prepared) -> None:
    """The decoder reads what the class would make of the labels, whose tokens are those of its own tokenizer."""
    tokenizers, pairs = prepared.tokenizers, prepared.encoded["train"].examples
    batch = pairs.batch(np.arange(len(pairs)), tokenizers.source.pad_token_id)
    model = prepared.model.eval()
    ours = float(Seq2SeqObjective(model).summed_loss(batch).detach() / (batch["labels"] != -100).sum())
    stock = tokenizers.source(
        [tokenizers.prefix + source for source, _ in PAIRS],
        text_target=[target for _, target in PAIRS],
        padding=True,
        return_tensors="pt",
    )
    labels = stock["labels"].masked_fill(stock["labels"] == tokenizers.target.pad_token_id, -100)
    theirs = model(input_ids=stock["input_ids"], attention_mask=stock["attention_mask"], labels=labels).loss
    assert ours == pytest.approx(float(theirs.detach()), abs=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_fine_tuned_model_writes_what_it_learned(name: str, tmp_path: Path, data: Path) -> None:
    """In kit and, from the run's folder alone, in transformers; every applicable proof passes."""
    family = FAMILIES[name]()
    run = train(load_recipe(fine_tuning(tmp_path, data, family, family.recipe)), tmp_path / "run")
    assert run.results["validation"]["loss"] < 0.1
    assert run.results["validation"]["exact_match"] == 1.0
    sources, targets = zip(*PAIRS, strict=True)
    assert [best[0].text for best in Translator(run.folder).translate(sources)] == list(targets)

    model = AutoModelForSeq2SeqLM.from_pretrained(run.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(run.folder / "model")
    texts = [tokenizer.init_kwargs.get("source_prefix", "") + source for source in sources]
    written = model.generate(**tokenizer(texts, padding=True, return_tensors="pt"))
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == list(targets)

    *checks, idle = verify(run.folder)
    assert [check for check in checks if not check.passed] == []
    assert (idle.name, "fused layers" in idle.figure) == ("skipped", True)


def test_settings_change_the_configuration(tmp_path: Path, data: Path) -> None:
    path = fine_tuning(tmp_path, data, FAMILIES["bart"]())
    model = prepare(load_recipe(path, ["model.dropout=0.3"])).model
    assert model.config.dropout == model.model.encoder.layers[0].dropout == 0.3
    with pytest.raises(RecipeError, match=r'dropuot.*Did you mean "dropout"'):
        prepare(load_recipe(path, ["model.dropuot=0.3"]))


def test_only_required_tokens_of_published_generation_settings_remain(tmp_path: Path, data: Path) -> None:
    """Otherwise, evaluation during training would search differently from the recipe and from the saved model."""
    configs = {}
    for name in ("marian", "bart"):
        (tmp_path / name).mkdir()
        configs[name] = prepare(
            load_recipe(fine_tuning(tmp_path / name, data, FAMILIES[name]()))
        ).model.generation_config
    pad = configs["marian"].pad_token_id
    assert (configs["marian"].bad_words_ids, configs["marian"].decoder_start_token_id) == ([[pad]], pad)
    assert (configs["marian"].forced_eos_token_id, configs["marian"].max_length) == (None, None)
    assert configs["bart"].forced_bos_token_id == 0
    assert (configs["bart"].forced_eos_token_id, configs["bart"].min_length) == (None, None)


@pytest.mark.parametrize(
    "published",
    [
        {"min_length": 12, "max_length": 15, "num_beams": 3, "length_penalty": 2.0},
        {"min_length": 9, "max_length": 20, "no_repeat_ngram_size": 2, "repetition_penalty": 1.5},
        {"max_new_tokens": 5, "forced_eos_token_id": 2, "num_beams": 2},
    ],
    ids=lambda published: next(iter(published)),
)
def test_published_generation_settings_apply_to_the_published_model(
    tmp_path: Path, published: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A `generation_config.json` that is not of kit: its lengths and penalties, too."""
    family = FAMILIES["bart"]()
    folder = replace(family, generation={**published, "forced_bos_token_id": 5}).save(tmp_path / "bart")
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        perturb_parameters(model)  # random weights of the initial size repeat one token
    inputs = family.tokenizer(["a", "the cat", "bcd efg hij klm"], padding=True, return_tensors="pt")
    expected = model.generate(**inputs)[:, 1:].tolist()  # padded
    outputs = search(model, dict(inputs), GenerateOptions().seq2seq_settings(model))
    written = [hypotheses[0].tokens for hypotheses in outputs]
    assert max(map(len, written)) == len(expected[0])
    assert [padded[: len(tokens)] for padded, tokens in zip(expected, written, strict=True)] == written
    assert caplog.text == ""


def test_frozen_parameters_stay_frozen(tmp_path: Path, data: Path) -> None:
    model = prepare(load_recipe(fine_tuning(tmp_path, data, FAMILIES["marian"]()))).model
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}


def test_prefix_precedes_every_source_and_is_saved(tmp_path: Path, data: Path) -> None:
    path = fine_tuning(tmp_path, data, FAMILIES["t5"](), {"data": {"source_prefix": "turn: "}})
    first = prepare(load_recipe(path))
    plain = prepare(load_recipe(path, ["data.source_prefix=null"]))
    assert (first.tokenizers.prefix, plain.tokenizers.prefix) == ("turn: ", "")
    expected = plain.tokenizers.encode_source([f"turn: {source}" for source, _ in PAIRS])
    encoded = first.encoded["train"].examples.source
    assert [encoded[row].tolist() for row in range(len(PAIRS))] == expected
    # it is not a part of the text, whose length the filters are about
    left_out = [
        prepare(load_recipe(path, ["data.max_length=8", f"data.source_prefix={prefix}"])).dropped
        for prefix in ("null", "'turn: '")
    ]
    assert left_out[0] == left_out[1]
    assert 0 < left_out[0]["max_length"] < len(PAIRS)

    saved = tmp_path / "saved"
    export_model(saved, first.model, first.tokenizers, first.model.generation_config, ())
    path = recipe_file(tmp_path, data, {"model": {"pretrained": str(saved)}})
    assert prepare(load_recipe(path)).tokenizers.prefix == "turn: "
    assert prepare(load_recipe(path, ['data.source_prefix=""'])).tokenizers.prefix == ""


@given(st.lists(st.text("abc ", max_size=30), min_size=1, max_size=5), st.integers(8, 20))
@settings(max_examples=25, deadline=None)
@pytest.mark.parametrize("name", ["mbart50", "nllb", "bart", "marian"])
def test_truncation_keeps_special_tokens(name: str, texts: list[str], limit: int) -> None:
    family = FAMILIES[name]()
    section = Seq2SeqTokenizerSection(**family.recipe.get("tokenizer", {}))
    set_language_codes(family.tokenizer, section, [])
    tokenizers = Tokenizers(family.tokenizer, family.tokenizer)
    for encode in (tokenizers.encode_source, tokenizers.encode_target):
        whole, truncated = encode(texts), encode(texts, max_length=limit)
        behind = len(whole[0]) - (whole[0].index(tokenizers.target.eos_token_id))
        for complete, short in zip(whole, truncated, strict=True):
            assert len(short) == min(len(complete), limit)
            assert short[-behind:] == complete[-behind:]
            assert short[:-behind] == complete[: len(short) - behind]


@pytest.mark.parametrize("name", ["marian", "bart", "mbart50", "nllb", "t5", "own"])
def test_long_texts_are_left_out_of_training_and_truncated_elsewhere(name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    long = ("ab" * 50, "cd")
    write_text(data, [*PAIRS, long, long])
    write_text(data, [*PAIRS, long], "val")
    positions = {"max_position_embeddings": 40}
    if name == "own":
        prepared = multilingual_model(tmp_path, data, {"model": positions, "tokenizer": {"train": "char"}})
    else:
        family = FAMILIES[name]()
        prepared = prepare(load_recipe(fine_tuning(tmp_path, data, family, family.recipe)))
    limited = name not in ("nllb", "t5")
    per_row = 3 if name == "own" else 1  # in three directions, each of which has a long side somewhere
    assert prepared.dropped["positions"] == (2 * per_row if limited else 0)
    validation = prepared.encoded["validation"].examples
    assert validation.truncated == (per_row if limited else 0)
    assert position_limit(prepared.model.config) == (40 if limited else None)
    summary = "\n".join(prepared.summary())
    assert ("left out by the positions of the model" in summary) == limited
    assert (f"validation: {per_row} examples truncated" in summary) == limited
    # nothing crashes, however long an output is allowed to become
    section = prepared.recipe.eval.model_copy(update={"max_new_tokens": 50})
    evaluation = evaluate_split(
        Seq2SeqObjective(prepared.model), validation, prepared.splits.datasets["validation"],
        prepared.tokenizers, section, 1, prepared.evaluator(Accelerator()),
    )  # fmt: skip
    assert np.isfinite(evaluation.figures["loss"])
    assert evaluation.figures.get("truncated", 0) == validation.truncated
