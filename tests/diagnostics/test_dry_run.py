"""Every figure that `kit data` reports on small data sets equals a count by hand."""

import copy
import io
import json
import math
import mmap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from support.recipes import make_recipe

from kit.data.batching.ragged import RaggedTokens
from kit.data.statistics import Duplicates, LengthStats, Overlap, count_unknown
from kit.data.steps import ExampleColumns
from kit.diagnostics import dry_run as dry_run
from kit.diagnostics.cost import Cost, estimate, extrapolate, representative_micro_batches
from kit.diagnostics.dry_run import count_parameters, find_warnings, inspect_recipe
from kit.diagnostics.memory import Memory, PeakMemory
from kit.diagnostics.report import Inspection
from kit.diagnostics.tables import render, visible
from kit.errors import DataError
from kit.pipelines.text_to_text import unknown_id
from kit.recipe.base import Recipe
from kit.runs.prepare import prepare
from kit.tasks.translation.recipe import TranslationRecipe

LONG = "ab" * 10
TRAIN = [
    *((f"{a}{b}", f"{b}{a}{a}") for a in "abcd" for b in "abcd"),  # 16 pairs of lengths 2 and 3
    ("ab", "baa"),  # a duplicate
    ("ab", "baa"),
    ("ab", "dd"),  # the same source with another target is no duplicate
    (LONG, "a"),  # left out by max_length, and so is its duplicate
    (LONG, "a"),
    ("", "a"),  # left out by min_length
]
VALIDATION = [
    ("ab", "baa"),  # the pair is in train
    ("cd", "c"),  # the source is in train, with another target
    (LONG, "ba"),  # the source is in the data, but training does not see it
    ("жaж", "abca"),  # two characters that train does not have, out of three
    ("ba[b]", "abcdabcd"),  # two more; and 9 target tokens with the end marker
]
TEST = [("abc", "dж")]


def write_data(folder: Path, **splits: list[tuple[str, str]]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, rows in splits.items():
        lines = (json.dumps({"source": source, "target": target}) for source, target in rows)
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def tiny_recipe(path: Path | str, **changes: dict[str, Any]) -> Recipe:
    sections: dict[str, dict[str, Any]] = {
        "model": {"type": "rnn_seq2seq", "cell": "gru", "hidden_size": 8, "embedding_size": 4},
        "tokenizer": {"train": "char", "min_frequency": 1, "shared": False},
        "data": {"path": str(path)},
        "train": {"num_train_epochs": 2, "batch_size": 4},
        "eval": {"steps": 4, "max_new_tokens": 8, "metrics": ["exact_match"]},
    }
    return TranslationRecipe.model_validate(
        {"task": "translation"} | {k: v | changes.get(k, {}) for k, v in sections.items()}
    )


def printed(inspection: Inspection, width: int = 100) -> str:
    file = io.StringIO()
    Console(width=width, file=file, color_system=None).print(render(inspection))
    return file.getvalue()


@pytest.fixture(scope="module")
def inspection(tmp_path_factory: pytest.TempPathFactory) -> Inspection:
    folder = write_data(tmp_path_factory.mktemp("data") / "d", train=TRAIN, validation=VALIDATION, test=TEST)
    return inspect_recipe(tiny_recipe(folder, data={"max_length": 10}))


# ---- the data --------------------------------------------------------------------------------------------------------


def test_sizes_and_dropped_rows(inspection: Inspection) -> None:
    train, validation, test = (inspection.splits[name] for name in ("train", "validation", "test"))
    assert (train.read, train.examples) == (22, 19)
    assert train.left_out == {"data.max_length": 2, "empty source": 1}
    assert (validation.read, validation.examples, validation.left_out) == (5, 5, {})
    assert (test.read, test.examples) == (1, 1)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_parts_of_a_split_are_not_read_from_the_token_cache(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate encodes some documents of a split: not the whole split, which the cache holds."""
    monkeypatch.setenv("KIT_CACHE", str(tmp_path / "cache"))
    encoded = {}
    for cache in ("false", "true"):
        prepared = prepare(make_recipe(tmp_path, task, overrides=[f"data.cache={cache}"]))
        part = prepared.splits.datasets["validation"].select([0])
        encoded[cache] = prepared.task.encode(part, prepared.state, "validation").examples
        estimate(prepared, Accelerator())
    assert len(encoded["true"]) == len(encoded["false"]) < len(prepared.encoded["validation"].examples)


def test_held_out_rows_are_accounted_for(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16])
    inspection = inspect_recipe(tiny_recipe(folder, data={"validation_size": 3, "max_examples": 10}))
    train = inspection.splits["train"]
    assert train.left_out == {"held out for validation": 3, "beyond data.max_examples": 3}
    assert (train.read, train.examples, inspection.splits["validation"].examples) == (16, 10, 3)
    assert list(inspection.overlaps) == ["validation"]


def test_examples_beyond_the_filters_of_train_are_kept_and_counted(inspection: Inspection) -> None:
    assert inspection.splits["train"].beyond_filters == {}
    assert inspection.splits["validation"].beyond_filters == {"data.max_length": 1}
    assert inspection.splits["test"].beyond_filters == {}


def test_lengths_are_those_that_max_length_counts(inspection: Inspection) -> None:
    assert inspection.splits["train"].sides["source"].lengths == LengthStats(2, 2.0, 2.0, 2.0, 2)
    # 18 targets of three tokens and one of two
    assert inspection.splits["train"].sides["target"].lengths == LengthStats(2, 3.0, pytest.approx(56 / 19), 3.0, 3)
    lengths = inspection.splits["validation"].sides["source"].lengths
    assert (lengths.shortest, lengths.median, lengths.mean, lengths.longest) == (2, 3.0, 32 / 5, 20)
    assert lengths.percentile_95 == pytest.approx(np.percentile([2, 2, 20, 3, 5], 95))


def test_unknown_tokens_are_counted_on_each_side(inspection: Inspection) -> None:
    assert [
        side.unknown.count
        for side in (inspection.splits["train"].sides["source"], inspection.splits["train"].sides["target"])
    ] == [0, 0]
    unknown = inspection.splits["validation"].sides["source"].unknown
    assert (unknown.count, unknown.tokens, unknown.texts) == (4, 32, 2)
    assert unknown.rate == 4 / 32
    assert unknown.examples[0] == "ж"
    assert set(unknown.examples) == {"ж", "[", "]"}
    assert inspection.splits["validation"].sides["target"].unknown.count == 0
    assert inspection.splits["test"].sides["target"].unknown.examples == ("ж",)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("word", "know nothing, know nobody", ["nothing", "nobody"]),
        ("bpe", "know Ωλ", ["Ω", "λ"]),
        ("wordpiece", "know Ωλ, know", ["Ωλ"]),
    ],
)
def test_unknown_words_are_shown_as_they_are_written(tmp_path: Path, kind: str, text: str, expected: list[str]) -> None:
    rows = [("know, know, know", "know, know")] * 4
    folder = write_data(tmp_path / "d", train=rows, validation=[(text, text), ("know", "know")])
    inspection = inspect_recipe(tiny_recipe(folder, tokenizer={"train": kind, "shared": True, "min_frequency": 1}))
    for side in (inspection.splits["validation"].sides["source"], inspection.splits["validation"].sides["target"]):
        assert sorted(side.unknown.examples) == sorted(expected)
        assert (side.unknown.count, side.unknown.texts) == (len(expected), 1)


def test_a_tokenizer_over_bytes_knows_everything(inspection: Inspection) -> None:
    class Bytes:
        bos_token_id = eos_token_id = unk_token_id = 7
        pad_token_id = None
        all_special_ids = (7,)

    assert unknown_id(Bytes()) is None
    unknown = count_unknown(Bytes(), RaggedTokens([[1, 2, 7], [3, 7]]), lambda i: "", as_target=False)
    assert (unknown.count, unknown.tokens, unknown.examples) == (0, 3, ())


def test_duplicates_and_overlap_of_what_training_sees(inspection: Inspection) -> None:
    assert inspection.duplicates == Duplicates(2, ("ab", "baa"))
    columns = ExampleColumns(("source",), ("target",))
    assert inspection.overlaps == {
        "validation": Overlap(columns, 5, 2, 1, 1, ("cd", "c"), ("ab", "baa"), ("ab", "baa")),
        "test": Overlap(columns, 1, 0, 0, 0),
    }


def test_drop_duplicates_leaves_none(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:19], validation=VALIDATION[:1])
    inspection = inspect_recipe(tiny_recipe(folder, data={"drop_duplicates": True}))
    assert inspection.duplicates == Duplicates(0, None)
    assert inspection.splits["train"].left_out == {"duplicate": 2}


def test_unreachable_references_are_counted_and_cause_a_warning(inspection: Inspection) -> None:
    assert inspection.splits["validation"].unreachable_references == 1
    warnings = [warning for warning in inspection.warnings if "eval.max_new_tokens=8" in warning]
    assert len(warnings) == 1
    assert warnings[0].startswith("validation: 1 of 5 references")
    assert "needs 9" in warnings[0]


def test_max_new_tokens_includes_the_end_token(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=[("dd", "abcdabcd")])
    inspection = inspect_recipe(tiny_recipe(folder, eval={"max_new_tokens": 9}))
    assert inspection.splits["validation"].unreachable_references == 0
    assert not any("max_new_tokens" in warning for warning in inspection.warnings)


def test_lowercase_outputs_with_case_sensitive_metrics_cause_a_warning() -> None:
    def warnings(*metrics: str) -> list[str]:
        lower = tiny_recipe("builtin:dates", tokenizer={"lowercase": True}, eval={"metrics": [*metrics]})
        return list(find_warnings(lower, {}, {}, cost_of()))

    (warning,) = warnings("bleu", "rouge1", "exact_match")
    assert warning.startswith("tokenizer.lowercase: outputs have no capitals, but bleu, exact_match compare")
    assert warnings("rouge1") == []


def test_a_clean_recipe_has_no_warnings() -> None:
    recipe = tiny_recipe(
        "builtin:dates",
        data={"languages": ["en"], "sizes": {"train": 300, "validation": 5, "test": 5}},
        eval={"max_new_tokens": 11},
    )
    assert inspect_recipe(recipe).warnings == []


# ---- batches and model -----------------------------------------------------------------------------------------------


def test_steps_and_padding(inspection: Inspection) -> None:
    assert inspection.batches.steps_per_epoch == 5  # 19 examples, four at a time
    assert inspection.batches.total_steps == 10
    assert inspection.batches.epochs == 2
    # all have equal lengths but one target, which is padded by one token
    assert inspection.batches.padding == pytest.approx(1 / (19 * 3 + 19 * 4))


def test_examples_are_those_of_the_first_micro_batch(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=VALIDATION[:2])
    recipe = tiny_recipe(folder, train={"micro_batches": 2, "batch_size": 4})
    inspection = inspect_recipe(recipe)
    prepared = prepare(recipe)
    texts = {TRAIN[i] for i in prepared.plan.step(0)[0]}
    assert len(inspection.examples) == len(texts) == 2
    assert {(e.sides["source"].text, e.sides["target"].text) for e in inspection.examples} == {
        (f"{s}</s>", f"{t}</s>") for s, t in texts
    }
    for example in inspection.examples:
        assert "".join(example.sides["source"].tokens) == example.sides["source"].text
        assert example.sides["target"].tokens[-1] == "</s>"
        assert example.sides["source"].padding == 0
    assert inspection.start_token == "<s>"


def test_padding_of_examples_and_unknown_tokens_are_visible(tmp_path: Path) -> None:
    rows = [("ab", "ab"), ("a", "abc"), ("abcж", "b"), ("aa", "aa"), ("cc", "cc"), ("bb", "bb")]
    folder = write_data(tmp_path / "d", train=rows, validation=rows)
    recipe = tiny_recipe(folder, tokenizer={"min_frequency": 2}, train={"batch_size": 6})
    shown = {
        (e.sides["source"].text, e.sides["source"].padding, e.sides["target"].padding)
        for e in inspect_recipe(recipe).examples
    }
    possible = {("ab</s>", 2, 1), ("a</s>", 3, 0), ("abc<unk></s>", 0, 2), ("aa</s>", 2, 1), ("cc</s>", 2, 1)}
    assert shown <= possible | {("bb</s>", 2, 1)}
    assert ("abc<unk></s>", 0, 2) in shown


def test_parameters_are_counted_once_each(inspection: Inspection) -> None:
    parameters = inspection.parameters
    # source: 4 letters, target: 4; both with four special tokens
    assert inspection.vocabularies == {"source": 8, "target": 8}
    assert parameters.parts["embeddings"] == 2 * 8 * 4
    assert parameters.parts["output"] == 8 * 8 + 8
    assert parameters.trained == parameters.total == sum(parameters.parts.values())


def test_parameters_by_part_and_frozen_ones() -> None:
    from kit.models import RNNSeq2SeqConfig, RNNSeq2SeqForConditionalGeneration

    config = RNNSeq2SeqConfig(
        vocab_size=10, decoder_vocab_size=10, hidden_size=8, embedding_size=8, cell="gru", bidirectional=False,
        attention="additive", context_to=["readout"], share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
    )  # fmt: skip
    model = RNNSeq2SeqForConditionalGeneration(config)
    model.get_input_embeddings().weight.requires_grad_(False)
    inspection = count_parameters(model)
    gru = 2 * 3 * 8 * 8 + 2 * 3 * 8
    assert inspection.parts["embeddings"] == 10 * 8  # source, target and output share it
    assert inspection.parts["output"] == 10  # the bias
    assert inspection.parts["encoder"] == gru
    assert inspection.parts["attention"] == 8 * 8 + (8 * 8 + 8) + 8  # keys, query, energy
    assert inspection.total == sum(p.numel() for p in model.parameters())
    assert inspection.trained == inspection.total - 80


# ---- time and memory -------------------------------------------------------------------------------------------------


def test_the_cost_follows_the_recipe(inspection: Inspection) -> None:
    cost = inspection.cost
    assert cost is not None
    assert cost.total_steps == 10
    assert cost.evaluations == 3  # at steps 4 and 8, and at the end
    assert cost.seconds_of_training == pytest.approx(10 * cost.seconds_per_step)
    assert 0 < cost.seconds_per_step < math.inf
    assert 0 < cost.seconds_of_evaluations < math.inf
    assert cost.memory.parameters == pytest.approx(4 * inspection.parameters.total / 2**20)
    assert cost.memory.optimizer == pytest.approx(2 * cost.memory.parameters, rel=0.1)  # Adam's two means
    assert cost.memory.step >= 0
    assert cost.memory.available > cost.memory.total > cost.memory.rest > 0


def test_the_trial_does_not_change_the_model(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=VALIDATION[:2])
    prepared = prepare(tiny_recipe(folder, train={"optimizer": "sgd"}))
    before = copy.deepcopy(prepared.model.state_dict())
    cost = estimate(prepared, Accelerator())
    assert all(torch.equal(before[name], tensor) for name, tensor in prepared.model.state_dict().items())
    assert all(parameter.grad is None for parameter in prepared.model.parameters())
    assert cost.memory.optimizer == 0  # plain SGD has no state


def test_seconds_of_evaluations_are_extrapolated_from_growing_parts() -> None:
    assert extrapolate([(4, 2.0)])(40) == pytest.approx(20.0)  # proportional: nothing is known of a constant part
    seconds = extrapolate([(4, 9.0), (16, 2.0), (64, 5.0)])  # the first is slow, as always
    assert seconds(64) == pytest.approx(5.0)
    assert seconds(640) == pytest.approx(1.0 + 640 / 16)
    assert extrapolate([(4, 2.0), (16, 1.6)])(160) == pytest.approx(16.0)


def test_trial_steps_are_spread_over_the_lengths(tmp_path: Path) -> None:
    rows = [("a" * n, "b") for n in range(1, 41)]
    folder = write_data(tmp_path / "d", train=rows, validation=rows)
    prepared = prepare(tiny_recipe(folder, train={"batch_size": 2}))
    longest, strata = representative_micro_batches(prepared)
    lengths = prepared.encoded["train"].examples.source.lengths
    assert lengths[longest].max() == 41
    tops = [int(lengths[part].max()) for part in strata]
    assert tops == sorted(tops)
    assert [round(top / 8 - 0.5) for top in tops] == [0, 1, 2, 3, 4]  # one out of each fifth


def test_peak_memory_includes_freed_memory() -> None:
    # mapped: an allocation could reuse memory that this process freed, but kept
    with PeakMemory(torch.device("cpu")) as peak, mmap.mmap(-1, 2**26) as block:
        block.write(b"x" * 2**26)
        time.sleep(0.3)  # memory is looked at every few milliseconds
    assert 50 < peak.growth / 2**20 < 200


def cost_of(**changes: Any) -> Cost:
    memory = Memory(parameters=1.0, optimizer=2.0, step=30.0, rest=400.0, available=10_000.0)
    return replace(Cost("cpu", 2.0, 100, 60.0, 2, memory), **changes)


def test_too_little_time_or_memory_causes_a_warning(inspection: Inspection) -> None:
    def warnings(cost: Cost | None, minutes: float | None = None) -> list[str]:
        return list(find_warnings(tiny_recipe("builtin:dates", train={"max_minutes": minutes}), {}, {}, cost))

    assert warnings(cost_of()) == []
    assert warnings(cost_of(), 3.4) == []  # 200 seconds
    assert warnings(cost_of(), 1.0) == ["train.max_minutes=1 ends the training at about step 30 of 100"]
    (short,) = warnings(cost_of(memory=replace(cost_of().memory, available=432.0)))
    assert "433 MB" in short
    assert "train.micro_batches" in short
    assert "does not fit" in warnings(None)[0]


def test_a_batch_that_does_not_fit_is_a_warning_in_a_complete_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*arguments: Any) -> Cost:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(dry_run, "estimate", too_large)
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=VALIDATION[:2])
    inspection = inspect_recipe(tiny_recipe(folder))
    assert inspection.cost is None
    assert any("does not fit" in warning for warning in inspection.warnings)
    assert "could not be measured" in printed(inspection)


def test_untrainable_recipe_is_rejected_as_by_a_run(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=VALIDATION[:2])
    with pytest.raises(DataError, match="tokens_per_batch"):
        inspect_recipe(tiny_recipe(folder, train={"tokens_per_batch": 2, "batch_size": None}))


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_everything_is_shown(inspection: Inspection) -> None:
    text = printed(inspection)
    for expected in (
        "2 data.max_length", "1 empty source", "ж", "cd → c", "ab → baa", "</s>", "source 8, target 8",
        "embeddings 64", "10; 5 an epoch, 2 epochs", "MB", "3 while training", "eval.max_new_tokens=8",
    ):  # fmt: skip
        assert expected in text, expected


def test_no_text_breaks_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "estimate", lambda *arguments: cost_of())
    hostile = [
        ("[bold]x[/bold] [/]", "[red"),
        ("\x1b[31m\x07\x00", "a\r\nb\tc"),
        ("\u202egnp.exe\u2066", "\u2028\u2029"),
        ("Σάββατο 3 Απριλίου 2021 " * 20, "2021年4月3日(土)" * 18),
        ("الجمعة، ٣ أبريل", "วันเสาร์ที่ 3 เมษายน"),
        ("👩‍👩‍👧 ক্ষুধা", "שבת"),
    ]
    folder = write_data(tmp_path / "d", train=[*hostile, *hostile], validation=hostile)
    inspection = inspect_recipe(tiny_recipe(folder, train={"batch_size": 12}, tokenizer={"min_frequency": 2}))
    for width in (60, 100):
        text = printed(inspection, width)
        lines = text.splitlines()
        assert max(map(cell_len, lines)) <= width
        for steering in "\x1b\x07\x00\r\t\u202e\u2066\u2028\u2029":
            assert steering not in text
        assert len(lines) < 200  # long text is cut
        for heading in ("Data", "Unknown tokens", "Repeated examples", "Model and batches"):
            assert heading in lines


@given(st.text(st.characters()))
def test_visible_text_is_one_line_and_complete(text: str) -> None:
    shown = visible(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 or 0xD800 <= ord(letter) < 0xE000 for letter in shown)
    shown.encode("utf-8")
    if text.isascii() and text.isprintable():
        assert shown == text


def test_a_compiled_run_is_reported_as_faster(inspection: Inspection) -> None:
    assert "torch_compile" not in printed(inspection)
    assert "torch_compile" in printed(replace(inspection, cost=cost_of(to_be_compiled=True)))


def test_one_vocabulary_for_both_sides(tmp_path: Path) -> None:
    folder = write_data(tmp_path / "d", train=TRAIN[:16], validation=VALIDATION[:2])
    inspection = inspect_recipe(tiny_recipe(folder, tokenizer={"shared": True}))
    assert inspection.vocabularies == {"shared": 8}
    assert "shared 8 tokens" in printed(inspection)
