"""Attempts: one command each, in a folder with malformed files, in a forked process or by the real command line.

A forked process has everything imported already, so an attempt takes as long as kit works on it. `run_attempt` reports
how it ended.
"""

import gc
import importlib
import os
import pkgutil
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

import kit
from kit import KitError, load_recipe
from kit.cli import main
from kit.runs.prepare import prepare
from support.mutations import Damage, problem_of
from support.processes import forget_accelerator

SECONDS = 20
"""An attempt that takes longer on an idle machine is a hang; see `Stopwatch`."""
MAX_SECONDS = 6 * SECONDS
"""Time on the clock after which an attempt is a hang whatever it waits for."""
FIRST_LOOK = 1.0
"""Seconds before the processes of an attempt are looked at for the first time: most attempts have ended by then."""
EXTRA_BYTES = 4 * 2**30
"""Address space that a forked attempt may use beyond that of the libraries."""
PREPARE = "prepare"
"""The command that only does what precedes the first training step; `kit` has none."""
FAILED_RUN = "training failed: "
"""How the only message with exit code 1 begins: the input is valid, but weights or losses are no longer finite."""


def import_everything() -> None:
    """Import what commands import lazily, so that forked processes have it."""
    for module in pkgutil.walk_packages(kit.__path__, "kit."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("matplotlib.backends.backend_agg", "transformers.models.bert.modeling_bert", "PIL.PngImagePlugin"):
        importlib.import_module(name)
    for name in ("transformers.models.gpt2.modeling_gpt2", "peft", "sacrebleu", "seqeval.metrics", "sklearn.metrics"):
        importlib.import_module(name)
    # A collection in a forked process would write to, and so copy, the memory of every object that it inherited.
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Attempt:
    """A command in a folder with malformed input."""

    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    source: Path | None = None
    """A run that is copied to `run`."""
    damages: Sequence[Damage] = ()
    """What happens to the files then; their paths are relative to the folder of the attempt."""
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
        for damage in self.damages:
            damage.apply(folder)


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
        may_fail = self.attempt.arguments[0] == "verify" or FAILED_RUN in self.result.stderr
        return problem_of(self.result, (0, 1, 2, 3) if may_fail else (0, 2, 3))

    def __str__(self) -> str:
        return f"{self.attempt.name}: kit {' '.join(self.attempt.arguments)}\n{self.problem}"


def run_attempt(attempt: Attempt, folder: Path, start: Callable[..., int] | None = None) -> Outcome:
    """Run an attempt in a forked process, or one that `start` starts, within a folder that is removed afterwards."""
    attempt.prepare(folder)
    began = time.monotonic()
    pid = (start or fork_kit)(attempt.arguments, folder)
    status, timed_out = wait(pid)
    seconds = time.monotonic() - began
    out, err = ((folder / name).read_bytes().decode("utf-8", "replace") for name in ("stdout", "stderr"))
    shutil.rmtree(folder)
    result = subprocess.CompletedProcess(list(attempt.arguments), os.waitstatus_to_exitcode(status), out, err)
    return Outcome(attempt, result, seconds, timed_out)


# ---- hangs -----------------------------------------------------------------------------------------------------------


class Stopwatch:
    """How long a process and its descendants would have taken so far on an idle machine.

    The clock alone would count what other programs do to a machine of two cores, and CPU time alone would miss whoever
    sleeps, or waits for a lock or a pipe, forever. So it is the longer of two times: CPU time, and the time on the
    clock without that in which a thread was ready and waited for a CPU, which Linux counts. On other systems nothing is
    subtracted. As several threads can wait at once, too much may be subtracted: `MAX_SECONDS` bounds the clock, too.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self.began = pid, time.monotonic()
        self.waited: dict[Path, float] = {}
        """Seconds that each thread waited for a CPU, also of those that have ended."""

    def is_hang(self) -> bool:
        clock = time.monotonic() - self.began
        return clock > FIRST_LOOK and (clock > MAX_SECONDS or self._seconds(clock) > SECONDS)

    def _seconds(self, clock: float) -> float:
        computed = 0.0
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                with suppress(psutil.NoSuchProcess, OSError):
                    computed += sum(member.cpu_times()[:4])  # with those of ended children
                    for thread in Path(f"/proc/{member.pid}/task").glob("*"):
                        self.waited[thread] = int((thread / "schedstat").read_text().split()[1]) / 1e9
        return max(computed, clock - sum(self.waited.values()))


def wait(pid: int) -> tuple[int, bool]:
    """The status of a process that leads its group, and whether it hung and was killed."""
    watch, pause = Stopwatch(pid), 0.005
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status, False
        if watch.is_hang():
            os.killpg(pid, signal.SIGKILL)
            return os.waitpid(pid, 0)[1], True
        time.sleep(pause)
        pause = min(0.1, pause * 1.5)


# ---- processes -------------------------------------------------------------------------------------------------------


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
