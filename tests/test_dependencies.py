"""Declared dependencies and the files of constraints: complete, and in step with each other.

`make test CONSTRAINTS=…` runs the suite with each set; that the sets resolve is proven there, because it needs the
package index.
"""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE = {canonicalize_name(item.name): item for item in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {
    canonicalize_name(item.name): item
    for extra in PROJECT["optional-dependencies"].values()
    for item in map(Requirement, extra)
}
NO_CEILING = {"pydantic-core", "regex", "packaging"}
"""pydantic pins its core exactly; the other two are numbered by date or never remove anything."""
OPTIONAL = {"ctranslate2"}
"""Used by one benchmark if it is installed."""


def imports(folder: str) -> set[str]:
    """Top-level names of the third-party modules that the Python files of a folder import."""
    names: set[str] = set()
    files = list((ROOT / folder).rglob("*.py"))
    local = {path.stem for path in files} | {path.parent.name for path in files} | {"kit"}
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(str(node.module).partition(".")[0])
    return names - local - sys.stdlib_module_names if folder != "kit" else names - {"kit"} - sys.stdlib_module_names


def distributions(names: set[str]) -> set[str]:
    """The distributions that modules come from; a module that is not installed stands for itself."""
    known = packages_distributions()
    return {canonicalize_name(distribution) for name in names for distribution in set(known.get(name, [name]))}


def pins(name: str) -> dict[str, Version]:
    """The versions that a file of constraints fixes."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def floor(requirement: Requirement) -> Version:
    (version,) = (part.version for part in requirement.specifier if part.operator in (">=", "=="))
    return Version(version)


def test_kit_declares_exactly_what_it_imports() -> None:
    assert distributions(imports("kit")) == {
        *CORE,
        "openpyxl",
    }  # of the extra excel


@pytest.mark.parametrize("folder", ["tests", "recipes/scripts", "benchmarks"])
def test_what_the_tests_and_scripts_import_is_declared(folder: str) -> None:
    assert distributions(imports(folder)) <= CORE.keys() | EXTRAS.keys() | OPTIONAL


def test_every_dependency_has_a_floor_and_a_ceiling() -> None:
    for name, requirement in CORE.items():
        operators = sorted(part.operator for part in requirement.specifier)
        assert operators == ([">="] if name in NO_CEILING else ["<", ">="]), name


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-latest.txt", "constraints-lowest.txt"])
def test_constraints_pin_every_dependency_within_its_range(name: str) -> None:
    pinned = pins(name)
    declared = CORE if name == "constraints-lowest.txt" else CORE | EXTRAS
    for package, requirement in declared.items():
        assert package in pinned, package
        assert requirement.specifier.contains(pinned[package]), package
    assert pinned["torch"] == Version("2.13.0")


def test_the_lowest_constraints_are_the_floors() -> None:
    assert pins("constraints-lowest.txt") == {name: floor(requirement) for name, requirement in CORE.items()}


def test_constraints_leave_room_for_gradio_and_trackio() -> None:
    # gradio 6.31 and trackio 0.43 need pillow<13, gradio also tomlkit<0.15
    pinned = pins("constraints.txt")
    assert pinned["pillow"] < Version("13")
    assert pinned["tomlkit"] < Version("0.15")


def test_both_complete_sets_pin_the_same_packages() -> None:
    assert pins("constraints.txt").keys() == pins("constraints-latest.txt").keys()


def test_no_name_is_pinned_twice() -> None:
    for name in ("constraints.txt", "constraints-latest.txt", "constraints-lowest.txt"):
        lines = re.findall(r"^([\w.-]+)==", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert len({canonicalize_name(line) for line in lines}) == len(lines), name


def test_ci_runs_every_set_of_constraints_by_make() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    sets = {row["constraints"] for row in job["strategy"]["matrix"]["include"]}
    assert sets == {path.name for path in ROOT.glob("constraints*.txt")}
    assert job["steps"][-1]["run"] == "make test CONSTRAINTS=${{ matrix.constraints }}"


def test_hooks_run_the_tools_of_make_lint() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^\t\$\(BIN\)/(.+)$", makefile[makefile.index("\nlint:") : makefile.index("\ntest:")], re.M)
    tools = {" ".join(command.split()[:2]).removesuffix(" .") for command in commands}
    entries = {hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in hooks}
    assert {tool.removesuffix(" --check") for tool in tools} == entries
