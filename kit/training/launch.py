"""The launcher of several processes on one machine: N copies of the same command, each with its rank.

The launcher waits for them and reports a failure once, with the rank that caused it: processes that fail because they
lost a peer would only hide the cause.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.errors import KitError
from kit.system.files import read_json
from kit.system.json_files import write_json
from kit.system.machine import available_cores
from kit.system.outputs import scratch_folder
from kit.system.redaction import redact

EXPECTED_PROCESSES = "KIT_PROCESSES"
"""Environment variable with the number of processes that `kit train --processes` starts."""

SHARDED_ENVIRONMENT = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
"""Environment variables that make Accelerate shard weights among the processes."""

LAUNCHER = "KIT_LAUNCHER"
"""Environment variable with the process id of the launcher."""

FAILURE_DIR = "KIT_FAILURE_DIR"
"""Environment variable with the folder where each process writes its failure for the launcher."""

PEER_EXITED = "has exited while others waited for it"
"""End of the message of a process that finds a peer gone; see `kit.training.processes`."""
LOST_PEER_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "Socket closed",
    PEER_EXITED,
)
"""Parts of error messages, mostly of gloo and NCCL, that mean that a peer process has exited."""

MIN_ALLOWED = 16
"""Processes that are allowed on any machine, since small trials need less than a core each. A number mistyped by some
digits would fill the memory with processes before any of them could report it."""

SECONDS_TO_SAVE = 600
"""How long processes may take to write their checkpoint after a signal, before they are killed: a large one on a slow
disk takes minutes."""


def launch(processes: int, arguments: list[str], shard: bool = False) -> int:
    """Run `kit …arguments` in this many processes and wait; returns 0, or the exit code of the first failure.

    Without GPUs, ACCELERATE_USE_CPU is needed: otherwise Accelerate ignores the process group, and each process trains
    alone. The run itself checks the number of processes again.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise KitError(f"--processes {processes}: each process needs a GPU, and this machine has {gpus}")
    cores = available_cores()
    if not gpus and processes > max(MIN_ALLOWED, cores):
        raise KitError(
            f"--processes {processes}: more processes than cores train no faster, and this machine has {cores}"
        )
    os.environ |= {
        EXPECTED_PROCESSES: str(processes),
        LAUNCHER: str(os.getpid()),
        **(SHARDED_ENVIRONMENT if shard else {}),
    }
    if not gpus:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    # failures are reported by show_failure, not by the long report of torch's launcher
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # each of its modules sets a level
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        shutdown_timeout=SECONDS_TO_SAVE,
    )
    with scratch_folder("kit-launch-") as folder:
        os.environ[FAILURE_DIR] = str(folder)
        try:
            elastic_launch(config, sys.executable)("-m", "kit", *arguments)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            return show_failure(codes, read_failures(folder))
        except SignalException as stop:  # forwarded to the processes, which have saved and exited
            return 128 + int(stop.sigval)  # as shells do
    return 0


# ---- in the launcher -------------------------------------------------------------------------------------------------


def read_failures(folder: Path) -> dict[int, dict[str, Any]]:
    """The failures that processes have written, by rank, the earliest first."""
    failures = {int(path.stem): read_json(path, "the failure of a process") for path in folder.glob("*.json")}
    return dict(sorted(failures.items(), key=lambda entry: entry[1]["time"]))


def show_failure(codes: Mapping[int, int], failures: Mapping[int, dict[str, Any]]) -> int:
    """Print the failure that came first and return its exit code."""
    mistake = next((entry for entry in failures.values() if entry["is_message"]), None)
    if mistake is not None:
        print(mistake["text"], file=sys.stderr)
        return int(mistake["code"])
    # Processes that lose a peer fail with a connection error, or the launcher ends them by SIGTERM, later by SIGKILL.
    # The cause is a process with any other error; if there is none, one that a signal ended.
    cause = next(
        (rank for rank, entry in failures.items() if not any(sign in entry["text"] for sign in LOST_PEER_ERRORS)), None
    )
    ended = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    if cause is None and ended:
        for rank, number in ended.items():
            hint = "; the system does that when memory runs out" if number == signal.SIGKILL else ""
            print(f"kit: process {rank} was ended by {number.name}{hint}. The others were stopped", file=sys.stderr)
        return 128 + int(next(iter(ended.values())))
    if failures:
        cause = next(iter(failures)) if cause is None else cause
        print(f"kit: process {cause} failed, the others were stopped:\n{failures[cause]['text']}", file=sys.stderr)
        return int(failures[cause]["code"])
    return next((code for code in codes.values() if code > 0), 1)


# ---- in each process -------------------------------------------------------------------------------------------------


def report_failure(message: str | None, code: int) -> bool:
    """Write a message, or without one the current traceback, into a file for the launcher.

    Returns False, and writes nothing, if this process was not started by kit's launcher.
    """
    folder = os.environ.get(FAILURE_DIR)
    if folder is None or not Path(folder).is_dir() or "RANK" not in os.environ:
        return False
    text = redact(message if message is not None else traceback.format_exc())
    entry = {"time": time.time(), "text": text, "is_message": message is not None, "code": code}
    write_json(Path(folder) / f"{os.environ['RANK']}.json", entry)
    return True


def peer_failed() -> bool:
    """Whether the launcher stops this process because another one has failed, which it reports itself."""
    folder = os.environ.get(FAILURE_DIR)
    return folder is not None and any(Path(folder).glob("*.json"))


def exit_with_parent() -> None:
    """Start a thread that kills this process once its launcher has exited, so that a killed launcher leaves no orphans.

    Does nothing in a process that kit did not launch.
    """
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or "RANK" not in os.environ:
        return

    def watch() -> None:
        while os.getppid() == int(launcher):
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
