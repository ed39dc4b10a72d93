"""The scripts under recipes/, run with tiny settings on generated text."""

import ast
import gzip
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from support.scripts import FOLDERS, run_script, script, write_parallel_text

from kit.cards.markdown import escape
from kit.data.text.tokenizer import NoTokenizers
from kit.errors import DataError, KitError, RunError
from kit.recipe.catalog import shipped_recipes
from kit.runs.folder import RunFolder
from kit.tasks.registry import load_recipe

WORDS = {
    "de": ("ein", "hund", "rennt", "schnell"),
    "en": ("a", "dog", "runs", "fast"),
    "fr": ("un", "chien", "court", "vite"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_parallel_text(tmp_path / "text", WORDS, test_rows=24)


WITH_MAIN = sorted(path.stem for path in FOLDERS[0].glob("*.py") if "\ndef main(" in path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", WITH_MAIN)
def test_a_script_finds_what_it_imports(name: str) -> None:
    assert callable(script(name).main)


TINY = ["train.tokens_per_batch=256", "eval.num_beams=1", "eval.max_new_tokens=12", "eval.examples=0", "eval.steps=0"]


@pytest.mark.soak
def test_the_length_experiment_trains_five_models_and_draws_them(folder: Path, tmp_path: Path, capsys) -> None:
    experiment = script("length_experiment")
    tiny = [*TINY, "model.hidden_size=8", "model.embedding_size=8", "train.max_steps=3", "tokenizer.vocab_size=60"]
    arguments = [str(folder), *tiny, "--output", str(tmp_path / "out"), "--minutes", "5"]
    experiment.main(arguments)
    table = (tmp_path / "out" / "length.md").read_text()
    assert capsys.readouterr().out == table
    assert (tmp_path / "out" / "length.png").read_bytes().startswith(b"\x89PNG")

    folders = [path for path in (tmp_path / "out").iterdir() if path.is_dir() and path.name != "data"]
    runs = {path.name: RunFolder.open(path) for path in folders}
    assert set(runs) == {
        "no_attention", "no_attention_reversed", "fixed_context", "attention", "attention_reversed",
    }  # fmt: skip
    recipes = {name: run.recipe() for name, run in runs.items()}
    for name, recipe in recipes.items():
        assert recipe.data.path == str(tmp_path / "out" / "data")
        assert recipe.train.max_minutes == 5
        assert recipe.model.settings["reverse_source"] == name.endswith("_reversed")
        differing = set(recipe.differences(recipes["attention"]))
        assert differing <= {f"model.{key}" for key in ("attention", "attention_query", "context_to", "reverse_source")}
    kinds = {name: recipe.model.settings["attention"] for name, recipe in recipes.items()}
    assert kinds == {
        "no_attention": "none", "no_attention_reversed": "none", "fixed_context": "fixed", "attention": "general",
        "attention_reversed": "general",
    }  # fmt: skip

    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert head == ["source", "examples", *experiment.MODELS]
    lengths = runs["fixed_context"].results()["test"]["by"]["length"]
    assert [row[:2] for row in rows[:-1]] == [[name, str(group["count"])] for name, group in lengths.items()]
    assert [float(row[4]) for row in rows[:-1]] == [
        pytest.approx(group["bleu"], rel=1e-3) for group in lengths.values()
    ]
    assert rows[-1][:2] == ["all", str(sum(group["count"] for group in lengths.values()))]

    # finished runs are left as they are
    written = {name: run.results_file.stat().st_mtime_ns for name, run in runs.items()}
    (tmp_path / "out" / "length.md").unlink()
    experiment.main(arguments)
    assert (tmp_path / "out" / "length.md").read_text() == table
    assert written == {name: run.results_file.stat().st_mtime_ns for name, run in runs.items()}


def test_the_length_experiment_joins_every_caption_once_and_both_languages_alike(tmp_path: Path) -> None:
    experiment = script("length_experiment")
    source, output = tmp_path / "multi30k", tmp_path / "out"
    source.mkdir()
    for name, size in (("train", 6000), ("val", 7), ("test_2016_flickr", 1)):
        for language in ("de", "en"):
            text = "".join(f"{language}{n}\n" for n in range(size)).encode()
            (source / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
    experiment.main([str(source), "--data-only", "--output", str(output)])
    assert [path.name for path in output.iterdir()] == ["data"]
    for split, size in (("train", 6000), ("validation", 7), ("test", 1)):
        german, english = (
            [[int(word[2:]) for word in line.split()] for line in (output / f"data/{split}.{language}").open()]
            for language in ("de", "en")
        )
        assert german == english
        assert [number for part in german for number in part] == list(range(size))
    counts = Counter(len(line.split()) for line in (output / "data/train.de").open())
    assert set(counts) == {1, 2, 3, 4, 5}
    # each size holds 1,200 of the 6,000 captions; the standard deviation of the largest is about 72
    assert all(abs(size * count - 1200) < 300 for size, count in counts.items())

    (source / "val.en").write_text("en0\n")
    with pytest.raises(DataError, match=r"the files of val differ in their number of lines: {'de': 7, 'en': 1}"):
        experiment.main([str(source), "--data-only", "--output", str(output)])
    (source / "val.en").unlink()
    (source / "val.en.gz").unlink()
    with pytest.raises(DataError, match=r"has no file val\.en or val\.en\.gz"):
        experiment.main([str(source), "--data-only", "--output", str(output)])


@pytest.mark.soak
def test_settings_are_compared_over_seeds_and_by_horizon(tmp_path: Path, capsys) -> None:
    from kit import load_recipe

    experiment = script("settings_experiment")
    for name, settings in experiment.EXPERIMENTS.items():
        recipes = [load_recipe(f"experiments/{name}", overrides) for overrides in settings.values()]
        assert all(recipe.differences(other) for recipe in recipes for other in recipes if recipe is not other)

    tiny = ["model.hidden_size=4", "data.sizes={train: 6, validation: 2, test: 2}", "train.max_steps=2", "eval.steps=0"]
    experiment.main(["scheduled_sampling", *tiny, "--output", str(tmp_path / "out"), "--seeds", "2"])
    table = (tmp_path / "out" / "scheduled_sampling.md").read_text()
    assert capsys.readouterr().out == table
    assert (tmp_path / "out" / "scheduled_sampling.png").read_bytes().startswith(b"\x89PNG")
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert head == ["setting", "seeds", "loss", "mse", "mae"]
    figures = [
        RunFolder.open(tmp_path / "out" / f"teacher_forcing_{seed}").results()["test"]["mse"] for seed in range(2)
    ]
    assert rows[0][:2] == ["teacher forcing", "2"]
    assert rows[0][3] == f"{sum(figures) / 2:.4g} ({min(figures):.4g} to {max(figures):.4g})"


def test_a_direction_never_seen_is_compared_with_the_way_through_english(folder: Path, tmp_path: Path, capsys) -> None:
    from kit import evaluate, load_recipe, train

    small = ["hidden_size=16", "encoder_layers=1", "decoder_layers=1", "num_attention_heads=2", "intermediate_size=16"]
    overrides = [
        *TINY, *(f"model.{value}" for value in small), f"data.path={folder}", "data.direction_sizes={fr-en: 20}",
        "train.max_steps=3", "tokenizer.vocab_size=80",
    ]  # fmt: skip
    run = train(load_recipe("multilingual", overrides), tmp_path / "run")
    assert set(run.results["test"]["by"]["direction"]) == {"de-en", "en-de", "en-fr", "fr-en"}
    assert run.results["data"]["examples"] == {"train": 3 * 60 + 8 * 20, "validation": 4 * 8, "test": 4 * 24}

    unseen = evaluate(run.folder, "test", ["data.directions=[de-fr]"])
    assert [row["direction"] for row in unseen.rows] == ["de-fr"] * 24
    assert unseen.rows[3]["target"] == (folder / "test_2016_flickr.fr").read_text().splitlines()[3]

    script("pivot").main([str(run.folder), str(folder)])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert [row[:2] for row in rows] == [["de-fr", "no"], ["de-en-fr", "yes"]]
    assert float(rows[0][2]) == pytest.approx(unseen.figures["bleu"], rel=1e-3)


def test_a_run_with_one_direction_cannot_pivot(trained: Path, folder: Path) -> None:
    with pytest.raises(RunError, match="has one direction"):
        script("pivot").main([str(trained), str(folder)])


# ---- experiments with seeds ------------------------------------------------------------------------------------------

SMALL = [
    "model.hidden_size=8", "model.num_hidden_layers=1", "model.num_attention_heads=2", "model.intermediate_size=16",
    "tokenizer.vocab_size=200", "train.max_steps=2", "train.tokens_per_batch=512", "train.mixed_precision=no",
    "data.pair_passes=1", "eval.examples=0",
]  # fmt: skip


@pytest.mark.soak
def test_pretraining_is_compared_with_the_same_model_from_scratch(tmp_path: Path, capsys) -> None:
    documents = {
        name: [
            f"A paragraph of {name} with number {n}. It speaks of {name}, and of much else besides." for n in range(8)
        ]
        for name in ("stones", "rivers", "winds")
    }
    lines = [json.dumps({"title": name, "paragraphs": paragraphs}) for name, paragraphs in documents.items()]
    (tmp_path / "texts.jsonl").write_text(
        "".join(f"{line}\n" for line in [*lines, '{"title": "short", "paragraphs": []}'])
    )
    output = tmp_path / "out"
    arguments = [str(tmp_path / "texts.jsonl"), *SMALL, "--output", str(output), "--labels", "2", "--seeds", "2"]
    script("pretraining_helps").main([*arguments, "--steps", "2"])
    report = (output / "helps.md").read_text()
    assert capsys.readouterr().out == report
    assert report.startswith(
        "Which of 3 documents is a paragraph from? 2 labels for each document, 6 in all, 6 held-out"
    )

    rows = {split: (output / "labeled" / f"{split}.jsonl").read_text().splitlines() for split in ("train", "test")}
    text = (output / "text" / "train.jsonl").read_text()
    assert all(json.loads(row)["text"] in text for row in rows["train"])
    assert not any(json.loads(row)["text"] in text for row in rows["test"])
    for seed in (0, 1):
        scratch, pretrained = (RunFolder.open(output / f"{name}_{seed}") for name in ("from_scratch", "pretrained"))
        differences = set(scratch.recipe().differences(pretrained.recipe()))
        assert differences == {"model.pretrained"}
        assert f"{scratch.results()['test']['accuracy']:.4g}" in report
    assert RunFolder.open(output / "pretrained_0").recipe().train.seed == 0


def test_a_recipe_is_trained_with_several_seeds(tmp_path: Path, capsys) -> None:
    output = tmp_path / "out"
    small = [*SMALL, "data.sizes={train: 6, validation: 3, test: 3}"]
    script("several_seeds").main(["pretraining/bert_nsp_tiny", *small, "--seeds", "2", "--output", str(output)])
    report = (output / "seeds.md").read_text()
    assert capsys.readouterr().out == report
    results = [RunFolder.open(output / f"seed_{seed}").results()["test"] for seed in (0, 1)]
    for name in ("pair_accuracy", "pair_accuracy_error", "masked_loss", "unigram_loss"):
        values = [result[name] for result in results]
        mean, error = sum(values) / 2, abs(values[0] - values[1]) / 2
        assert f"| {escape(name)} | {values[0]:.4g} | {values[1]:.4g} | {mean:.3f} ± {error:.3f} |" in report
    assert results[0]["masked_loss"] != results[1]["masked_loss"]
    assert results[0]["unigram_loss"] == results[1]["unigram_loss"]


# ---- record --------------------------------------------------------------------------------------------------------

HEAD = """\
# Dates in many languages to ISO dates.
task: translation
model: {type: rnn_seq2seq, hidden_size: 64}   # ours
data: {path: "builtin:dates"}
train:
  max_steps: 10  # few
  batch_size: 8
"""
RESULTS = {
    "validation": {"loss": 0.123456, "exact_match": 97.51, "by": {"language": {"de": {"loss": 1.0}}}},
    "test": {"loss": 0.2, "exact_match": 96.0},
    "train": {"seconds": 93.0, "steps": 10, "tokens_per_second": 5000.0},
    "parameters": 123456,
    "hardware": "2 cores, no GPU",
    "versions": {"kit": "0.1.0", "torch": "2.13.0", "evaluate": "0.4.6"},
}
FIGURES = {
    "test_loss": 0.2,
    "test_exact_match": 96.0,
    "validation_loss": 0.1235,
    "validation_exact_match": 97.51,
    "minutes": 1.55,
    "steps": 10,
    "parameters": 123456,
    "hardware": "2 cores, no GPU",
    "versions": "kit 0.1.0, torch 2.13.0",
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of HEAD."""
    folder = tmp_path / "run"
    (folder / "model").mkdir(parents=True)
    (folder / "head.yaml").write_text(HEAD)
    recipe = load_recipe(folder / "head.yaml").with_values("data", fingerprints={"train": "abc"})
    RunFolder(folder).start(recipe, NoTokenizers())
    (folder / "results.json").write_text(json.dumps(RESULTS))
    return folder


def record(*arguments: object) -> None:
    script("record").main([str(argument) for argument in arguments])


@pytest.mark.parametrize(
    "tail", ["", "measured:\n  none: not yet\n", "measured: {none: not yet}", "measured:\n", "\n\n"]
)
def test_figures_are_recorded_and_all_else_stays(run: Path, tmp_path: Path, tail: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD + tail)
    for _ in range(2):
        record(run, path)
        text = path.read_text()
        assert text.startswith(HEAD + "measured:\n")
        assert load_recipe(path).measured == FIGURES
        assert load_recipe(path).differences(load_recipe(run / "head.yaml")) == ["measured"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["r.yaml", "run"]


@pytest.mark.parametrize("name", [name for name in shipped_recipes() if "none" not in load_recipe(name).measured])
def test_a_shipped_recipe_stays_the_same_when_its_figures_are_recorded_again(name: str) -> None:
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert script("record").with_measured(text, load_recipe(name).measured, Path(name)) == text


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (HEAD.replace("64", "32"), [], r"model\.hidden_size: 64 in the run, 32 in"),
        (HEAD.replace("builtin:dates", "org/dates"), [], r"data\.path: builtin:dates in the run, org/dates in"),
        (
            HEAD.replace("64", "32"),
            ["model.hidden_size=64"],
            r"model\.hidden_size=64 would change what the figures mean",
        ),
        (HEAD + "measured: {none: why}\nhub: {license: mit}\n", [], "is not the last section"),
    ],
)
def test_figures_of_another_recipe_are_not_recorded(
    run: Path, tmp_path: Path, text: str, arguments: list[str], message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(KitError, match=message):
        record(run, path, *arguments)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("results", "message"),
    [(None, "is not finished"), (json.dumps({**RESULTS, "test": {"loss": float("nan")}}), "test.loss is nan")],
)
def test_an_unfinished_or_broken_run_is_not_recorded(
    run: Path, tmp_path: Path, results: str | None, message: str
) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD)
    (run / "results.json").unlink()
    if results is not None:
        (run / "results.json").write_text(results)
    with pytest.raises(KitError, match=message):
        record(run, path)
    assert path.read_text() == HEAD


def test_overrides_are_recorded_so_that_a_shell_takes_them(run: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "r.yaml", tmp_path / "data" / "pairs.txt"
    path.write_text(HEAD.replace("builtin:dates", "org/dates") + "hub: {tags: [x]}\n")
    changes = [f"data.path={data}", "data.columns=[source, target, other name]"]
    RunFolder(run).start(load_recipe(path, changes), NoTokenizers())
    (run / "results.json").write_text(json.dumps(RESULTS))
    record(run, path, *changes)
    assert shlex.split(load_recipe(path).measured["changes"]) == ["data.path=data/pairs.txt", changes[1]]


def test_the_mean_of_checkpoints_is_recorded_beside_the_best_step(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(HEAD)
    compared = {"chosen": "best_step", "steps": [3, 4, 5], "average": {"loss": 0.5}, "best_step": {"loss": 0.25}}
    (run / "results.json").write_text(json.dumps({**RESULTS, "averaging": compared}))
    record(run, path)
    recorded = "loss on validation 0.25 at the best step, 0.5 as the mean of 3 checkpoints"
    assert load_recipe(path).measured["averaging"] == recorded


def test_a_card_is_kept_without_plots_and_with_the_license_of_the_recipe(run: Path, tmp_path: Path) -> None:
    path, hub = tmp_path / "r.yaml", "hub: {license: mit, tags: [dates]}\n"
    path.write_text(HEAD.replace("builtin:dates", "org/dates") + hub)
    changes = [f"data.path={tmp_path}/dates"]
    recipe = load_recipe(path, changes)
    assert recipe.hub.license is None  # kit cannot know that the data is the same
    RunFolder(run).start(recipe, NoTokenizers())
    (run / "results.json").write_text(json.dumps({**RESULTS, "validation": {"loss": 0.5}}))
    (run / "plots").mkdir()
    (run / "plots" / "loss.png").write_bytes(b"")
    record(run, path, *changes, "--card", tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert "(Picture of the run: `plots/loss.png`.)" in card
    assert "](plots/" not in card
    assert (ModelCard(card).data.license, "dates" in ModelCard(card).data.tags) == ("mit", True)


# ---- examples --------------------------------------------------------------------------------------------------------

MOMENT = [
    "model.hidden_size=16", "model.embedding_size=8", "data.languages=[en, de]", "train.max_steps=2", "eval.steps=0",
    "data.sizes={train: 64, validation: 8, test: 8}",
]  # fmt: skip


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Examples write into runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_example_of_training_with_kit_runs(in_tmp: Path, capsys) -> None:
    run_script("train_with_kit", *MOMENT)
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"exact match on the test split: [\d.]+", lines[-2])
    assert lines[-1].startswith("[{'translation_text': ")
    assert RunFolder.open(in_tmp / "runs" / "dates_from_python").results()["train"]["steps"] == 2


def test_the_example_of_training_with_the_trainer_runs(in_tmp: Path, capsys) -> None:
    run_script("train_with_trainer", *MOMENT)
    figures = ast.literal_eval(capsys.readouterr().out.splitlines()[-1])
    assert {"test_loss", "test_exact_match"} <= figures.keys()


def test_the_demo_shows_translations_and_files_that_exist(trained: Path, capsys) -> None:
    demo = script("demo")
    demo.main(str(trained))
    output = capsys.readouterr().out
    assert "exact match on 20 test dates" in output
    assert output.count("  →  ") == len(demo.DATES)
    paths = re.findall(r"^(?:where|the model card).*: +(\S+)$", output, re.MULTILINE)
    assert len(paths) == 2
    assert all(Path(path).is_file() for path in paths)


def test_the_example_of_attention_names_a_place_for_each_token(trained: Path, in_tmp: Path, capsys) -> None:
    run_script("decode_and_look", trained, "16. November 2019")
    decoded, *looks, picture = capsys.readouterr().out.splitlines()
    assert len(decoded) <= 16
    assert looks
    assert all(re.fullmatch(r"'.*' attends most to '.*' \([\d.]+\)", line) for line in looks)
    assert Path(picture).read_bytes().startswith(b"\x89PNG")


def test_every_script_and_benchmark_runs_in_a_test() -> None:
    called = set()
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in ("script", "run_script"):
                called |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
    shared = {"steps"}  # which two benchmarks import
    assert called | shared == {path.stem for folder in FOLDERS for path in folder.glob("*.py")}
