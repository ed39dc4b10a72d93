"""What this run happens on: versions, hardware, memory."""

import ctypes
import os
import platform
import resource
import sys
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "accelerate", "evaluate", "sacrebleu")


def package_versions() -> dict[str, str]:
    """Versions of kit, Python and the packages that results depend on."""
    found = {"kit": _version("seq2seq-kit"), "python": platform.python_version()}
    return found | {name: _version(name) for name in PACKAGES}


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def available_cores() -> int:
    """Cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_hardware(processes: int = 1) -> str:
    """The devices of this machine in a few words."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        device = f"{len(names)} × {names[0]}" if len(set(names)) == 1 else ", ".join(names)
    else:
        device = f"{_processor()}, {available_cores()} {'core' if available_cores() == 1 else 'cores'}, no GPU"
    return device if processes == 1 else f"{device}, {processes} processes"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Let the C library keep the memory that freed tensors leave, for the next ones of the same size.

    A training step on a CPU allocates and frees the same large tensors over and over. By default each goes back to the
    system and comes back as zeroed pages, which took up to a third of the time of a step. Only glibc can be told.
    """
    trim_threshold, mmap_threshold, without_limit = -1, -3, 2**31 - 1
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, without_limit)


def peak_memory_mb() -> float:
    """The most memory that this process has held so far: of its GPU if it uses one, else of the machine."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
