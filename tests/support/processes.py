"""Processes forked from this one, which start without importing anything.

Use them where training is the subject. Tests of the command line start real processes.
"""

import multiprocessing
import os
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


def in_processes(number: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function in a group of processes; all must succeed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_child, args=(rank, number, port, function, arguments)) for rank in range(number)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    assert [child.exitcode for child in children] == [0] * number


def kit_command(*arguments: object) -> list[str]:
    """The command line of kit with these arguments."""
    return [sys.executable, "-m", "kit", *map(str, arguments)]


class ForkedKit:
    """`python -m kit …` in a forked process, with the part of `Popen`'s interface that tests use.

    It can be killed like any other process. Its output goes to the file `log`, if given.
    """

    def __init__(
        self,
        command: Sequence[object],
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        assert [str(part) for part in command[:3]] == [sys.executable, "-m", "kit"]
        self.pid = os.fork()
        if self.pid == 0:
            _run_kit([str(part) for part in command[2:]], env or os.environ, folder, log)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _run_kit(arguments: list[str], environment: Mapping[str, str], folder: Path | None, log: Path | None) -> NoReturn:
    """Run the command line and exit, so that the forked test never continues."""
    code = 1
    try:
        from kit.cli import main

        output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        os.chdir(folder or os.curdir)
        os.environ.update(environment)
        forget_accelerator()
        sys.argv = arguments
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        os._exit(code)


def forget_accelerator() -> None:
    """Clear Accelerate's state of earlier tests in this process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()


def _child(rank: int, number: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": number,
        "LOCAL_WORLD_SIZE": number,
        "MASTER_PORT": port,
    }
    os.environ |= {name: str(value) for name, value in variables.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true", "KIT_PROCESSES": str(number)}
    forget_accelerator()
    try:
        function(*arguments)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
