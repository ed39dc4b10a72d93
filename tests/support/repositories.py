"""Uploads to the local Hub, and the files of its repositories."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from safetensors.numpy import save_file

from kit.hub.upload import Destination, upload
from kit.pretrained.loading import load_model
from kit.pretrained.pipelines import pipeline
from kit.sharing.proof import ProbeOutput, ProbeRequest, run_in_process
from support.hub_server import HubServer

NAME = "tester/dates"


def write_folder(folder: Path) -> Path:
    """Write two large files and two small ones into a new folder."""
    folder.mkdir()
    for number, name in enumerate(("model.safetensors", "extra.safetensors")):
        save_file({"weights": np.full(5000, number, np.float32)}, folder / name)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# A card\n", encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    return folder


def push_folder(folder: Path, to: Destination | None = None) -> Any:
    return upload(folder, to or Destination(NAME), "a message", lambda line: None)


def prove_here(probes: Sequence[ProbeRequest]) -> list[ProbeOutput]:
    """What the process without kit computes, by kit in this process, which takes a tenth of the time."""
    (probe,) = probes
    pipe = pipeline(probe.pipeline, probe.model, device="cpu") if probe.calls else None
    return [run_in_process(probe, load_model(getattr(transformers, probe.loader), probe.model), pipe)]


def repo_files(hub: HubServer, name: str = NAME, kind: str = "model") -> dict[str, bytes]:
    files = hub.repos[kind, name].head.files
    return {path: blob.content for path, blob in files.items() if path != ".gitattributes"}


def publish(hub: HubServer, name: str, folder: Path) -> str:
    """Put the model in a folder on the Hub, without its card's plots; returns the commit."""
    return hub.put(name, {path: content for path, content in folder_files(folder).items() if "/" not in path})


def folder_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
