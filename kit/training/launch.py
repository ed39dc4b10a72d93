"""Several processes on one machine: N copies of the same command, each of which knows its number.

The launcher stays to see how they end. What goes wrong is told once, by the launcher, with the process that it began
with: those that fail because another one is gone only clutter the screen.
"""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.errors import KitError
from kit.system.files import read_json
from kit.system.machine import available_cores
from kit.system.redaction import redact

EXPECTED_PROCESSES = "KIT_PROCESSES"
"""Environment variable with the number of processes that `kit train --processes` starts."""

SHARDED_ENVIRONMENT = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
"""The environment in which Accelerate shards weights among the processes."""

LAUNCHER = "KIT_LAUNCHER"
FAILURE_DIR = "KIT_FAILURE_DIR"
"""Names the folder where a process of a group leaves its error for the launcher."""

LOST_PEER_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited",
    "Socket closed",
)
"""What the errors of gloo and NCCL say where another process is gone."""

SECONDS_TO_SAVE = 600
"""How long a process has to write its checkpoint when the run is to stop."""


def launch(processes: int, arguments: list[str], shard: bool = False) -> int:
    """Run `kit …arguments` in so many real processes and wait; returns 0, or the exit code of what went wrong first.

    On a machine without GPUs, Accelerate must be told that the processes are to share the CPU: otherwise each would
    take itself for the only one. The run itself then checks that there are as many as were asked for.
    """
    import torch
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise KitError(f"--processes {processes}: there are {gpus} GPUs, and each process needs one")
    os.environ |= {
        EXPECTED_PROCESSES: str(processes),
        LAUNCHER: str(os.getpid()),
        **(SHARDED_ENVIRONMENT if shard else {}),
    }
    if not gpus:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // processes)))
    # a failure is told by the process that failed, not by the launcher's own long report
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # each module of it has a level of its own
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=SECONDS_TO_SAVE,
    )
    with tempfile.TemporaryDirectory() as place:
        os.environ[FAILURE_DIR] = place
        try:
            elastic_launch(config, sys.executable)("-m", "kit", *arguments)
        except ChildFailedError as error:
            codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            return show_failure(codes, read_failures(Path(place)))
        except SignalException as stop:  # handed on to the processes, which have saved and ended
            return 128 + int(stop.sigval)
    return 0


# ---- in the launcher -------------------------------------------------------------------------------------------------


def read_failures(folder: Path) -> dict[int, dict[str, Any]]:
    """What the processes have left, by their number, the first failure first."""
    found = {int(path.stem): read_json(path, "the failure of a process") for path in folder.glob("*.json")}
    return dict(sorted(found.items(), key=lambda entry: entry[1]["time"]))


def show_failure(codes: Mapping[int, int], told: Mapping[int, dict[str, Any]]) -> int:
    """Say what went wrong first, and return the exit code for it."""
    mistake = next((entry for entry in told.values() if entry["is_message"]), None)
    if mistake is not None:
        print(mistake["text"], file=sys.stderr)
        return int(mistake["code"])
    # Processes that lose another one fail for want of it, are ended by SIGTERM, or by SIGKILL if they do not listen. So
    # the first is one whose error speaks of something else; else one that a signal ended.
    cause = next(
        (rank for rank, entry in told.items() if not any(sign in entry["text"] for sign in LOST_PEER_ERRORS)), None
    )
    ended = {rank: signal.Signals(-code) for rank, code in codes.items() if code < 0 and code != -signal.SIGTERM}
    if cause is None and ended:
        for rank, number in ended.items():
            hint = "; the system does that when memory runs out" if number == signal.SIGKILL else ""
            print(f"kit: process {rank} was ended by {number.name}{hint}. The others were stopped", file=sys.stderr)
        return 128 + int(next(iter(ended.values())))
    if told:
        cause = next(iter(told)) if cause is None else cause
        print(f"kit: process {cause} failed, the others were stopped:\n{told[cause]['text']}", file=sys.stderr)
        return int(told[cause]["code"])
    return next((code for code in codes.values() if code > 0), 1)


# ---- in each process -------------------------------------------------------------------------------------------------


def report_failure(message: str | None, code: int) -> bool:
    """Leave a message, or the traceback of the present error, for the launcher; False if there is none."""
    place = os.environ.get(FAILURE_DIR)
    if place is None or not Path(place).is_dir() or "RANK" not in os.environ:
        return False
    text = redact(message if message is not None else traceback.format_exc())
    entry = {"time": time.time(), "text": text, "is_message": message is not None, "code": code}
    (Path(place) / f"{os.environ['RANK']}.json").write_text(json.dumps(entry), encoding="utf-8")
    return True


def exit_with_parent() -> None:
    """In a process of a group: end as soon as the launcher is gone. It was killed, and nobody waits for this run."""
    launcher = os.environ.get(LAUNCHER)
    if launcher is None or "RANK" not in os.environ:
        return

    def watch() -> None:
        while os.getppid() == int(launcher):
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
