"""The `measured` section of a recipe: the figures of a finished run of it, written by `kit record`."""

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from kit.errors import RecipeError, RunError
from kit.recipe.base import Recipe
from kit.recipe.catalog import Figure, find_recipe
from kit.recipe.document import printable, read_nodes, read_text, read_yaml, write_override, write_yaml
from kit.recipe.model_settings import show
from kit.system.files import write_text
from kit.tasks.registry import load_recipe

_NOT_COMPARED = ("measured", "hub.", "data.fingerprints")
# The same data is a Hub id here and a folder with other names there: said beside the figures instead of refused.
_SAME_DATA_ELSEWHERE = (
    *("data.path", "data.name", "data.revision", "data.train", "data.validation", "data.test"),
    *("data.validation_size", "data.test_size", "data.validation_share", "data.test_share"),
    *("data.columns", "data.delimiter", "data.quoting", "data.encoding"),
    *("data.source", "data.target", "data.text", "data.text_pair"),
    *("data.label", "data.tokens", "data.tags", "data.question", "data.context", "data.answers", "data.id"),
    *("data.image", "data.caption", "data.turns"),
)
_PLAIN_LINES = "write the measured section as lines of `key: value`"
_VERSIONS_SHOWN = ("kit", "python", "torch", "transformers", "accelerate", "datasets")


def record(run_folder: str | Path, recipe: str | Path) -> dict[str, Figure]:
    """Write the figures of a finished run into the `measured:` section of the recipe it was started from.

    Everything else in the file stays as it is, comments too. A run of another recipe is refused: figures belong
    to exactly what is written beside them. Only where the data (and a pretrained model) was found may differ, which is
    recorded with the figures. Returns them.
    """
    run, path = Path(run_folder), find_recipe(recipe)
    results = _results(run)
    written = load_recipe(path)
    elsewhere = _check_same(load_recipe(run / "recipe.yaml"), written, printable(run), printable(path))
    figures = _figures(results, printable(run / "results.json"))
    figures |= _averaging(results.get("averaging"), written.eval.select_by)
    if elsewhere:
        figures["changes"] = " ".join(elsewhere)
    text = with_measured(read_text(path), figures, printable(path))
    try:
        write_text(path.resolve(), text)
    except OSError as error:
        raise RecipeError(f"{printable(path)} cannot be written: {error}") from None
    return figures


def record_card(run_folder: str | Path, path: Path) -> None:
    """Keep the model card of a run in a file, without the pictures, which stay with the run."""
    text = read_text(Path(run_folder) / "README.md")
    kept = re.sub(r"!\[[^\]]*\]\((plots/[^)]*)\)", r"(Picture of the run: `\1`.)", text)
    try:
        write_text(path, kept)
    except OSError as error:
        raise RunError(f"{printable(path)} cannot be written: {error}") from None


def with_measured(text: str, figures: dict[str, Figure], filename: str) -> str:
    """The text of a recipe with `figures` as its `measured:` section and every other line as it was."""
    root = read_nodes(text, filename)
    if not isinstance(root, yaml.MappingNode):
        raise RecipeError(f"{filename}: a recipe is made of sections (task:, model:, …).")
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    wanted = {name: write_yaml({name: figure}).rstrip("\n") for name, figure in figures.items()}
    section = next((pair for pair in root.value if pair[0].value == "measured"), None)
    if section is None:
        margin = " " * root.start_mark.column
        first, last, block = len(lines), len(lines), [f"{margin}measured:"]
        margin += "  "
    else:
        first, last, margin, block = _kept_of_section(lines, section[0], section[1], wanted, filename)
        wanted = {name: line for name, line in wanted.items() if name not in _names(section[1])}
    block += [f"{margin}{line}" for line in wanted.values()]
    before = "".join(lines[:first])
    if before and not before.endswith(("\n", "\r")):
        before += newline
    changed = before + "".join(line if line.endswith(("\n", "\r")) else line + newline for line in block)
    changed += "".join(lines[last:])

    expected = {**read_yaml(text, filename).value, "measured": figures}
    try:
        if read_yaml(changed, filename).value == expected:
            return changed
    except RecipeError:
        pass
    raise RecipeError(f"{filename}: the measured section cannot be changed; {_PLAIN_LINES}.")


def _kept_of_section(
    lines: list[str], key: yaml.Node, value: yaml.Node, wanted: dict[str, str], filename: str
) -> tuple[int, int, str, list[str]]:
    """The lines (from, to) of the old section, the margin of its figures, and what the new section begins with:
    the old lines with new figures, without those that are not wanted any more, and with every comment."""
    first = key.start_mark.line
    if not isinstance(value, yaml.MappingNode) or value.flow_style:
        body, comment = _cut(lines, first, key.end_mark.index, value, filename)
        return first, first + 1, " " * (key.start_mark.column + 2), [f"{body}:{comment}"]

    margin = " " * value.start_mark.column
    figures = {name.start_mark.line: (name, figure) for name, figure in value.value}
    last = max(figures) + 1
    kept = []
    for number in range(first, last):
        if number not in figures:
            kept.append(lines[number])
            continue
        name, figure = figures[number]
        _, comment = _cut(lines, number, name.end_mark.index, figure, filename)
        if name.value in wanted:
            kept.append(f"{margin}{wanted[name.value]}{comment}")
        elif comment.strip():
            kept.append(f"{margin}{comment.lstrip()}")
    return first, last, margin, kept


def _cut(lines: list[str], number: int, key_end: int, value: yaml.Node, filename: str) -> tuple[str, str]:
    """A line up to the end of its key, and the comment (with the line end) after its value."""
    if value.start_mark.line != number or value.end_mark.line != number:
        raise RecipeError(f"{filename}, line {number + 1}: {_PLAIN_LINES}.")
    begin = sum(map(len, lines[:number]))
    return lines[number][: key_end - begin], lines[number][value.end_mark.index - begin :]


def _names(section: yaml.Node) -> set[str]:
    block = isinstance(section, yaml.MappingNode) and not section.flow_style
    return {name.value for name, _ in section.value} if block else set()


def _results(run: Path) -> dict[str, Any]:
    """What a finished run has written into results.json."""
    name = printable(run)
    if not (run / "recipe.yaml").is_file():
        raise RunError(f"{name} is not a run folder: it has no recipe.yaml.")
    try:
        results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"{name} is not finished: it has no results.json. Resume it with `kit train … --resume`."
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{name}/results.json cannot be read: {error}") from None
    parts = ("train", "validation") if isinstance(results, dict) else ()
    if not parts or not all(isinstance(results.get(part), dict) for part in parts):
        raise RunError(f'{name}/results.json is not that of a finished run: it lacks "train" or "validation".')
    return results


def _check_same(ran: Recipe, written: Recipe, run: str, path: str) -> list[str]:
    """Refuse a run of another recipe; the changes that only say where things are, as a shell takes them."""
    from kit.runs.revisions import with_pins_of

    written = with_pins_of(written, ran)
    before, now = ran.flat(), written.flat()
    differences = [key for key in ran.differences(written) if not key.startswith(_NOT_COMPARED)]
    elsewhere = [key for key in differences if key in _SAME_DATA_ELSEWHERE or _is_local_copy(key, before.get(key))]
    others = [key for key in differences if key not in elsewhere]
    if others:
        lines = [f"  {key}: {show(before.get(key))} in the run, {show(now.get(key))} in {path}" for key in others]
        raise RecipeError(
            "\n".join([f"{run} ran another recipe than {path}, so its figures do not belong there:", *lines])
        )
    return [shlex.quote(write_override(key, _without_machine(before.get(key)))) for key in elsewhere]


def _is_local_copy(key: str, value: Any) -> bool:
    """Whether a pretrained model was taken from a folder: the recipe can only name it by its Hub id."""
    return key in ("model.pretrained", "tokenizer.pretrained") and isinstance(value, str) and Path(value).is_dir()


def _without_machine(value: Any) -> Any:
    """Of an absolute path only the end, which is the same elsewhere; any other value as it is."""
    if isinstance(value, str) and Path(value).is_absolute():
        return "/".join(Path(value).parts[-2:])
    return value


def _figures(results: dict[str, Any], filename: str) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for split in ("test", "validation"):
        for metric, value in (results.get(split) or {}).items():
            if isinstance(value, int | float):
                if not math.isfinite(value):
                    raise RunError(f"{filename}: {split}.{metric} is {value}, which is no figure to record.")
                figures[f"{split}_{metric}"] = _rounded(value)
    seconds, versions = results["train"].get("seconds"), results.get("versions")
    minutes = _rounded(seconds / 60) if isinstance(seconds, int | float) else None
    for name, value, kind in (
        ("minutes", minutes, float),
        ("steps", results["train"].get("steps"), int),
        ("parameters", results.get("parameters"), int),
        ("hardware", results.get("hardware"), str),
        ("versions", _short_versions(versions) if isinstance(versions, dict) else None, str),
    ):
        if not isinstance(value, kind):
            raise RunError(f"{filename} does not say {name}: it was not written by a finished run.")
        figures[name] = value
    return figures


def _averaging(compared: Any, metric: str) -> dict[str, Figure]:
    """What the mean of the last checkpoints was compared with, and how it fared, by the metric that chose."""
    if not isinstance(compared, dict):
        return {}
    best, mean = (_rounded(compared[side][metric]) for side in ("best_step", "average"))
    steps = len(compared["steps"])
    return {"averaging": f"{metric} on validation {best} at the best step, {mean} as the mean of {steps} checkpoints"}


def _short_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {versions[name]}" for name in _VERSIONS_SHOWN if name in versions)


def _rounded(value: float) -> float:
    """Four digits say all that a repeated run would give again."""
    return value if isinstance(value, int) else float(f"{value:.4g}")
