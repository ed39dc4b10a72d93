"""What a run is executed on: package versions, hardware, memory."""

import ctypes
import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path

from kit.system.version import __version__

PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "accelerate", "evaluate", "sacrebleu")


def package_versions() -> dict[str, str]:
    """Versions of kit, Python and the packages that can change results."""
    versions = {"kit": __version__, "python": platform.python_version()}
    return versions | {name: _installed_version(name) for name in PACKAGES}


def _installed_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def available_cores() -> int:
    """Number of CPU cores that this process may use; containers and `taskset` grant fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_hardware(processes: int = 1) -> str:
    """The devices of this machine in a few words, such as "2 × NVIDIA A100, 2 processes"."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        device = f"{len(names)} × {names[0]}" if len(set(names)) == 1 else ", ".join(names)
    else:
        cores = available_cores()
        device = f"{_processor()}, {cores} {'core' if cores == 1 else 'cores'}, no GPU"
    return device if processes == 1 else f"{device}, {processes} processes"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Make the C library keep the memory of freed tensors for later tensors of the same size.

    A training step on a CPU allocates and frees the same large tensors over and over. By default, glibc returns each of
    them to the system and gets zeroed pages back, which took up to a third of the time of a step. Other C libraries
    have no such switch.
    """
    trim_threshold, mmap_threshold, unlimited = -1, -3, 2**31 - 1  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, unlimited)


def peak_memory_mb() -> float:
    """Peak memory of this process so far, in MiB: of its GPU if it uses one, otherwise of the machine."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes on macOS, KiB on Linux
