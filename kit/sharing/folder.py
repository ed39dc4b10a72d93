"""The exact folder that goes to the Hub: gathered from a run or an adapter, with nothing in it that must not leave."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import ModelCard

from kit.cards.provenance import shared_recipe
from kit.errors import HubError, RunError
from kit.hub.names import parse_repo_id
from kit.recipe.base import Recipe
from kit.recipe.parse import check_sections
from kit.runs.folder import RunFolder
from kit.system.redaction import contains_token
from kit.tasks.registry import create_task, load_recipe

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".npy", ".h5", ".msgpack", ".joblib")
"""Files that can run code when they are loaded, or hold the weights once more."""
_TEXT = (".json", ".md", ".py", ".yaml", ".yml", ".txt", ".jinja", ".csv", ".tsv", ".jsonl")
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT rather than a whole model."""
    return (folder / "adapter_config.json").is_file()


@dataclass(frozen=True)
class ShareSource:
    """What is to be shared, found in the folder that a user named."""

    path: Path
    """As the user named it."""
    model: Path
    """The folder with the weights."""
    recipe: Recipe | None
    """The recipe of the run, if it is one."""

    @property
    def is_adapter(self) -> bool:
        return is_adapter(self.model)


def find_source(path: Path, overrides: Sequence[str] = ()) -> ShareSource:
    """The run or adapter in a folder; `overrides` change what the recipe says about the card (`hub.license=mit`)."""
    check_sections(overrides, "hub", example="hub.license=apache-2.0")
    if (path / "recipe.yaml").is_file():
        run = RunFolder.existing(path)
        run.results()  # says so if the run is not finished
        if not (run.model / "config.json").is_file() and not is_adapter(run.model):
            raise RunError(f"{path} has no model yet: finish it with `kit train {path} --resume`")
        return ShareSource(path, run.model, load_recipe(run.recipe_file, overrides, saved=True))
    if is_adapter(path):
        if overrides:
            raise HubError(f"{overrides[0]} has no effect on an adapter without a recipe: write it into its README.md")
        return ShareSource(path, path, None)
    what = "is neither a run nor an adapter" if path.is_dir() else "does not exist"
    raise RunError(f"{path} {what}: `kit push` takes the folder of a finished run; with --data, a folder of data files")


def build_folder(source: ShareSource, target: Path, repo: str) -> list[str]:
    """Write all files that are shared into the empty folder `target`; returns what the user should know about them."""
    notes = gather(source.model, target)
    if source.is_adapter:
        notes += base_of_adapter(target)
    if source.recipe is not None:
        (target / "recipe.yaml").write_text(shared_recipe(source.recipe), encoding="utf-8")
        results = RunFolder(source.path).results()
        card = create_task(source.recipe).write_card(source.path, results, place=repo)
        (target / "README.md").write_text(card, encoding="utf-8")
        plots = source.path / "plots"
        if plots.is_dir():
            gather(plots, target / "plots")
        notes += missing_metadata(source.recipe)
    if not any(target.rglob("*.safetensors")):
        raise HubError(f"{source.model} holds no weights as safetensors, the only kind that is shared")
    check_card(target / "README.md", source.path)
    check_secrets(target)
    return notes


def gather(folder: Path, target: Path) -> list[str]:
    """Take over the files of a folder, but nothing hidden and no pickles. Returns what was left out.

    Weights are linked rather than copied where the file system can do that. Links that lead out of the folder are
    refused: what they lead to was never meant to be shared.
    """
    left = []
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_dir() or any(part.startswith(".") for part in inside.parts):
            continue
        if not path.resolve().is_relative_to(folder.resolve()):
            raise HubError(f"{path} is a link that leads out of {folder}: replace it by the file, or remove it")
        if path.suffix in PICKLES:
            left.append(f"left out: {inside.as_posix()} (only safetensors are shared)")
            continue
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        (target / inside).unlink(missing_ok=True)
        try:
            if path.suffix != ".safetensors":
                raise OSError  # text is written anew below, and a link would change the run
            os.link(path.resolve(), target / inside)
        except OSError:
            shutil.copyfile(path, target / inside)
    return left


def base_of_adapter(folder: Path) -> list[str]:
    """Have the card of an adapter name its base model; returns a note if that is a folder of this machine."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        base = str(settings["base_model_name_or_path"] or "")
    except (ValueError, KeyError, TypeError) as error:
        raise HubError(f"adapter_config.json does not name its base model: {error}") from None
    name = parse_repo_id(base)
    if name is not None and name.revision is not None:  # as peft writes it
        settings |= {"base_model_name_or_path": name.repo, "revision": name.revision}
        (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    card, notes = folder / "README.md", []
    is_local = Path(base).exists() or Path(base).is_absolute()
    if is_local or not base:
        notes = [f"the base model of the adapter is the folder {base}: others need its id on the Hub to load it"]
    if not card.exists():
        lines = ["library_name: peft", "tags: [seq2seq-kit]"]
        lines += [] if is_local or not base else [f"base_model: {json.dumps(base.partition('@')[0])}"]
        text = "\n".join(["---", *lines, "---", "", "# Adapter", "", "Load it with `peft` on top of its base model."])
        card.write_text(text + "\n", encoding="utf-8")
    return notes


def missing_metadata(recipe: Recipe) -> list[str]:
    """What the Hub would like to know, and the recipe does not say."""
    given = {"license": recipe.hub.license, "language": recipe.hub.language}
    return [
        f"the card names no {name}: add hub.{name}={example}"
        for name, example in (("license", "apache-2.0"), ("language", "[de,en]"))
        if not given[name]
    ]


def check_card(card: Path, source: Path) -> None:
    """Have the Hub's library read the metadata of a card; HubError if it cannot, or if the Hub would refuse it."""
    if not card.is_file():
        raise HubError(f"{source} has no README.md, the model card")
    try:
        data = ModelCard(card.read_text(encoding="utf-8")).data
    except Exception as error:  # whatever YAML and the library have to say
        raise HubError(f"the metadata of {card.name} cannot be read: {' '.join(str(error).split())}") from None
    given = data.to_dict().get("language") or []
    for language in given if isinstance(given, list) else [given]:
        if not _LANGUAGE.fullmatch(str(language)):
            raise HubError(
                f'hub.language: "{language}" is no code of a language, such as de, deu or multilingual (quote "no")'
            )


def check_secrets(folder: Path) -> None:
    """Raise HubError if a text file holds an access token."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in _TEXT and contains_token(path.read_text(encoding="utf-8", errors="replace")):
            raise HubError(f"{path.relative_to(folder)} holds an access token: remove it, and revoke the token")


def listing(folder: Path) -> list[tuple[str, int]]:
    """The files of a folder and their sizes, in the order of their names."""
    files: Iterable[Path] = (path for path in folder.rglob("*") if path.is_file())
    return sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in files)
