"""The architecture rules that import-linter cannot express, checked on the syntax trees of kit's modules.

Each rule is a generator of violations. It is tested twice: on snippets that break it, and on every module of kit.
"""

import ast
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import kit
from kit.models import MODELS
from kit.recipe.base import Recipe
from kit.recipe.section import Section
from kit.tasks.base import Task
from kit.tasks.registry import TASKS, recipe_classes, task_class

ROOT = Path(kit.__file__).parent


@dataclass(frozen=True)
class Module:
    """A module of kit: its dotted name and its syntax tree."""

    name: str
    tree: ast.Module
    is_package: bool = False

    def within(self, *packages: str) -> bool:
        """Whether this is one of these packages or modules, or is inside one."""
        return any(self.name == package or self.name.startswith(f"{package}.") for package in packages)

    @property
    def task(self) -> str | None:
        """The task whose package holds this module."""
        parts = self.name.split(".")
        return parts[2] if parts[:2] == ["kit", "tasks"] and len(parts) > 2 and parts[2] in TASKS else None

    def imports(self, tree: ast.AST | None = None) -> Iterator[tuple[str, str, str]]:
        """The module, the name ("" for the module itself) and the alias of each import of kit."""
        for node in ast.walk(tree or self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "kit":
                        yield alias.name, "", alias.asname or alias.name
            elif isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                if source.split(".")[0] == "kit":
                    yield from ((source, alias.name, alias.asname or alias.name) for alias in node.names)

    def strings(self) -> Iterator[str]:
        """Every string literal except docstrings, which include those of attributes."""
        docstrings = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield node.value

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        package = package[: len(package) - node.level + self.is_package]
        return ".".join([*package, *([node.module] if node.module else [])])


@cache
def modules() -> tuple[Module, ...]:
    """All modules of kit."""
    parsed = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["kit", *path.relative_to(ROOT).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parsed.append(Module(".".join(parts[:-1] if is_package else parts), tree, is_package))
    return tuple(parsed)


# ---- the rules ---------------------------------------------------------------------------------------------------


def imports_of_task_packages(module: Module) -> Iterator[str]:
    """Only the registry imports a task package; a task package imports its own modules."""
    if module.within("kit.tasks.registry"):
        return
    names = [".".join([source, name]) for source, name, _ in module.imports()]
    for name in [*names, *(text.replace(":", ".") for text in module.strings())]:
        parts = name.split(".")
        if parts[:2] == ["kit", "tasks"] and len(parts) > 2 and parts[2] in TASKS and parts[2] != module.task:
            yield f"{module.name} imports kit.tasks.{parts[2]}"


def names_of_tasks(module: Module) -> Iterator[str]:
    """A task is named only in the registry and in its own package. The packages in the condition mean something else
    by the same word: a pipeline, a kind of data."""
    if not module.within("kit.tasks.registry", "kit.pipelines", "kit.models", "kit.data.builtin"):
        yield from (
            f"{module.name} names {text!r}" for text in module.strings() if text in TASKS and text != module.task
        )


def names_of_models(module: Module) -> Iterator[str]:
    """One of kit's model types is named only in `kit.models` and in the packages of the tasks that support it."""
    if module.within("kit.models"):
        return
    supported = recipe_classes()[module.task].kit_types if module.task else ()
    for text in module.strings():
        if text in MODELS and text not in supported:
            yield f"{module.name} names {text!r}"


def checks_of_task_classes(module: Module) -> Iterator[str]:
    """Nothing asks whether an object is of a certain task, recipe, or section of a task's recipe."""
    aliases = {alias: (source, name) for source, name, alias in module.imports()}
    for node in ast.walk(module.tree):
        for dotted in map(ast.unparse, _compared_classes(node)):
            if _resolve(dotted, aliases, module) in task_classes():
                yield f"{module.name} checks for {dotted}"


def imports_inside_functions(module: Module) -> Iterator[str]:
    """kit is imported at the top of a module. `kit.cli` may import later, so that `kit --help` appears at once, and
    `kit.models` must, because transformers collects the files of a model by following its imports."""
    if module.within("kit.cli", "kit.models"):
        return
    functions = [node for node in ast.walk(module.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        yield from (f"{module.name} imports {source} in {function.name}()" for source, _, _ in module.imports(function))


def imports_of_the_root_package(module: Module) -> Iterator[str]:
    """Only the command line imports `kit` itself: its `__init__` leads everywhere."""
    if not module.within("kit.cli", "kit.__main__"):
        yield from (f"{module.name} imports kit" for source, _, _ in module.imports() if source == "kit")


def lines_split_elsewhere(module: Module) -> Iterator[str]:
    """Lines end at a newline. `str.splitlines` also splits at U+2028 and others, which are characters of a text; the
    first line of an exception is `first_line` of `kit.errors`."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "splitlines":
            yield f'{module.name}:{node.lineno} calls splitlines: use split("\\n") or first_line'


def json_written_elsewhere(module: Module) -> Iterator[str]:
    """What is printed or written as JSON is valid: `json.dumps` writes NaN, `to_json` and `write_json` do not. What is
    uploaded with a model, or runs without kit, cannot use them."""
    if module.within("kit.system.json_files", "kit.models", "kit.pipelines", "kit.sharing.standalone"):
        return
    for node in ast.walk(module.tree):
        name = getattr(node.func, "attr", getattr(node.func, "id", None)) if isinstance(node, ast.Call) else None
        if name in ("print", "write", "writelines", "write_text"):
            parts = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Attribute)]
            yield from (f"{module.name} writes with {part}" for part in parts if part in ("json.dumps", "json.dump"))


def temporary_folders_elsewhere(module: Module) -> Iterator[str]:
    """Temporary folders are those of `scratch_folder`: the next command removes what a killed one left."""
    if module.within("kit.system.outputs"):
        return
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tempfile":
            yield f"{module.name} imports from tempfile: use scratch_folder"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tempfile."):
            made = ast.unparse(node.func).removeprefix("tempfile.")
            within = any(keyword.arg == "dir" for keyword in node.keywords)  # inside another temporary folder
            # a TemporaryFile has no name that could be left
            if made not in ("gettempdir", "TemporaryFile") and not within:
                yield f"{module.name}:{node.lineno} calls {made}: use scratch_folder"


def _compared_classes(node: ast.AST) -> Iterator[ast.expr]:
    """What could be a class in a check: `isinstance(x, (A, B))`, `case A():`, `type(x) is A`, `type(x) in (A, B)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        yield from _alternatives(node.args[1])
    elif isinstance(node, ast.MatchClass):
        yield node.cls
    elif isinstance(node, ast.Compare):
        for side in (node.left, *node.comparators):
            yield from _alternatives(side)


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    """The members of a tuple or of a union."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        for element in node.elts:
            yield from _alternatives(element)
    elif isinstance(node, ast.BinOp):
        yield from (*_alternatives(node.left), *_alternatives(node.right))
    elif isinstance(node, ast.Name | ast.Attribute):
        yield node


def _resolve(dotted: str, aliases: dict[str, tuple[str, str]], module: Module) -> str:
    """The full name of a class, wherever its module imported it from."""
    for alias, (source, name) in aliases.items():
        if dotted == alias or dotted.startswith(f"{alias}."):
            path = [part for part in (name, *dotted.removeprefix(alias).split(".")) if part]
            value = importlib.import_module(source)
            try:
                for part in path:
                    value = getattr(value, part)
            except AttributeError:  # a module not imported yet
                return ""
            return _full_name(value)
    return f"{module.name}.{dotted}"


@cache
def task_classes() -> frozenset[str]:
    """The full names of all classes of tasks and recipes, and of the sections that only a task's recipe has."""
    for name in TASKS:
        task_class(name)
    recipe_classes()
    classes = [*_subclasses(Task), *_subclasses(Recipe)]
    classes += [section for section in _subclasses(Section) if section.__module__.startswith("kit.tasks.")]
    return frozenset(map(_full_name, classes))


def _subclasses(base: type) -> Iterator[type]:
    yield base
    for child in base.__subclasses__():
        yield from _subclasses(child)


def _full_name(value: object) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"


Rule = Callable[[Module], Iterator[str]]
RULES: tuple[Rule, ...] = (
    imports_of_task_packages,
    names_of_tasks,
    names_of_models,
    checks_of_task_classes,
    imports_inside_functions,
    imports_of_the_root_package,
    lines_split_elsewhere,
    json_written_elsewhere,
    temporary_folders_elsewhere,
)

# ---- the tests ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_kit_follows_the_rule(rule: Rule) -> None:
    violations = {violation for module in modules() for violation in rule(module)}
    assert violations == set()


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (imports_of_task_packages, "kit.cli.train", "from kit.tasks.translation.task import Translation"),
        (imports_of_task_packages, "kit.cli.train", "import kit.tasks.translation.task"),
        (imports_of_task_packages, "kit.cli.train", "from kit.tasks import translation"),
        (imports_of_task_packages, "kit.cli.train", "def f():\n    from ..tasks.translation import recipe"),
        (imports_of_task_packages, "kit.tasks.families.seq2seq.task", "from ...translation.task import Translation"),
        (imports_of_task_packages, "kit.tasks.dialogue.task", "from kit.tasks.translation.task import Translation"),
        (imports_of_task_packages, "kit.runs.train", "import_module('kit.tasks.tagging:Tagging')"),
        (names_of_tasks, "kit.runs.train", "def f(x):\n    return x.task == 'captioning'"),
        (names_of_tasks, "kit.cards.card", "TEMPLATES = {'tagging': 1}"),
        (names_of_tasks, "kit.tasks.families.seq2seq.task", "x = 'dialogue'"),
        (names_of_tasks, "kit.tasks.dialogue.task", "x = 'translation'"),
        (names_of_models, "kit.runs.train", "def f(x):\n    return x.config.model_type in ('bert', 'rnn_lm')"),
        (names_of_models, "kit.tasks.families.seq2seq.task", "x = 'rnn_seq2seq'"),
        (names_of_models, "kit.tasks.dialogue.task", "x = 'rnn_captioner'"),
        (checks_of_task_classes, "kit.runs.a", "from kit.tasks.base import Task\nisinstance(x, Task)"),
        (checks_of_task_classes, "kit.runs.a", "from kit.recipe import base\nisinstance(x, str | base.Recipe)"),
        (checks_of_task_classes, "kit.runs.a", "import kit.recipe.base\nissubclass(x, (kit.recipe.base.Recipe, int))"),
        (
            checks_of_task_classes,
            "kit.runs.a",
            "from kit.tasks.translation.task import Translation as T\nmatch x:\n    case T():\n        pass",
        ),
        (
            checks_of_task_classes,
            "kit.runs.a",
            "from kit.tasks.tagging.recipe import TaggingRecipe\ntype(x) is TaggingRecipe",
        ),
        (checks_of_task_classes, "kit.tasks.tagging.recipe", "def f(x):\n    return isinstance(x.data, TaggingData)"),
        (imports_inside_functions, "kit.runs.a", "def f():\n    from kit.data import rows"),
        (imports_inside_functions, "kit.runs.a", "class A:\n    def f(self):\n        from ..data import rows"),
        (imports_of_the_root_package, "kit.runs.a", "import kit"),
        (imports_of_the_root_package, "kit.runs.a", "from kit import train"),
        (imports_of_the_root_package, "kit.runs.a", "from .. import train"),
        (lines_split_elsewhere, "kit.cards.a", "text.splitlines()"),
        (json_written_elsewhere, "kit.runs.a", "path.write_text(json.dumps(x) + 'y')"),
        (json_written_elsewhere, "kit.cli.a", "print(json.dumps(x))"),
        (temporary_folders_elsewhere, "kit.runs.a", "from tempfile import TemporaryDirectory"),
        (temporary_folders_elsewhere, "kit.runs.a", "tempfile.mkdtemp()"),
    ],
)
def test_violation_is_detected(rule: Rule, name: str, source: str) -> None:
    assert len(list(rule(Module(name, ast.parse(source))))) == 1


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (imports_of_task_packages, "kit.tasks.translation.task", "from kit.tasks.translation.recipe import X"),
        (imports_of_task_packages, "kit.runs.a", "from kit.tasks.families.seq2seq import task"),
        (names_of_tasks, "kit.tasks.dialogue.task", '"""dialogue"""\nx = "dialogue"'),
        (names_of_tasks, "kit.runs.a", 'class A:\n    x: int\n    """tagging"""'),
        (names_of_tasks, "kit.pipelines.a", "x = 'translation'"),
        (names_of_models, "kit.tasks.dialogue.task", "x = 'hred'"),
        (checks_of_task_classes, "kit.runs.a", "isinstance(x, str | tuple)\nx == y\nTask()"),
        (checks_of_task_classes, "kit.runs.a", "from kit.recipe.base import Recipe\nx in Recipe.model_fields"),
        (imports_inside_functions, "kit.runs.a", "from kit.data import rows\ndef f():\n    import numpy"),
        (imports_inside_functions, "kit.cli.a", "def f():\n    from kit.data import rows"),
        (imports_of_the_root_package, "kit.cli.a", "import kit"),
        (imports_of_the_root_package, "kit.runs.a", "from kit.data import rows\nfrom . import b"),
        (lines_split_elsewhere, "kit.cards.a", "text.split('\\n')"),
        (json_written_elsewhere, "kit.runs.a", "key = json.dumps(x)\nwrite_json(path, x)"),
        (temporary_folders_elsewhere, "kit.runs.a", "tempfile.mkdtemp(dir=x)\ntempfile.gettempdir()"),
    ],
)
def test_allowed_code_is_no_violation(rule: Rule, name: str, source: str) -> None:
    assert list(rule(Module(name, ast.parse(source)))) == []


def test_the_top_level_holds_only_what_belongs_to_no_package() -> None:
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "errors.py", "py.typed"}


def test_every_task_package_has_the_same_files() -> None:
    for location in TASKS.values():
        package, name = location.split(":")
        folder = ROOT.joinpath(*package.split(".")[1:])
        assert (folder / "__init__.py").read_text() == "", f"{package}: importing it must import nothing"
        assert {"recipe.py", "examples.py", "task.py"} <= {file.name for file in folder.iterdir()}, package
        assert [node.name for node in classes_of(folder / "task.py")] == [name]


def test_tasks_define_their_methods_in_the_order_of_the_base_class() -> None:
    (base,) = classes_of(ROOT / "tasks" / "base.py")
    order = methods_of(base)
    for path in sorted((ROOT / "tasks").rglob("*.py")):
        for node in classes_of(path) if path.name in ("task.py", "text.py") else ():
            defined = [name for name in methods_of(node) if name in order]
            assert defined == sorted(defined, key=order.index), f"{path.relative_to(ROOT)}: {node.name}"


def classes_of(path: Path) -> list[ast.ClassDef]:
    """The classes of a module that have methods."""
    classes = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef)]
    return [node for node in classes if methods_of(node)]


def methods_of(node: ast.ClassDef) -> list[str]:
    return [function.name for function in node.body if isinstance(function, ast.FunctionDef)]
