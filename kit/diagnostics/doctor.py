"""`kit doctor`: check this machine and its packages for training, and name a remedy for whatever is wrong."""

import os
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from kit.diagnostics.tables import line
from kit.system.machine import available_cores, describe_hardware, package_versions

DISTRIBUTION = "seq2seq-kit"
INVESTIGATE = "look for the cause before you trust a run on this machine"
"""The remedy where training gives a wrong result."""

TRACKERS = ("tensorboard", "wandb", "trackio")
OFFLINE_VARIABLES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "HF_ENDPOINT")
GIGABYTE = 2**30
LOW_MEMORY = 2 * GIGABYTE  # torch and transformers alone take 0.5 GB
LOW_SPACE, MIN_SPACE = 5 * GIGABYTE, GIGABYTE // 2  # a BERT base checkpoint with optimizer state takes 1.3 GB


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    topic: str
    status: Literal["ok", "warning", "problem"]
    text: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def diagnose(check_hub: bool = False, more: Mapping[str, Check] | None = None) -> list[Finding]:
    """Check versions, devices, settings and disk; then run the checks in `more`, which are named by topic.

    Nothing remains on disk. Only `check_hub` uses the network, for one request. If a check cannot run because a package
    is missing, that is a finding, too, and the other checks still run.
    """
    checks: dict[str, Check] = {
        "versions": lambda: package_findings(supported_ranges()),
        "trackers": tracker_findings,
        "devices": device_findings,
        "hub": lambda: hub_findings(check_hub),
        "folders": lambda: folder_findings(folders()),
        **(more or {}),
    }
    findings: list[Finding] = []
    for topic, check in checks.items():
        try:
            findings += check()
        except ImportError as error:
            findings.append(Finding(topic, "problem", f"cannot be checked: {error}", "install the missing package"))
    return findings


def any_problem(findings: Iterable[Finding]) -> bool:
    """Whether something must be fixed before kit can be used."""
    return any(finding.status == "problem" for finding in findings)


def render(findings: Iterable[Finding]) -> Table:
    """The findings as a table for a rich console."""
    marks = {"ok": ("✓", "green"), "warning": ("!", "bold yellow"), "problem": ("✗", "bold red")}
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = marks[finding.status]
        table.add_row(Text(mark, style=style), line(finding.topic), line(finding.text))
        if finding.remedy:
            table.add_row("", "", line(f"→ {finding.remedy}", style="bold"))
    return table


# ---- packages --------------------------------------------------------------------------------------------------------


def supported_ranges() -> list[str] | None:
    """The requirements in the metadata of the installed package; None if kit is not installed."""
    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return None


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def package_findings(requirements: Sequence[str] | None) -> Iterator[Finding]:
    """Packages that are missing, older than what kit needs, or newer than what it supports."""
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    if requirements is None:
        remedy = "install it: pip install -e . in its folder"
        yield Finding(
            "versions", "warning", f"{versions}; kit is not installed, so its requirements are unknown", remedy
        )
        return
    findings = [finding for requirement in requirements for finding in check_requirement(requirement)]
    yield Finding("versions", "ok", versions if findings else f"{versions}: all within the supported ranges")
    yield from findings


def check_requirement(text: str) -> Iterator[Finding]:
    """A problem if a required package is missing or too old, a warning if it is too new.

    Of the packages in extras, only installed trackers are checked.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    requirement = Requirement(text)
    name, version = requirement.name, installed_version(requirement.name)
    is_extra = requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
    if is_extra and (name not in TRACKERS or version is None):
        return
    remedy = f"pip install '{name}{requirement.specifier}'"
    if version is None:
        yield Finding(name, "problem", f"is not installed, and kit needs it ({requirement.specifier})", remedy)
        return
    # a version below a floor fails; one above a ceiling may work
    floors = SpecifierSet(",".join(str(part) for part in requirement.specifier if part.operator in (">=", ">", "~=")))
    if not floors.contains(version, prereleases=True):
        yield Finding(name, "problem", f"{version} is older than what kit needs ({requirement.specifier})", remedy)
    elif not requirement.specifier.contains(version, prereleases=True):
        yield Finding(name, "warning", f"{version} is newer than what kit supports ({requirement.specifier})", remedy)


def tracker_findings() -> Iterator[Finding]:
    """Which experiment trackers are installed."""
    versions = {name: installed_version(name) for name in TRACKERS}
    shown = ", ".join(f"{name} {version or 'not installed'}" for name, version in versions.items())
    yield Finding("trackers", "ok", f"{shown} (needed only for train.report_to)")


# ---- devices ---------------------------------------------------------------------------------------------------------


def device_findings() -> Iterator[Finding]:
    """Processors, threads, memory and GPUs."""
    import psutil
    import torch

    threads, available = torch.get_num_threads(), available_cores()
    text = f"{describe_hardware()}; torch uses {threads} thread{'s' * (threads > 1)}"
    if threads > available:
        yield Finding("cpu", "warning", f"{text}, more than cores, so they compete", "set OMP_NUM_THREADS lower")
    elif threads < available / 2:
        yield Finding(
            "cpu", "warning", f"{text}, fewer than half of the {available} cores", "set OMP_NUM_THREADS higher"
        )
    else:
        yield Finding("cpu", "ok", text)
    memory = psutil.virtual_memory()
    shown = f"{memory.available / GIGABYTE:.1f} of {memory.total / GIGABYTE:.1f} GB are free"
    if memory.available < LOW_MEMORY:
        yield Finding("memory", "warning", shown, "close other programs, or train with more train.micro_batches")
    else:
        yield Finding("memory", "ok", shown)
    yield from gpu_findings()


def gpu_findings() -> Iterator[Finding]:
    """Name, free memory and precisions of each GPU; a GPU that torch cannot use is a warning."""
    import torch

    if torch.backends.mps.is_available():
        yield Finding("gpu", "ok", "Apple GPU (mps)")
    elif not torch.cuda.is_available():
        if shutil.which("nvidia-smi"):
            build = f"torch {torch.__version__}"
            remedy = "install a torch that is built for your CUDA, see https://pytorch.org/get-started/locally"
            yield Finding("gpu", "warning", f"an NVIDIA driver is installed, but {build} finds no GPU", remedy)
        else:
            yield Finding("gpu", "ok", "none: training runs on the CPU (train.mixed_precision: no or bf16)")
        return
    for number in range(torch.cuda.device_count()):
        name = torch.cuda.get_device_name(number)
        free, total = torch.cuda.mem_get_info(number)
        with torch.cuda.device(number):
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16 and fp16" if bf16 else "fp16, no bf16"
        text = f"{name}, {free / GIGABYTE:.1f} of {total / GIGABYTE:.1f} GB free, {precision}"
        yield Finding(f"gpu {number}", "warning" if free < LOW_MEMORY else "ok", text)


# ---- Hub, disk -------------------------------------------------------------------------------------------------------


def hub_findings(check: bool) -> Iterator[Finding]:
    """Environment variables that control access to the Hub; with `check`, whether it can be reached."""
    from huggingface_hub import constants

    settings = {name: os.environ[name] for name in OFFLINE_VARIABLES if os.environ.get(name)}
    if "HF_ENDPOINT" in settings:  # a URL can contain a password
        settings["HF_ENDPOINT"] = urlsplit(settings["HF_ENDPOINT"]).hostname or "not a URL"
    shown = ", ".join(f"{name}={value}" for name, value in settings.items()) or "no offline variables are set"
    if constants.HF_HUB_OFFLINE:
        yield Finding("hub", "ok", f"offline: only the cache is used ({shown})")
        return
    if not check:
        yield Finding("hub", "ok", f"{shown}; the connection was not tried")
        return
    host = urlsplit(constants.ENDPOINT).hostname
    try:
        request = urllib.request.Request(f"{constants.ENDPOINT}/api/models?limit=1", headers={"User-Agent": "kit"})
        with urllib.request.urlopen(request, timeout=10):
            yield Finding("hub", "ok", f"{host} can be reached ({shown})")
    except (OSError, ValueError) as error:
        reason = str(error.reason) if isinstance(error, urllib.error.URLError) else str(error)
        remedy = "check the network and its proxy, or work from the cache with HF_HUB_OFFLINE=1"
        yield Finding("hub", "warning", f"{host} cannot be reached: {reason}", remedy)


def folders() -> dict[str, Path]:
    """The folders that kit writes to."""
    from huggingface_hub import constants

    datasets = os.environ.get("HF_DATASETS_CACHE") or Path(constants.HF_HOME) / "datasets"
    return {
        "current folder": Path.cwd(),
        "cache of models": Path(constants.HF_HUB_CACHE),
        "cache of data": Path(datasets).expanduser(),
        "temporary folder": Path(tempfile.gettempdir()),
    }


def folder_findings(folders: dict[str, Path]) -> Iterator[Finding]:
    """Whether each folder is writable and has free space; one that does not exist is judged by its parents."""
    for topic, folder in folders.items():
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        try:
            with tempfile.TemporaryFile(dir=existing):
                pass
        except OSError as error:
            yield Finding(
                topic, "problem", f"{folder} cannot be written to: {error.strerror or error}",
                "work in another folder, or make this one writable" if topic == "current folder"
                else "make it writable, or move it with HF_HOME (the temporary one with TMPDIR)",
            )  # fmt: skip
            continue
        free = shutil.disk_usage(existing).free
        text = f"{folder} can be written to, {free / GIGABYTE:.1f} GB are free"
        if free < LOW_SPACE:
            status: Literal["warning", "problem"] = "problem" if free < MIN_SPACE else "warning"
            yield Finding(topic, status, text, "free some space: models, data and checkpoints need a few gigabytes")
        else:
            yield Finding(topic, "ok", text)
