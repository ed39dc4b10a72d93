"""Every option of a command has an effect or is rejected with one message; none is ignored."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from conftest import RunKit
from support.recipes import make_recipe

import kit
from kit.cli import COMMANDS
from kit.inference.generate import text_predictor
from kit.prediction.options import GenerateOptions, PlotOptions
from kit.prediction.rows import PredictOptions
from kit.pretrained.pipeline_files import PIPELINES


@pytest.fixture(scope="module")
def models(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of models that write text."""
    folder = tmp_path_factory.mktemp("models")
    runs = {"translation": trained}
    for task in ("causal_lm", "dialogue"):
        recipe = make_recipe(folder, task, overrides=["train.max_steps=1", "eval.metrics=[]"])
        runs[task] = kit.train(recipe, folder / task).folder
    return runs


@pytest.fixture
def refuses(kit_here: RunKit, tmp_path: Path) -> Any:
    """Run a command with options, and expect one message and no output."""
    (tmp_path / "in.txt").write_text("a b\n", encoding="utf-8")

    def check(message: str, *arguments: object) -> None:
        done = kit_here(*arguments)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert message in done.stderr
        assert "Traceback" not in done.stderr

    return check


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("--seed", ["generate", "RUN", "in.txt", "--sample", "--seed", 10**32]),
        ("--last", ["average", "RUN", "--last", 10**32]),
        ("--samples", ["compare", "RUN", "RUN", "--samples", 2**63]),
        ('--head "9999', ["plot", "RUN", "--head", "9" * 5000]),
        ("no such checkpoint", ["eval", "RUN", "--checkpoint", "9" * 5000]),
        ("--sentence: the text is not valid UTF-8", ["plot", "RUN", "--sentence", "\udcff"]),
    ],
)
def test_numbers_and_texts_beyond_all_bounds(trained: Path, refuses: Any, message: str, arguments: list[Any]) -> None:
    refuses(message, *(trained if part == "RUN" else part for part in arguments))


def test_n_best_beyond_num_beams_is_rejected(models: dict[str, Path], refuses: Any) -> None:
    for run in models.values():
        refuses("--n-best 8: a search with --num-beams 2 has at most 2 outputs", "generate", run, "in.txt",
                "--num-beams", 2, "--n-best", 8)  # fmt: skip


def test_num_beams_defaults_to_n_best(models: dict[str, Path]) -> None:
    for task, saved in (("translation", 3), ("causal_lm", 1), ("dialogue", 1)):
        predictor = text_predictor(models[task], GenerateOptions())
        for options, beams in (({}, saved), ({"n_best": 5}, 5), ({"n_best": 2, "num_beams": 4}, 4)):
            assert predictor.with_options(**options).settings.num_beams == beams, (task, options)


def test_length_penalty_without_effect(models: dict[str, Path], refuses: Any, kit_here: RunKit) -> None:
    for task, greedy in (("translation", ("--num-beams", 1)), ("causal_lm", ()), ("dialogue", ())):
        command = ("generate", models[task], "in.txt", "--length-penalty", 2)
        refuses("--length-penalty has no effect on greedy search", *command, *greedy)
        assert kit_here(*command, "--num-beams", 2).returncode == 0
    scores = [
        kit_here("generate", models["translation"], "in.txt", "--num-beams", 1, "--scores", "--length-penalty", penalty)
        for penalty in (0, 2)
    ]
    assert scores[0].stdout != scores[1].stdout
    sampled = ("generate", models["causal_lm"], "in.txt", "--sample", "--length-penalty", 2)
    refuses("--length-penalty has no effect with --sample", *sampled)


def test_redundant_options_are_rejected(models: dict[str, Path], refuses: Any, tiny_recipe: Path) -> None:
    run = models["translation"]
    refuses("--scores has no effect with --json", "generate", run, "in.txt", "--scores", "--json")
    for option in (("--output", "x"), ("--resume",), ("--processes", 2), ("--processes", 2, "--shard")):
        refuses(f"{option[0]} has no effect with --dry-run", "train", tiny_recipe, "--dry-run", *option)
    refuses("--public has no effect with --dry-run", "push", run, "owner/name", "--dry-run", "--public")
    refuses("hub.license=mit has no effect with --data", "push", ".", "owner/name", "hub.license=mit", "--data")


SINGLE_DIRECTION = {
    ("translation", "--source-language"): "it has a single direction. Leave out the source language",
    ("translation", "--target-language"): "it has a single direction. Leave out the target language",
}


def test_options_of_other_models_are_rejected(models: dict[str, Path], refuses: Any) -> None:
    for task, options in {
        "translation": [
            ("--temperature", 0.5), ("--top-p", 0.5), ("--seed", 1), ("--source-language", "de"),
        ],
        "causal_lm": [("--temperature", 0.5), ("--seed", 1), ("--target-language", "de"), ("--split-sentences", "de")],
        "dialogue": [("--seed", 1), ("--source-language", "de"), ("--split-sentences", "de")],
    }.items():  # fmt: skip
        for option in options:
            refuses(SINGLE_DIRECTION.get((task, option[0]), option[0]), "generate", models[task], "in.txt", *option)
    for task, plot_options in {
        "translation": [("--image", "a.png"), ("--target", "x"), ("--target-language", "de", "--sentence", "x")],
        "dialogue": [
            ("--layer", 1), ("--head", 1), ("--target", "x"), ("--kind", "encoder"), ("--kind", "decoder"),
            ("--kind", "all"),
        ],
    }.items():  # fmt: skip
        for option in plot_options:
            refuses(SINGLE_DIRECTION.get((task, option[0]), option[0]), "plot", models[task], *option)


# ---- none is forgotten on its way ------------------------------------------------------------------------------------


def names_read(function: Callable[..., Any]) -> set[str]:
    """The variables and the texts that the body of a function uses."""
    nodes = list(ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))))
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return variables | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_each_of_its_options(name: str) -> None:
    command = COMMANDS[name]
    assert set(inspect.signature(command).parameters) <= names_read(command)


@pytest.mark.parametrize("options", [GenerateOptions, PlotOptions, PredictOptions])
def test_each_option_is_read_behind_the_commands(options: type) -> None:
    folder = Path(kit.__file__).parent
    files = [file for file in folder.rglob("*.py") if file.parent.name != "cli"]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
    by_name = names_read(GenerateOptions.search_changes)  # reads them by `getattr`
    assert {field.name for field in fields(options)} <= read | by_name


@pytest.mark.parametrize("task", PIPELINES)
def test_a_pipeline_reads_each_of_its_parameters(task: str) -> None:
    """What `_sanitize_parameters` accepts goes to a stage, and the stage uses it or passes all it gets on."""
    pipeline = PIPELINES[task]
    stages = [pipeline.preprocess, pipeline._forward, pipeline.postprocess]
    bare = object.__new__(pipeline)
    bare.__dict__ |= {"task": task, "assistant_model": None, "assistant_tokenizer": None}
    bare.tokenizer = type("Tokenizer", (), {"init_kwargs": {"target_languages": ["de"]}})()
    checked = []
    for base in pipeline.__mro__:  # a subclass may name some of the parameters only
        sanitize = vars(base).get("_sanitize_parameters")
        for name in inspect.signature(sanitize).parameters if sanitize and base.__module__.startswith("kit.") else ():
            if name in ("self", "kwargs", "generate_kwargs"):
                continue
            refusal = ""
            try:
                parts = bare._sanitize_parameters(**{name: 1})
            except ValueError as error:
                refusal, parts = str(error), ({}, {}, {})
            readers = [names_read(stage) for stage, part in zip(stages, parts, strict=True) if name in part]
            assert name in refusal or any({name, "settings"} & read for read in readers), name
            checked.append(name)
    if not checked:  # all of its parameters are those of generate()
        assert bare._sanitize_parameters(num_beams=2) == ({}, {"num_beams": 2}, {})


def test_results_are_printed_once(kit_here: RunKit, tiny_recipe: Path) -> None:
    trained = kit_here("train", tiny_recipe, "train.max_steps=2", "--output", "run")
    again = kit_here("train", tiny_recipe, "train.max_steps=2", "--output", "run")
    for printed in (trained.stdout + trained.stderr, again.stdout + again.stderr):
        assert re.findall(r"(?m)^(validation|test): loss", printed) == ["validation", "test"]
