"""`kit generate`: files of any size stream through in bounded memory, and a bad line never stops one."""

import gzip
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunKit
from support.recipes import make_recipe

import kit.tasks.families.seq2seq.inference
from kit import KitError, Translator, train
from kit.decoding.search import search
from kit.decoding.settings import GenerationSettings
from kit.errors import DataError
from kit.prediction.issues import LineIssues
from kit.prediction.lines import MAX_LINE_BYTES, count_lines
from kit.prediction.text import Output

GOOD = ["3. April 2021", "samedi 12 juin 1999", "May 5, 2030", "[de] 01.02.03"]
QUICK = {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def translator(trained: Path) -> Translator:
    return Translator(trained)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that has positions for 24 tokens."""
    folder = tmp_path_factory.mktemp("limited")
    model = {
        "type": "transformer_seq2seq", "hidden_size": 16, "encoder_layers": 1, "decoder_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 24,
    }  # fmt: skip
    small = ["data.sizes={train: 40, validation: 4, test: 4}", "train.max_steps=2", "eval.steps=0"]
    return train(make_recipe(folder, "translation", overrides=small, model=model), folder / "run").folder


def texts_of(outputs: Iterator[list[Output]]) -> list[str]:
    return [best[0].text for best in outputs]


# ---- streams ---------------------------------------------------------------------------------------------------------


class Line(str):
    """A text whose lifetime a weak reference can observe."""


def test_memory_is_bounded_by_one_portion(translator: Translator) -> None:
    """2,000 lines hold as many objects as a few portions of 50: memory does not grow with the file."""
    lines: weakref.WeakSet[Line] = weakref.WeakSet()
    read = done = 0

    def stream() -> Iterator[Line]:
        nonlocal read
        for number in range(2000):
            read += 1
            line = Line(f"{number % 28} May {number}")
            lines.add(line)
            yield line

    def count(more: int) -> None:
        nonlocal done
        done += more

    outputs: list[weakref.ref[Output]] = []
    alive = 0
    for written, best in enumerate(translator.translate(stream(), portion_size=50, progress=count, **QUICK), start=1):
        assert written <= done <= read <= written + 50
        outputs.append(weakref.ref(best[0]))
        if written % 200 == 0:
            alive = sum(reference() is not None for reference in outputs)
            assert alive <= 100
            assert len(lines) <= 200
    assert written == done == read == 2000


def test_long_lines_make_small_portions(translator: Translator) -> None:
    read = 0

    def stream() -> Iterator[str]:
        nonlocal read
        for _ in range(8):
            read += 1
            yield "5. Mai " * 60_000  # 420,000 characters

    next(translator.translate(stream(), issues=LineIssues(), **QUICK))
    assert read == 3


def test_counting_and_order_over_portions(translator: Translator, tmp_path: Path) -> None:
    lines = [f"{day} June {year}" if day % 5 else "" for day in range(1, 29) for year in (1999, 2021)]
    expected = texts_of(translator.translate(lines))
    assert texts_of(translator.translate(lines, portion_size=7, tokens_per_batch=40)) == expected
    assert [expected[index] for index, line in enumerate(lines) if not line] == [""] * lines.count("")
    for end in ("\n", ""):
        (tmp_path / "in.txt").write_text("\n".join(lines) + end, encoding="utf-8")
        assert count_lines(tmp_path / "in.txt") == len(lines)


# ---- bad lines -------------------------------------------------------------------------------------------------------


def test_every_kind_of_bad_line(limited: Path, tmp_path: Path, kit_here: RunKit) -> None:
    bad = {
        b"\xff\xfe\xfa": "",  # nothing left
        b"\x00\x01\x02": "",
        b"5 June \xff2001": None,  # read, with a mark in place of the byte
        b"June " * 20: None,  # longer than the positions
        b"x" * (MAX_LINE_BYTES + 10): None,
        "é".encode() * MAX_LINE_BYTES: None,
        b"\x00" * (MAX_LINE_BYTES + 10): "",
    }
    lines = [b"\xef\xbb\xbf3 May 1984", *bad, b"", b"7 June 2001\r", b"no end"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))
    done = kit_here("generate", limited, "in.txt", "--output", "out.txt")
    assert done.returncode == 0, done.stderr
    outputs = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(outputs) == len(lines) + 1
    translator = Translator(limited)
    good = texts_of(translator.translate(["3 May 1984", "7 June 2001", "no end", ("June " * 20)[:23]]))
    assert [outputs[0], outputs[9], outputs[10], outputs[4]] == good
    for index, expected in enumerate(bad.values(), start=1):
        assert (outputs[index] == "") == (expected == "")
    assert "2 lines had bytes that are not UTF-8, read as \ufffd: lines 2, 4" in done.stderr
    assert (
        "3 lines held nothing but control characters or broken bytes, the output is empty: lines 2, 3, 8" in done.stderr
    )
    assert "3 lines had more than 1,048,576 bytes, the rest was left out: lines 6, 7, 8" in done.stderr
    assert "3 lines had more than 24 tokens, the rest was left out: lines 5, 6, 7" in done.stderr


def test_bad_line_raises_in_python(limited: Path) -> None:
    translator = Translator(limited)
    with pytest.raises(DataError, match="line 2 had more than 24 tokens"):
        list(translator.translate(["3 May", "June " * 20]))
    with pytest.raises(DataError, match="line 1 held nothing"):
        list(translator.translate(["\x00"]))
    with pytest.raises(KitError, match=r"max_new_tokens=25 .* at most 24"):
        translator.with_options(max_new_tokens=25)
    assert translator.with_options(max_new_tokens=24).settings.max_new_tokens == 24


def test_lone_surrogate_affects_one_line(translator: Translator) -> None:
    issues = LineIssues()
    lines = [GOOD[0], "a \ud800 b", GOOD[1]]
    for split in (None, "de"):
        texts = texts_of(translator.translate(lines, issues=issues, split_sentences=split))
        assert [texts[0], texts[2]] == texts_of(translator.translate([GOOD[0], GOOD[1]], split_sentences=split))
        assert texts[1] == ""
    assert "line" in issues.messages()[0]
    assert "could not be translated" in issues.messages()[0]


Search = Any


def test_failing_batch_is_retried_in_halves(
    trained: Path, translator: Translator, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with memory for two lines at a time, and a line of 19 characters that always fails."""
    lines = [*GOOD, "", *GOOD, "6 May 2002"]
    expected = texts_of(translator.translate(lines))
    search, sizes = kit.tasks.families.seq2seq.inference.search, []

    def narrow(model: Any, batch: dict[str, Any], settings: Any) -> Any:
        rows, length = batch["input_ids"].shape
        sizes.append(rows)
        if rows > 2 or length == 20:  # with the end marker
            raise RuntimeError("no memory\nfor so much")
        return search(model, batch, settings)

    monkeypatch.setattr(kit.tasks.families.seq2seq.inference, "search", narrow)
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = kit_here("generate", trained, "in.txt")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [
        "" if len(line) == 19 else text for line, text in zip(lines, expected, strict=True)
    ]
    assert max(sizes) > 2
    assert "2 lines could not be translated (RuntimeError: no memory), the output is empty: lines 2, 7" in done.stderr
    with pytest.raises(RuntimeError, match="no memory"):
        list(translator.translate(lines))


def test_failure_of_every_line_is_an_error(
    trained: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise TypeError("wrong")

    monkeypatch.setattr(kit.tasks.families.seq2seq.inference, "search", broken)
    (tmp_path / "in.txt").write_text("\n".join(GOOD), encoding="utf-8")
    done = kit_here("generate", trained, "in.txt", "--output", "out.txt")
    assert done.returncode == 2
    assert "none of the 4 lines could be translated: TypeError: wrong" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_interrupt_leaves_the_output_unchanged(
    trained: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = kit.tasks.families.seq2seq.inference.search

    def interrupted(model: Any, batch: dict[str, Any], settings: Any) -> Any:
        if batch["input_ids"].shape[1] < 12:  # the shortest lines come last
            raise KeyboardInterrupt
        return search(model, batch, settings)

    monkeypatch.setattr(kit.tasks.families.seq2seq.inference, "search", interrupted)
    (tmp_path / "in.txt").write_text("\n".join([*GOOD, "5 May"]), encoding="utf-8")
    (tmp_path / "out.txt").write_text("before", encoding="utf-8")
    done = kit_here("generate", trained, "in.txt", "--output", "out.txt", "--tokens-per-batch", "20")
    assert done.returncode == 130
    assert "interrupted: out.txt is unchanged" in done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_broken_gzip_file_is_named(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    whole = gzip.compress(("\n".join(GOOD) * 50).encode())
    for number, data in enumerate((whole[:-20], b"no gzip at all")):
        (tmp_path / f"{number}.gz").write_bytes(data)
        done = kit_here("generate", trained, f"{number}.gz", "--max-new-tokens", "2", "--output", "out.txt")
        assert done.returncode == 2
        assert f"{number}.gz is not a complete gzip file" in done.stderr
        assert not (tmp_path / "out.txt").exists()


# ---- sentences -------------------------------------------------------------------------------------------------------


def test_paragraphs_on_request(translator: Translator, trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    paragraphs = ["Am 3. April 2021. Oder am 4. Mai!  Ja?", "", GOOD[2]]
    parts = texts_of(translator.translate(["Am 3. April 2021.", "Oder am 4. Mai!", "Ja?", GOOD[2]]))
    expected = [f"{parts[0]} {parts[1]}  {parts[2]}", "", parts[3]]
    assert texts_of(translator.translate(paragraphs, split_sentences="de")) == expected
    (tmp_path / "in.txt").write_text("\n".join(paragraphs), encoding="utf-8")
    assert kit_here("generate", trained, "in.txt", "--split-sentences", "de").stdout.split("\n")[:-1] == expected
    done = kit_here("generate", trained, "in.txt", "--split-sentences", "de", "--n-best", "2")
    assert done.returncode == 2
    assert "--n-best has no effect with --split-sentences" in done.stderr


def test_no_repeat_ngram_size(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    (tmp_path / "in.txt").write_text("\n".join(GOOD), encoding="utf-8")
    plain = kit_here("generate", trained, "in.txt").stdout.splitlines()
    assert any(len(set(line)) < len(line) for line in plain)
    for line in kit_here("generate", trained, "in.txt", "--no-repeat-ngram-size", "1").stdout.splitlines():
        assert len(set(line)) == len(line) > 0  # a token is a character


def test_samples_of_an_encoder_decoder(trained: Path, kit_here: Any, tmp_path: Path) -> None:
    """Samples follow their seed; their score is the mean log-probability of their tokens under teacher forcing."""
    lines = ["3 May 1984", "4. Juni 1990", "1 mai 2001"]
    translator = Translator(trained)

    def drawn(seed: int) -> list[list[Output]]:
        return list(translator.translate(lines, sample=True, n_best=2, seed=seed, max_new_tokens=6))

    first = drawn(1)
    assert drawn(1) == first
    assert drawn(2) != first
    assert all(sample != other for sample, other in first)

    tokenizers, model = translator.tokenizers, translator.model
    batch = translator.pairs(tokenizers.encode_source(lines)).batch(np.arange(3), tokenizers.source.pad_token_id)
    sampling = GenerationSettings(do_sample=True, max_new_tokens=6, temperature=2.0, top_p=0.5, num_beams=1)
    torch.manual_seed(0)
    for row, (hypothesis,) in enumerate(search(model, batch, sampling)):
        tokens = torch.tensor([hypothesis.tokens])
        start = torch.full((1, 1), model.generation_config.decoder_start_token_id)
        source = {name: batch[name][row : row + 1] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            logits = model(**source, decoder_input_ids=torch.cat([start, tokens[:, :-1]], dim=1)).logits
        expected = logits.log_softmax(-1).gather(-1, tokens[..., None]).mean()
        assert hypothesis.score == pytest.approx(float(expected), rel=1e-4)

    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = kit_here("generate", trained, "in.txt", "--sample", "--temperature", 0.8, "--seed", 3)
    assert len(done.stdout.splitlines()) == 3
    for wrong in (("--top-p", 0.5), ("--sample", "--num-beams", 2), ("--sample", "--attention", "a.png")):
        refused = kit_here("generate", trained, "in.txt", *wrong)
        assert (refused.returncode, wrong[0] in refused.stderr) == (2, True)
