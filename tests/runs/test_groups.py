"""Columns that results are grouped by: checked before the first step, and changed when a run is resumed."""

from pathlib import Path

import pytest
from support.recipes import make_recipe

from kit import train
from kit.errors import DataError
from kit.runs.folder import RunFolder


@pytest.mark.parametrize("task", ["translation", "captioning", "dialogue"])
def test_a_missing_column_is_reported_before_the_first_step(task: str, tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, task, overrides=["eval.group_by=[sorce]"])
    with pytest.raises(DataError, match=r'eval\.group_by: validation has no column "sorce"'):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_groups_may_change_when_a_run_is_resumed(tmp_path: Path) -> None:
    first = make_recipe(tmp_path, "translation", overrides=["eval.group_by=[language]"])
    second = make_recipe(tmp_path, "translation", overrides=["eval.group_by=[length]", "eval.num_beams=2"])
    assert first.changes_since(second.fixed_values()) == ""
    run = train(second, tmp_path / "run")
    assert list(run.results["test"]["by"]) == ["length"]
    assert RunFolder.open(run.folder).recipe().flat()["eval.group_by"] == ["length"]
