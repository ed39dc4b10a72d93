"""The documentation is true: commands parse, keys exist, recipes load, code runs, and links lead somewhere."""

import ast
import importlib
import importlib.util
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from support.documents import (
    DOCUMENTS,
    PAGES,
    RECIPES,
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    header,
    inline_code,
    links,
)

import kit
from kit.cli import app
from kit.errors import KitError
from kit.evaluation.metrics import METRICS
from kit.recipe.catalog import recipe_exists
from kit.recipe.document import parse_override, read_yaml
from kit.recipe.explain import explain
from kit.tasks.registry import load_recipe, recipe_classes

CLI = typer.main.get_command(app)
LANGUAGES = {"bash", "python", "yaml", "text", "json", "html"}
OTHER_PROGRAMS = {"make", "source", "echo", "printf", "hf", "git", "cd", "pip", "python3", "tensorboard", "ls", "head"}
OTHER_OPTIONS = {"--config_file", "--index-url", "--extra-index-url", "--machine_rank"}
FOLDERS = "|".join(["runs", *(path.name for path in (ROOT / "recipes").iterdir() if path.is_dir())])
ANY_RECIPE = re.compile(rf"[A-Z_]+|(?!{FOLDERS})[\w-]+/[\w.-]+(@\w+)?")
"""What stands for any recipe or run: RECIPE, RUN, OWNER/NAME."""
SECTIONS_OF_A_FINISHED_RUN = {"eval": ("data", "eval"), "predict": ("data", "eval"), "push": ("hub",)}
FILE_NAMES = {
    f"{split}.{ending}" for split in ("train", "test") for ending in ("csv", "jsonl", "de", "en", "fr", "txt")
} | {"eval.yaml"}
"""Names of files that look like keys."""

ids = {"ids": lambda value: value.where if isinstance(value, Block) else str(value.relative_to(ROOT))}
SHELL = [block for path in DOCUMENTS for block in blocks(path) if block.language == "bash"]
PYTHON = [block for path in DOCUMENTS for block in blocks(path) if block.language == "python"]
YAML = [block for path in DOCUMENTS for block in blocks(path) if block.language == "yaml"]


@dataclass
class Names:
    """Recipes and runs that the commands of a document make: `kit copy`, `--output`."""

    recipes: dict[str, str] = field(default_factory=dict)

    def recipe_of(self, name: str) -> str | None:
        """The shipped recipe behind a recipe, a run or a file of the user's own; None stands for any."""
        plain = name.rstrip("/").removesuffix("@main")
        if plain in self.recipes:
            return self.recipes[plain]
        if recipe_exists(plain):
            return plain
        if plain.startswith("runs/") and recipe_exists(plain.removeprefix("runs/")):
            return plain.removeprefix("runs/")
        assert ANY_RECIPE.fullmatch(plain), f"{name}: nothing before makes this recipe or run"
        return None


def check(command: Command, names: Names) -> None:
    """Check one shell command, including every kit command within it."""
    words = list(command.words)
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):  # variables of the environment
        del words[0]
    if not words:
        return
    program, *arguments = words
    if program == "accelerate":
        assert arguments[0] == "launch", command
        config = next((after for before, after in pairwise(arguments) if before == "--config_file"), None)
        assert config is None or (ROOT / config).is_file(), command
        assert arguments[arguments.index("-m") + 1] == "kit", command
        check_kit(arguments[arguments.index("-m") + 2 :], names)
    elif program == "kit":
        check_kit(arguments, names)
    elif program == "python" and arguments[:1] == ["-c"]:
        check_python(arguments[1])
    elif program == "python":
        check_script(arguments, names)
    else:
        assert program in OTHER_PROGRAMS, command
        if program == "make":
            targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert set(arguments) <= set(targets), command


def check_kit(arguments: list[str], names: Names) -> None:
    """Parse the arguments of kit by its own command line, and `key=value` by the recipe that it is about."""
    if arguments[:1] in (["--help"], ["--version"]):
        return
    name, *rest = arguments
    assert name in CLI.commands, f"kit has no command {name}"
    if "--help" in rest:
        return
    params = CLI.commands[name].make_context(name, list(rest)).params
    if name == "copy":
        recipe = names.recipe_of(params["name"]) or params["name"]
        names.recipes[str(params["destination"])] = recipe
        check_overrides(name, recipe, list(params["overrides"] or []))
    elif name == "explain" and params["key"]:
        explain(params["key"], recipe_classes())
    target = next((params[key] for key in ("recipe", "run", "target", "source") if key in params), None)
    if target is None:
        return
    is_data = bool(params.get("data")) or (name == "data" and Path(str(target)).suffix in (".csv", ".tsv", ".jsonl"))
    recipe = None if is_data else names.recipe_of(str(target))
    check_overrides(name, recipe, list(params.get("overrides") or []))
    output = params.get("output") or (f"runs/{Path(str(target)).stem}" if name == "train" else None)
    if output is not None and recipe is not None:
        names.recipes[str(output)] = recipe


def check_overrides(command: str, recipe: str | None, overrides: list[str]) -> None:
    """Check `key=value` arguments: as a whole recipe where it is known, else that some task has each key."""
    sections = SECTIONS_OF_A_FINISHED_RUN.get(command)
    for override in overrides:
        key, _ = parse_override(override)
        assert sections is None or key.partition(".")[0] in sections, f"kit {command} does not accept {override}"
        if "." in key:
            explain(key, recipe_classes())
    if command == "predict":  # its files need no labels, so their columns are not those of a recipe
        overrides = [override for override in overrides if not override.startswith("data.columns=")]
    if recipe is not None:
        directions = any(override.startswith("data.directions=") for override in overrides)
        first = ["data.direction_sizes=null", "data.direction_repeats=null"] if directions and command == "eval" else []
        load_recipe(recipe, [*first, *overrides])


def check_script(arguments: list[str], names: Names) -> None:
    """A script of the project exists and has its options; `key=value` belongs to the recipe that it names."""
    path, *rest = arguments
    assert (ROOT / path).is_file(), path
    source = (ROOT / path).read_text(encoding="utf-8")
    for option in (word.split("=")[0] for word in rest if word.startswith("--")):
        assert f'"{option}"' in source, f"{path} has no option {option}"
    overrides = [word for word in rest if re.match(r"\w+\.\w+=", word)]
    recipe = next((word for word in rest if recipe_exists(word)), None)
    check_overrides("train", recipe, overrides)


def check_python(source: str) -> ast.Module:
    """Compile Python, and check that the names of kit that it uses exist."""
    tree = ast.parse(source)
    compile(tree, "a code block", "exec")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kit":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "kit":
            assert hasattr(kit, node.attr), f"kit has no {node.attr}"
    return tree


@pytest.mark.parametrize("path", DOCUMENTS, **ids)
def test_code_blocks_name_their_language(path: Path) -> None:
    for block in blocks(path):
        assert block.language in LANGUAGES, block.where


@pytest.mark.parametrize("path", DOCUMENTS, **ids)
def test_every_command_parses_and_every_key_exists(path: Path) -> None:
    names = Names()
    for block in blocks(path):
        if block.language == "bash":
            for command in commands(block):
                with naming(command):
                    check(command, names)


@pytest.mark.parametrize("path", RECIPES, **ids)
def test_the_commands_of_a_recipe_header_parse(path: Path) -> None:
    names = Names()
    documented = list(commands(header(path)))
    assert any(command.words[0] in ("kit", "accelerate") for command in documented), path
    for command in documented:
        with naming(command):
            check(command, names)


class naming:
    """Adds the failing command to an error."""

    def __init__(self, command: Command) -> None:
        self.command = command

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            message = getattr(error, "message", None) or str(error)
            raise AssertionError(f"{self.command}\n{message}") from error


def options_of_kit() -> set[str]:
    listed = [*CLI.params, *(param for command in CLI.commands.values() for param in command.params)]
    return {option for param in listed for option in (*param.opts, *param.secondary_opts)}


def options_of_scripts() -> set[str]:
    scripts = [*(ROOT / "recipes" / "scripts").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    return {option for path in scripts for option in re.findall(r'"(--[a-z-]+)"', path.read_text(encoding="utf-8"))}


# a changelog names removed features
@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], **ids)
def test_commands_options_and_keys_in_the_text_exist(path: Path) -> None:
    known = options_of_kit() | options_of_scripts() | OTHER_OPTIONS | {"--help"}
    sections = "train|data|model|tokenizer|eval|peft|hub"
    for where, code in inline_code(path):
        if (match := re.match(r"kit ([a-z]+)", code)) and "=" not in match[0]:
            assert match[1] in CLI.commands, f"{where}: kit has no command {match[1]}"
            options = {
                option for param in CLI.commands[match[1]].params for option in (*param.opts, *param.secondary_opts)
            }
            for option in re.findall(r"(?<=\s)--[a-z][\w-]*", code):
                assert option in options | OTHER_OPTIONS, f"{where}: kit {match[1]} has no option {option}"
        elif option := re.match(r"--[a-z][\w-]*", code):
            assert option[0] in known, f"{where}: no command or script has {option[0]}"
        elif (key := re.match(rf"(?:{sections})\.[a-z]\w*(?=$|[=: ])", code)) and code not in FILE_NAMES:
            try:
                explain(key[0], recipe_classes())
            except KitError as error:
                raise AssertionError(f"{where}: {error}") from None


@pytest.mark.parametrize("block", [block for block in PYTHON + YAML if block.marker == "file"], **ids)
def test_blocks_of_files_equal_the_files(block: Block) -> None:
    """After `<!-- file: PATH -->` stands the whole file, which other tests run."""
    assert block.text == (ROOT / block.value).read_text(encoding="utf-8")


@pytest.mark.parametrize("block", [block for block in YAML if block.marker != "file"], **ids)
def test_yaml_is_a_recipe_or_a_part_of_one(block: Block, tmp_path: Path) -> None:
    """A block with a task is a recipe; another is laid over the recipe that `<!-- recipe: NAME -->` names."""
    document = read_yaml(block.text, block.where).value
    path = tmp_path / "block.yaml"
    path.write_text(block.text, encoding="utf-8")
    if "task" in document:
        load_recipe(path)
    else:
        assert block.marker == "recipe", f"{block.where}: name the recipe that it is a part of"
        recipe, *overrides = block.value.split()
        keys = [(section, *item) for section, values in document.items() for item in values.items()]
        settings = [f"{section}.{key}={json.dumps(value)}" for section, key, value in keys]
        load_recipe(recipe, [*overrides, *settings])


@pytest.mark.parametrize("block", PYTHON, **ids)
def test_python_compiles_and_its_names_exist(block: Block) -> None:
    check_python(block.text)


@pytest.mark.parametrize("block", [block for block in PYTHON if block.marker == "run"], **ids)
def test_python_runs(block: Block, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks after `<!-- run -->` run in a folder with a tiny run as runs/dates_rnn, and train in a few steps."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "dates_rnn").symlink_to(trained)
    monkeypatch.chdir(tmp_path)

    def in_a_few_steps(name: str, overrides: Any = ()) -> Any:
        tiny = ["train.max_steps=2", "data.sizes={train: 64, validation: 8, test: 8}", "model.hidden_size=16"]
        return load_recipe(name, [*overrides, *tiny])

    monkeypatch.setattr(kit, "load_recipe", in_a_few_steps, raising=False)
    built_in = dict(METRICS)
    try:
        exec(compile(block.text, block.where, "exec"), {"__name__": "__main__"})
    finally:  # a metric that a block registers must not outlive it
        METRICS.clear()
        METRICS.update(built_in)


@pytest.mark.parametrize("path", DOCUMENTS, **ids)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    generated = {(ROOT / "docs" / name).resolve() for name in reference().PAGES}
    for where, link in links(path):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target in generated or target.exists(), f"{where}: {link}"
        assert not (path in PAGES and ROOT / "docs" not in target.parents), f"{where}: {link} is not in the site"
        if anchor and target not in generated:
            assert anchor in anchors(target), f"{where}: {link}"


def test_every_page_is_in_the_navigation() -> None:
    listed = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def paths(item: Any) -> Iterator[str]:
        if isinstance(item, str):
            yield item
        else:
            for inner in item.values() if isinstance(item, dict) else item:
                yield from paths(inner)

    pages = [path.relative_to(ROOT / "docs").as_posix() for path in PAGES]
    assert sorted(paths(listed)) == sorted([*pages, *reference().PAGES])


@cache
def reference() -> ModuleType:
    """docs/reference.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_command_key_and_public_name() -> None:
    cli, keys, python = reference().pages().values()
    for name, command in CLI.commands.items():
        section = cli.partition(f"\n## kit {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for param in command.params:
            if param.param_type_name == "option" and param.opts != ["--help"]:
                assert f"`{param.opts[0]}" in section, (name, param.opts)
    for key in ("train.learning_rate", "data.turns", "data.horizon", "peft.rank", "model.attention", "hub.license"):
        assert f"| `{key}` |" in keys
    for name in kit.__all__:
        assert name.startswith("__") or f"kit.{name}" in python
    assert "- `model`: " in python  # a property of a finished run
    assert " at 0x" not in python
    assert not re.search(r"`[^`\n]*&lt;[^`\n]*`", python)  # a code span shows an entity as it is written
    for name in ("model_post_init", "contradictions", "line_figure"):  # no business of users
        assert name not in python, name


def test_files_that_the_text_names_exist() -> None:
    for path in DOCUMENTS:
        for where, code in inline_code(path):
            if re.fullmatch(r"(kit|benchmarks|recipes|docs|tests|model_cards)/[\w/.-]+", code):
                assert (ROOT / code).exists(), f"{where}: {code}"


def test_the_page_of_mechanisms_names_what_its_files_define() -> None:
    """A cell names a file, then its functions and classes: `kit/models/attention.py`: `Attention`."""
    rows = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8").splitlines()
    named = 0
    for cell in (row.split("|")[2] for row in rows if row.startswith("| ")):
        source = ""
        for code in re.findall(r"`([^`]+)`", cell):
            if "/" in code:
                source = (ROOT / code).read_text(encoding="utf-8")
            else:
                assert re.search(rf"\b(def|class) {re.escape(code)}\b", source), cell
                named += 1
    assert named > 30
