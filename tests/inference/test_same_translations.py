"""The same translations from kit, from pipelines, and from the command line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit

from kit import Translator, evaluate, pipeline, register

SENTENCES = ["3. April 2021", "samedi 12 juin 1999", "May 5, 2030", "[de] 01.02.03", "x"]


@pytest.fixture(scope="module")
def translations(trained: Path) -> list[str]:
    translator = Translator(trained)
    return [best[0].text for best in translator.translate(SENTENCES)]


def test_kit_pipeline(trained: Path, translations: list[str]) -> None:
    pipe = pipeline("translation", model=trained / "model")
    assert [pipe(sentence)[0]["translation_text"] for sentence in SENTENCES] == translations
    assert [record["translation_text"] for record in pipe(SENTENCES, batch_size=3)] == translations


def test_pipeline_n_best_with_scores(trained: Path) -> None:
    translator = Translator(trained)
    expected = next(translator.translate(SENTENCES[:1], n_best=3))
    pipe = pipeline("translation", model=trained / "model")
    records = pipe(SENTENCES[0], num_return_sequences=3, return_scores=True)
    assert [record["translation_text"] for record in records] == [output.text for output in expected]
    assert [record["score"] for record in records] == pytest.approx([output.score for output in expected], abs=1e-5)
    assert [record["finished"] for record in records] == [output.finished for output in expected]
    greedy = pipe(SENTENCES[0], num_beams=1, return_scores=True)[0]
    alone = next(translator.translate(SENTENCES[:1], num_beams=1))[0]
    assert greedy["score"] == pytest.approx(alone.score, abs=1e-5)


def test_stock_pipeline_after_register(trained: Path, translations: list[str]) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers import pipeline as stock_pipeline

    register()
    model = AutoModelForSeq2SeqLM.from_pretrained(trained / "model")
    tokenizer = AutoTokenizer.from_pretrained(trained / "model")
    del model.config.custom_pipelines  # a model object that kit registered needs no code from its folder
    pipe = stock_pipeline("translation", model=model, tokenizer=tokenizer)
    assert [pipe(sentence)[0]["translation_text"] for sentence in SENTENCES] == translations


def test_generate_keeps_order_and_lines(
    trained: Path, translations: list[str], tmp_path: Path, kit_here: RunKit
) -> None:
    lines = [*SENTENCES, "", "  ", *reversed(SENTENCES)]
    expected = [*translations, "", "", *reversed(translations)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = kit_here("generate", trained, tmp_path / "in.txt")
    assert done.stdout.splitlines() == expected
    with gzip.open(tmp_path / "in.txt.gz", "wt", encoding="utf-8") as file:
        file.write("\r\n".join(lines) + "\r\n")
    done = kit_here("generate", trained, "in.txt.gz", "--output", "out.txt", "--tokens-per-batch", "40")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == expected


@pytest.mark.soak
def test_generate_from_standard_input(trained: Path, translations: list[str], kit: RunKit) -> None:
    done = kit("generate", trained, "--scores", "--n-best", "2", stdin="\n".join(SENTENCES))
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[4] for row in rows[::2]] == translations
    assert [(int(row[0]), int(row[1])) for row in rows] == [
        (i + 1, j + 1) for i in range(len(SENTENCES)) for j in (0, 1)
    ]
    assert all(float(first[2]) >= float(second[2]) for first, second in zip(rows[::2], rows[1::2], strict=True))
    assert {row[3] for row in rows} <= {"yes", "no"}


def test_generate_continues_past_a_bad_line(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    (tmp_path / "in.txt").write_bytes(b"3. April 2021\n\xff\xfe 4\nMay 5, 2030\n")
    done = kit_here("generate", trained, "in.txt", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["line"] for row in rows] == [1, 2, 3]
    assert "1 line had bytes that are not UTF-8" in done.stderr


def test_generate_draws_attention(trained: Path, tmp_path: Path, kit_here: RunKit) -> None:
    (tmp_path / "in.txt").write_text("3. April 2021\n", encoding="utf-8")
    done = kit_here("generate", trained, "in.txt", "--attention", "map.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert len(done.stdout.splitlines()) == 1


def test_eval_gives_the_figures_of_the_run(trained: Path, kit_here: RunKit) -> None:
    results = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    for split in ("validation", "test"):
        again = evaluate(trained, split).figures
        assert {k: v for k, v in again.items() if k not in ("by", "loss", "perplexity")} == {
            k: v for k, v in results[split].items() if k not in ("by", "loss", "perplexity")
        }
        assert again["loss"] == pytest.approx(results[split]["loss"], rel=1e-6)
        assert again["by"] == results[split]["by"]
    done = kit_here("eval", trained, "--split", "tst")
    assert done.returncode == 2
    assert 'Did you mean "test"?' in done.stderr
    done = kit_here("eval", trained, "model.hidden_size=8")
    assert done.returncode == 2
    assert "model.hidden_size has no effect on the evaluation of " in done.stderr


def test_run_continues_from_a_pretrained_run(trained: Path, make_recipe: Any, tmp_path: Path) -> None:
    from kit import train

    short = ["train.learning_rate=1e-5", "train.max_steps=1"]
    recipe = make_recipe("translation", overrides=short, model={"pretrained": str(trained)})
    more = train(recipe, tmp_path / "more")
    before = json.loads((trained / "results.json").read_text(encoding="utf-8"))
    assert more.results["test"]["loss"] == pytest.approx(before["test"]["loss"], rel=1e-2)
