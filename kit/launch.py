"""Several processes on one machine: N copies of the same command, each of which knows its number."""

import logging
import os
import sys
import uuid

from kit.errors import KitError
from kit.machine import cores


def launch(processes: int, arguments: list[str]) -> int:
    """Run `kit …arguments` in so many real processes and wait; returns the exit code of the first that failed, or 0.

    On a machine without GPUs, Accelerate must be told that the processes are to share the CPU: otherwise each would
    take itself for the only one. The run itself then checks that there are as many as were asked for.
    """
    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from kit.run import EXPECTED_PROCESSES

    gpus = torch.cuda.device_count()
    if gpus and processes > gpus:
        raise KitError(f"--processes {processes}: there are {gpus} GPUs, and each process needs one")
    os.environ[EXPECTED_PROCESSES] = str(processes)
    if not gpus:
        os.environ["ACCELERATE_USE_CPU"] = "true"
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    # a failure is told by the process that failed, not by the launcher's own long report
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "kit", *arguments)
    except ChildFailedError as error:
        return error.get_first_failure()[1].exitcode
    return 0
