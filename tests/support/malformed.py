"""Malformed inputs by the thousand, each a function of its seed, and a fork server that runs `kit` on them.

A forked process has everything imported already, so an input takes as long as kit works on it. An `Attempt` is a
command in a folder with malformed files; `run_attempt` reports how it ended.
"""

import importlib
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import psutil
import yaml

import kit
from kit import KitError, load_recipe, train
from kit.cli import main
from kit.models import MODELS
from kit.recipe.base import sections_of
from kit.recipe.model_settings import config_class, settings_model
from kit.runs.prepare import prepare
from kit.tasks.registry import recipe_classes
from support.data_files import CASES, NASTY, VALUES, complete, edited
from support.mutations import ODD_NUMBERS, ODD_SETTINGS, Damage, damages, problem_of
from support.processes import forget_accelerator
from support.recipes import RECIPES, make_recipe

SECONDS = 20
"""An attempt that takes longer counts as a hang."""
BUSY = 6
"""How often longer than alone an attempt may take on a busy machine."""
EXTRA_BYTES = 4 * 2**30
"""Address space that an attempt may use beyond that of the libraries."""
SHORT = ["train.max_steps=2", "train.save_steps=1", "eval.steps=0", "eval.examples=0"]
PREPARE = "prepare"
"""The command that only does what precedes the first training step; `kit` has none."""
TRAINED = 0.15
"""Share of malformed recipes and data that are trained for two steps if they are accepted after all."""
NOT_CHANGED = (
    "model.pretrained",
    "tokenizer.pretrained",
    "train.report_to",
    "train.torch_compile",
    "train.max_steps",
    "train.num_train_epochs",
)
"""Keys that would reach for the network or other packages, or take long for a good reason."""


def import_everything() -> None:
    """Import what commands import lazily, so that forked processes have it."""
    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("matplotlib.backends.backend_agg", "transformers.models.bert.modeling_bert", "PIL.PngImagePlugin"):
        importlib.import_module(name)
    for name in ("transformers.models.gpt2.modeling_gpt2", "peft", "sacrebleu", "seqeval.metrics", "sklearn.metrics"):
        importlib.import_module(name)


@dataclass(frozen=True)
class Attempt:
    """A command in a folder with malformed input."""

    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    source: Path | None = None
    """A run that is copied to `run`."""
    damage: Damage | None = None
    """What happens to the copy."""
    stdin: bytes = b""

    def prepare(self, folder: Path) -> None:
        """Put the input into an empty folder."""
        folder.mkdir(parents=True)
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        (folder / "stdin").write_bytes(self.stdin)
        if self.source is not None:
            shutil.copytree(self.source, folder / "run")
        if self.damage is not None:
            self.damage.apply(folder / "run")


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    attempt: Attempt
    result: "subprocess.CompletedProcess[str]"
    seconds: float
    timed_out: bool

    @property
    def problem(self) -> str:
        """What is wrong with it; empty if nothing is."""
        if self.timed_out:
            return f"still running after {self.seconds:.0f} s: {self.result.stderr[-500:]}"
        return problem_of(self.result, (0, 1, 2, 3))

    def __str__(self) -> str:
        return f"{self.attempt.name}: kit {' '.join(self.attempt.arguments)}\n{self.problem}"


def run_attempt(attempt: Attempt, folder: Path, start: Callable[..., int] | None = None) -> Outcome:
    """Run an attempt in a forked process, or one that `start` starts, within a folder that is removed afterwards."""
    attempt.prepare(folder)
    began = time.monotonic()
    pid = (start or fork_kit)(attempt.arguments, folder)
    status, timed_out = wait(pid, began)
    seconds = time.monotonic() - began
    out, err = ((folder / name).read_bytes().decode("utf-8", "replace") for name in ("stdout", "stderr"))
    shutil.rmtree(folder)
    result = subprocess.CompletedProcess(list(attempt.arguments), os.waitstatus_to_exitcode(status), out, err)
    return Outcome(attempt, result, seconds, timed_out)


def wait(pid: int, began: float) -> tuple[int, bool]:
    """The status of a process, and whether it hung: it is killed after `SECONDS` of computing, or of doing nothing for
    longer than a busy machine lets a process wait."""
    pause = 0.005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, False
        with suppress(psutil.NoSuchProcess):
            computed = sum(psutil.Process(pid).cpu_times()[:2])
            if computed > SECONDS or time.monotonic() - began > BUSY * SECONDS:
                os.killpg(pid, signal.SIGKILL)
                return os.waitpid(pid, 0)[1], True
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


def start_kit(arguments: Sequence[str], folder: Path) -> int:
    """Start the real command line in a folder; `kit data` prepares a recipe, too."""
    if arguments[0] == PREPARE:
        arguments = ("data", *arguments[1:])
    streams = zip(("stdin", "stdout", "stderr"), ("rb", "wb", "wb"), strict=True)
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open(mode)) for name, mode in streams}
        return subprocess.Popen([sys.executable, "-m", "kit", *arguments], **files, cwd=folder, process_group=0).pid


def fork_kit(arguments: Sequence[str], folder: Path) -> int:
    """Start the command line in a folder, in a process that has imported everything; returns its id."""
    pid = os.fork()
    if pid == 0:
        _become_kit(arguments, folder)
    return pid


def _become_kit(arguments: Sequence[str], folder: Path) -> NoReturn:
    code: Any = 1
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT), number)
        sys.stdin, sys.stdout, sys.stderr = (open(n, m, closefd=False) for n, m in ((0, "r"), (1, "w"), (2, "w")))  # noqa: SIM115
        for name in ("stdout", "stderr"):
            setattr(sys, f"__{name}__", getattr(sys, name))
        pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
        if pages:
            limit = pages * resource.getpagesize() + EXTRA_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        forget_accelerator()
        if arguments[0] == PREPARE:
            prepare_recipe(*arguments[1:])
        sys.argv = ["kit", *arguments]
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def prepare_recipe(file: str, *overrides: str) -> NoReturn:
    """Do what precedes the first training step, as `kit train` does."""
    try:
        prepared = prepare(load_recipe(Path(file), overrides))
        prepared.plan.step(0)
        prepared.plan.close()
    except KitError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


# ---- recipes and overrides -------------------------------------------------------------------------------------------


def recipe_attempt(seed: int) -> Attempt:
    """A recipe of any task with changed values or bytes."""
    chance = random.Random(f"recipe {seed}")
    task = chance.choice(sorted(RECIPES))
    recipe: dict[str, Any] = json.loads(json.dumps({"task": task, **RECIPES[task]}))
    recipe["train"]["max_steps"] = 2
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        change_key(recipe, chance.choice(keys_of(task)), chance.choice([*VALUES, *map(json.loads, ODD_NUMBERS)]))
    content = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode()
    if chance.random() < 0.5:
        content = damaged_bytes(content, chance)
    return Attempt(f"recipe {seed}", train_or_prepare(chance), {"recipe.yaml": content})


def train_or_prepare(chance: random.Random, overrides: Sequence[str] = ()) -> tuple[str, ...]:
    if chance.random() < TRAINED:
        return ("train", "recipe.yaml", *overrides, "--output", "out")
    return (PREPARE, "recipe.yaml", *overrides)


def override_attempt(seed: int) -> Attempt:
    """Overrides of any kind on a good recipe."""
    chance = random.Random(f"override {seed}")
    task = chance.choice(sorted(RECIPES))
    changes = []
    for _ in range(chance.choice([1, 1, 2, 3])):
        value = chance.choice(
            [*map(json.dumps, VALUES), *ODD_NUMBERS, "[", "{a: 1", "!!python/name:os.system", "&a", ""]
        )
        changes.append(f"{chance.choice(keys_of(task))}={value}")
    if chance.random() < 0.2:
        changes[0] = damaged_bytes(changes[0].encode(), chance).decode("utf-8", "replace").replace("\0", "0")
    changes = [change for change in changes if not change.startswith("-")]
    return Attempt(f"override {seed}", train_or_prepare(chance, [*SHORT, *changes]), recipe_file(task))


def recipe_file(task: str) -> dict[str, bytes]:
    return {"recipe.yaml": yaml.safe_dump({"task": task, **RECIPES[task]}, sort_keys=False).encode()}


def keys_of(task: str) -> list[str]:
    """The keys of the recipe of a task, those of its model included."""
    keys = [f"{name}.{key}" for name, kind in sections_of(recipe_classes()[task]).items() for key in kind.model_fields]
    keys += [f"model.{key}" for key in model_fields(task)]
    return [key for key in keys if key not in NOT_CHANGED]


def model_fields(task: str) -> dict[str, Any]:
    """The keys of the model of the tiny recipe of a task."""
    model_type = RECIPES[task]["model"]["type"]
    mapping = None if model_type in MODELS else "MODEL_MAPPING_NAMES"
    return settings_model(config_class(model_type, mapping=mapping)).model_fields


def change_key(recipe: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    recipe.setdefault(section, {})[name] = value


def damaged_bytes(content: bytes, chance: random.Random) -> bytes:
    kind = chance.choice(["flip", "insert", "remove", "repeat", "cut"])
    return edited(content, kind, chance.random(), chance.random(), chance.choice(NASTY))


# ---- odd values ------------------------------------------------------------------------------------------------------


def odd_attempt(seed: int) -> Attempt:
    """A recipe with an odd value, trained for two steps."""
    chance = random.Random(f"odd {seed}")
    task = chance.choice(sorted(RECIPES))
    if chance.random() < 0.3:
        change = chance.choice(ODD_SETTINGS[task])
    else:
        recipe = recipe_classes()[task]
        numbers = [key for key in keys_of(task) if is_number(recipe, task, key)]
        change = f"{chance.choice(numbers)}={chance.choice(ODD_NUMBERS)}"
    return odd_value(task, change, f"odd {seed}")


def odd_value(task: str, change: str, name: str = "") -> Attempt:
    arguments = ("train", "recipe.yaml", *SHORT, change, "--output", "out")
    return Attempt(name or f"{task} {change}", arguments, recipe_file(task))


def is_number(recipe: Any, task: str, key: str) -> bool:
    section, _, name = key.partition(".")
    fields = sections_of(recipe)[section].model_fields if section != "model" else {}
    field = fields.get(name) or (model_fields(task) if section == "model" else {}).get(name)
    return field is not None and any(kind in str(field.annotation) for kind in ("int", "float"))


# ---- data ------------------------------------------------------------------------------------------------------------


def data_attempt(seed: int) -> Attempt:
    """Damaged data of any format, given to training or inspected."""
    chance = random.Random(f"data {seed}")
    name = chance.choice(sorted(CASES))
    recipe, files = CASES[name]
    files = {f"data/{file}": content for file, content in files.items()}
    for _ in range(chance.choice([1, 1, 2])):
        file = chance.choice(sorted(files))
        files[file] = damaged_bytes(files[file], chance)
    recipe = json.loads(json.dumps(complete(recipe)))
    recipe["train"]["save_steps"] = 1
    recipe.setdefault("eval", {}).update(steps=0, examples=0)
    files["recipe.yaml"] = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).encode()
    arguments = ("data", "recipe.yaml") if chance.random() < 0.05 else train_or_prepare(chance)
    return Attempt(f"data {seed}: {name}", arguments, files)


# ---- folders ---------------------------------------------------------------------------------------------------------

LINES = "3 maj 1984\n2. Mai 2020\n"
ROWS = "".join(
    json.dumps({"text": text, "tokens": text.split(), "question": "when?", "context": text, "id": text}) + "\n"
    for text in LINES.split("\n")[:2]
)
GENERATE = (("generate", "run", "in.txt"), ("embed", "run", "in.txt"))
PREDICT = (("predict", "run", "in.jsonl"),)
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "translation": (*GENERATE, ("plot", "run", "--output", "plots"), ("compare", "run", "run")),
    "causal_lm": (*GENERATE, ("plot", "run", "--output", "plots")),
    "masked_lm": (("embed", "run", "in.txt"), ("plot", "run", "--output", "plots")),
    "instruction_tuning": GENERATE,
    "classification": (*PREDICT, ("embed", "run", "in.txt")),
    "tagging": PREDICT,
    "question_answering": PREDICT,
    "captioning": (("generate", "run", "in.txt"),),
    "dialogue": (("generate", "run", "in.txt"), ("chat", "run")),
    "forecasting": (("predict", "run", "in.csv"),),
}
ALL_TASKS: tuple[tuple[str, ...], ...] = (
    ("eval", "run"), ("train", "run", "--resume"), ("average", "run", "--last", "2", "--output", "out"),
    ("data", "run/recipe.yaml"), ("plot", "run"),
)  # fmt: skip
SLOW: tuple[tuple[str, ...], ...] = (("verify", "run"), ("push", "run", "OWNER/NAME", "--dry-run"))
SERIES = "series,step,x,y,vx,vy\n" + "".join(f"a,{n},{n % 3},1,0,1\n" for n in range(40))


@dataclass(frozen=True)
class Runs:
    """A finished run of every task, an unfinished one, and one with an adapter, in one folder."""

    folder: Path

    @classmethod
    def train(cls, folder: Path) -> "Runs":
        for task in RECIPES:
            run = train(make_recipe(folder, task, overrides=SHORT), folder / task).folder
            unfinished = shutil.copytree(run, folder / f"{task}-unfinished")
            (unfinished / "results.json").unlink()
            shutil.rmtree(unfinished / "checkpoints" / "step-2")
        base = {"pretrained": str(folder / "classification" / "model")}
        adapter = make_recipe(
            folder / "adapter-recipe", "classification", model=base, peft={"method": "lora", "rank": 2}, overrides=SHORT
        )
        train(adapter, folder / "adapter")
        return cls(folder)

    def slow_attempt(self, seed: int) -> Attempt:
        """A damaged folder, given to a command that takes longer."""
        return self.attempt(seed, slow=True)

    def attempt(self, seed: int, slow: bool = False) -> Attempt:
        """A damaged folder, given to a command."""
        chance = random.Random(f"folder {seed}")
        task = chance.choice(sorted(RECIPES))
        source = self.folder / task
        command = chance.choice(SLOW if slow else [*COMMANDS[task], *ALL_TASKS])
        if command[:1] == ("train",):
            source = self.folder / f"{task}-unfinished"
        elif not slow and chance.random() < 0.1:
            source = self.folder / "adapter"
            command = chance.choice([("merge", "run", "--output", "out"), ("eval", "run"), *COMMANDS["classification"]])
        pattern = chance.choice(["**/*", "*", "model/**/*", "model/*.json", "checkpoints/**/*"])
        damage = chance.choice(damages(source, seed, pattern=pattern))
        return self.damaged(source, command, damage, f"folder {seed}: {source.name} {damage}")

    def damaged(self, source: Path, command: tuple[str, ...], damage: Damage, name: str = "") -> Attempt:
        files = {"in.txt": LINES.encode(), "in.jsonl": ROWS.encode(), "in.csv": SERIES.encode()}
        return Attempt(name or str(damage), command, files, source, damage, LINES.encode())
