"""Which keys can be changed for a trained model: each key acts, or is refused by a message that names the others."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.recipes import RECIPES, make_recipe

import kit
from kit.errors import KitError
from kit.recipe.base import sections_of
from kit.system.format import FORMAT_STAMP, RUN_FILE
from kit.tasks.registry import recipe_classes

FILES = "columns delimiter quoting encoding"
SOURCE = f"path name revision train validation test {FILES} sizes seed fingerprints"
TEXT = f"{SOURCE} languages"
SEARCH = "num_beams length_penalty max_new_tokens early_stopping no_repeat_ngram_size"
WRITING = f"metrics tokens_per_batch examples group_by lowercase bleu_tokenize {SEARCH}"

EVALUATED: dict[str, tuple[str, str]] = {
    "translation": (f"{TEXT} source target directions", WRITING),
    "masked_lm": (
        f"{TEXT} text documents block_size num_proc language mlm_probability whole_word_mask",
        "tokens_per_batch examples",
    ),
    "causal_lm": (
        f"{TEXT} text documents block_size num_proc",
        "tokens_per_batch examples prompt_tokens max_new_tokens temperature top_p",
    ),
    "instruction_tuning": (f"{TEXT} prompt answer template", "metrics tokens_per_batch examples max_new_tokens"),
    "classification": (
        f"{TEXT} text text_pair label label_names label_separator max_length truncation",
        "metrics tokens_per_batch positive_label label_threshold",
    ),
    "tagging": (f"{TEXT} tokens tags label_names max_length truncation", "metrics tokens_per_batch"),
    "question_answering": (
        f"{TEXT} question context answers id max_length doc_stride max_question_length",
        "metrics tokens_per_batch max_answer_length null_threshold",
    ),
    "captioning": (f"{SOURCE} image caption", WRITING),
    "dialogue": (f"{SOURCE} turns turn_text turn_speaker target speaker answer max_turns", WRITING),
    "forecasting": (
        f"{SOURCE} targets context date series history horizon season missing",
        "metrics tokens_per_batch stride",
    ),
}
"""For each task, the keys of `data` and `eval` that `kit eval` changes. Keys that only train, select checkpoints or
training rows, or describe another model are refused."""

PREDICTED: dict[str, tuple[str, str]] = {
    "classification": (f"{FILES} text text_pair max_length truncation", "tokens_per_batch label_threshold"),
    "tagging": (f"{FILES} tokens max_length truncation", "tokens_per_batch"),
    "question_answering": (
        f"{FILES} question context max_length doc_stride max_question_length",
        "tokens_per_batch max_answer_length null_threshold",
    ),
}
"""The same for `kit predict`; forecasts take no overrides at all."""


def dotted(table: tuple[str, str]) -> set[str]:
    return {f"{section}.{key}" for section, keys in zip(("data", "eval"), table, strict=True) for key in keys.split()}


def run_without_model(folder: Path, task: str) -> Path:
    """The folder of a run without a model: a key must be rejected before the model is missed."""
    run = folder / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(make_recipe(folder, task).to_yaml(), encoding="utf-8")
    (run / RUN_FILE).write_text(json.dumps(FORMAT_STAMP), encoding="utf-8")
    return run


@pytest.mark.parametrize("task", RECIPES)
def test_each_key_of_a_task_can_be_changed_for_an_evaluation_or_is_refused(task: str, tmp_path: Path) -> None:
    run, accepted = run_without_model(tmp_path, task), dotted(EVALUATED[task])
    sections = sections_of(recipe_classes()[task])
    keys = {f"{section}.{key}" for section, model in sections.items() for key in model.model_fields}
    assert accepted <= keys
    for key in sorted(keys):
        with pytest.raises(KitError) as stopped:
            kit.evaluate(run, overrides=[f"{key}=[]"])
        message = str(stopped.value)
        if key in accepted:
            assert f"{key} has no effect on the evaluation" not in message
        else:
            assert f"on the command line: {key} has no effect on the evaluation of {run}" in message
            listed = message.partition("can be changed here: ")[2].removesuffix(".").split(", ")
            assert set(listed) == accepted
            assert len(listed) == len(accepted)


@pytest.mark.parametrize("task", PREDICTED)
def test_each_key_of_a_task_can_be_changed_for_predictions_or_is_refused(task: str, tmp_path: Path) -> None:
    recipe, accepted = make_recipe(tmp_path, task), dotted(PREDICTED[task])
    assert set(recipe.keys_after_training("prediction_keys")) == accepted


def test_keys_of_other_sections_and_unknown_keys(tmp_path: Path) -> None:
    run = run_without_model(tmp_path, "translation")
    for override, message in (
        ("task=dialogue", "task has no effect on the evaluation"),
        ("eval={}", "eval has no effect on the evaluation"),
        ("evl.metrics=[bleu]", "evl.metrics has no effect on the evaluation"),
        ("eval.metrcs=[bleu]", 'eval.metrcs is not a key of "eval". Did you mean "metrics"?'),
        ("data.sizes.train=3", "has no model yet"),
    ):
        with pytest.raises(KitError) as stopped:
            kit.evaluate(run, overrides=[override])
        assert message in str(stopped.value)


@pytest.mark.parametrize(
    ("task", "overrides", "message"),
    [
        ("translation", ["eval.examples=3"], "eval.examples has no effect with eval.metrics"),
        ("translation", ["eval.metrics=[]", "eval.examples=0", "eval.num_beams=2"], "eval.num_beams has no effect"),
        ("translation", ["eval.early_stopping=true"], "eval.early_stopping has no effect with eval.num_beams: 1"),
        ("translation", ["eval.early_stopping=true", "eval.num_beams=2"], None),
        ("translation", ["data.seed=3"], None),
        ("causal_lm", ["eval.temperature=0.5"], "eval.temperature has no effect with eval.examples: 0"),
        ("causal_lm", ["eval.temperature=0.5", "eval.examples=1"], None),
        (
            "instruction_tuning",
            ["eval.metrics=[bleu]", "eval.examples=1"],
            "eval.examples has no effect with eval.metrics",
        ),
        (
            "classification",
            ["data.path=rows.csv", "data.seed=3"],
            "data.seed has no effect on data that is not built-in",
        ),
        ("classification", ["data.path=rows.csv"], None),  # without the sizes and languages of built-in data
        ("classification", ["data.label_separator=;"], "data.label_separator"),
    ],
)
def test_keys_that_act_only_with_others(task: str, overrides: list[str], message: str | None, tmp_path: Path) -> None:
    run = run_without_model(tmp_path, task)
    with pytest.raises(KitError) as stopped:
        kit.evaluate(run, overrides=overrides)
    assert (message or "has no model yet") in str(stopped.value)


def test_the_commands_refuse_them(trained: Path, kit_here: Any) -> None:
    for command, key, listed in (
        (("eval", trained), "eval.steps=3", "eval.num_beams"),
        (("push", trained, "owner/name"), "eval.metrics=[bleu]", "hub.license"),
    ):
        done = kit_here(*command, key)
        assert done.returncode == 2, done.stderr
        assert f"{key.partition('=')[0]} has no effect on " in done.stderr
        assert listed in done.stderr.partition("Keys that can be changed here: ")[2]
