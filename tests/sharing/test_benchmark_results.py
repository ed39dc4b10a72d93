"""Results on benchmarks of the Hub: in `.eval_results/`, in its format, and only if they are on that benchmark."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import RunKit
from huggingface_hub import parse_eval_result_entries
from support.cards import RESULTS, recipe
from support.hub_server import HubServer
from support.hub_state import Fault
from support.repositories import NAME, repo_files

import kit.sharing.proof
from kit.data.text.tokenizer import NoTokenizers
from kit.hub.upload import BENCHMARK_RESULTS
from kit.recipe.base import Recipe
from kit.runs.folder import RunFolder
from kit.sharing.benchmarks import write_benchmark_results

DATASET = "tester/benchmark"
COMMIT = "a" * 40


def benchmark(*tasks: dict[str, Any]) -> bytes:
    return yaml.safe_dump({"name": "A benchmark", "evaluation_framework": "kit", "tasks": list(tasks)}).encode()


def on_benchmark(**data: Any) -> Recipe:
    """A recipe whose data is the benchmark."""
    defaults = {"path": DATASET, "revision": COMMIT, "source": "de", "target": "en"}
    return recipe(data=defaults | data, eval={"metrics": ["bleu"], "group_by": []})


def written(run: Recipe, folder: Path) -> tuple[list[Any], list[str]]:
    """The entries that are written for a run, and the notes."""
    folder.mkdir()
    notes = write_benchmark_results(run, RESULTS, folder, NAME)
    file = folder / BENCHMARK_RESULTS
    entries = yaml.safe_load(file.read_text(encoding="utf-8")) if file.exists() else []
    return parse_eval_result_entries(entries), notes


def test_results_on_a_benchmark_are_read_back_by_the_hub_library(hub: HubServer, tmp_path: Path) -> None:
    tasks = [{"id": "german", "config": "default", "split": "test"}, {"id": "tuning", "split": "validation"}]
    hub.put(DATASET, {"eval.yaml": benchmark(*tasks)}, kind="dataset")
    (test, validation), notes = written(on_benchmark(), tmp_path / "folder")
    assert (test.dataset_id, test.task_id, test.value, test.dataset_revision) == (DATASET, "german", 29.1235, COMMIT)
    assert test.source_url == f"{hub.address}/{NAME}"
    assert test.notes == "bleu"
    assert (validation.task_id, validation.value) == ("tuning", 31.25)
    assert validation.notes == "bleu; the checkpoint was chosen on this split"
    assert notes[0] == f"{BENCHMARK_RESULTS}: bleu 29.1235 on the task german of the benchmark {DATASET}"


def began_with(run: Path, recipe: Recipe) -> None:
    """Let a finished run be one of another recipe."""
    results = (run / "results.json").read_bytes()
    RunFolder(run).start(recipe, NoTokenizers())
    (run / "results.json").write_bytes(results)


@pytest.mark.parametrize(
    ("task", "data"),
    [
        ({"split": "train"}, {}),
        ({"split": "test", "config": "fr-en"}, {}),
        ({"split": "test", "config": "fr-en"}, {"name": "de-en"}),
        ({"split": "test"}, {"name": "de-en"}),
        ({"split": "test"}, {"test": "test_2018"}),
        ({"split": "test"}, {"test_size": 10}),  # rows held out of train
        ({"split": "test", "field_spec": {"input": "en", "target": "de"}}, {"source": "de", "target": "fr"}),
        ({"split": "test"}, {"path": "builtin:dates", "revision": None, "source": "source", "target": "target"}),
        ({"split": "test"}, {"revision": None}),
    ],
)
def test_results_on_other_rows_are_no_results_on_the_benchmark(
    hub: HubServer, tmp_path: Path, task: dict[str, Any], data: dict[str, Any]
) -> None:
    hub.put(DATASET, {"eval.yaml": benchmark({"id": "german", **task})}, kind="dataset")
    assert written(on_benchmark(**data), tmp_path / "folder") == ([], [])
    assert not (tmp_path / "folder" / ".eval_results").exists()


def test_the_configuration_and_the_column_of_a_benchmark_are_those_of_the_run(hub: HubServer, tmp_path: Path) -> None:
    task = {"id": "german", "config": "de-en", "split": "flickr", "field_spec": {"input": "de"}}
    hub.put(DATASET, {"eval.yaml": benchmark(task)}, kind="dataset")
    ((entry,), _) = written(on_benchmark(name="de-en", test="flickr"), tmp_path / "folder")
    assert entry.task_id == "german"


@pytest.mark.parametrize(
    ("files", "note"),
    [
        ({}, None),
        ({"eval.yaml": b"tasks: !!python/object/apply:os.mkdir [trap]"}, "tags such as"),
        ({"eval.yaml": b"\xff"}, "cannot be read"),
        ({"eval.yaml": b"name: x"}, "has no list of tasks"),
        ({"eval.yaml": b"- a\n"}, "has no list of tasks"),
        ({"eval.yaml": b"tasks: [1, {id: 3}, {split: test}]"}, None),
        ({"eval.yaml": b"#" * 1_000_001}, "too large"),
    ],
)
def test_what_is_no_benchmark_or_a_malformed_one_costs_a_note(
    hub: HubServer, tmp_path: Path, files: dict[str, bytes], note: str | None
) -> None:
    hub.put(DATASET, files, kind="dataset")
    entries, notes = written(on_benchmark(), tmp_path / "folder")
    assert entries == []
    assert note in notes[0] if note else notes == []


def test_a_hub_that_does_not_answer_costs_a_note(hub: HubServer, tmp_path: Path) -> None:
    hub.faults = [Fault("paths-info", status=500, times=99)]
    (note,) = written(on_benchmark(), tmp_path / "folder")[1]
    assert f"cannot look up whether {DATASET} is a benchmark" in note


def test_results_on_a_benchmark_are_pushed_and_removed_with_those_of_the_run(
    hub: HubServer, trained: Path, tmp_path: Path, kit_here: RunKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kit.sharing.proof, "check_run", lambda *about: "not checked here")
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    saved = RunFolder(run).recipe()
    changed = {"path": DATASET, "revision": COMMIT, "languages": None, "sizes": None}
    figures = RunFolder(run).results()
    began_with(run, saved.with_values("data", **changed))
    hub.put(DATASET, {"eval.yaml": benchmark({"id": "dates", "split": "test"})}, kind="dataset")
    hub.put(NAME, {".eval_results/others.yaml": b"[]"}, private=True)
    done = kit_here("push", run, NAME)
    assert done.returncode == 0, done.stderr
    assert f"on the task dates of the benchmark {DATASET}" in done.stderr
    files = repo_files(hub)
    (entry,) = parse_eval_result_entries(yaml.safe_load(files[BENCHMARK_RESULTS]))
    metric = saved.eval.metrics[0]
    assert entry.value == pytest.approx(figures["test"][metric], abs=1e-4)

    began_with(run, saved)  # the next model of this repository has other data
    assert kit_here("push", run, NAME).returncode == 0
    assert BENCHMARK_RESULTS not in repo_files(hub)
    assert ".eval_results/others.yaml" in repo_files(hub)
