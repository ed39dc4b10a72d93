"""The exact folder to upload: what is published of a run or an adapter, scanned for access tokens."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from kit.cards.provenance import base_on_hub, shared_recipe
from kit.errors import HubError, RunError
from kit.hub.download import resolve_commit
from kit.hub.names import RepoRef, parse_foreign_repo_id, parse_repo_id
from kit.recipe.base import Recipe
from kit.recipe.parse import check_overrides
from kit.runs.folder import RunFolder
from kit.sharing.benchmarks import write_benchmark_results
from kit.sharing.published import ALLOWED, collect_files, remove_foreign_code
from kit.system.files import read_json
from kit.system.json_files import write_json
from kit.system.redaction import file_contains_token
from kit.tasks.registry import create_task

_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of PEFT rather than a whole model."""
    return (folder / "adapter_config.json").is_file()


@dataclass(frozen=True)
class ShareSource:
    """The run or adapter to publish."""

    path: Path
    """The folder as given by the user."""
    model: Path
    """The folder with the weights."""
    recipe: Recipe | None
    """The recipe of the run, if it is one."""

    @property
    def is_adapter(self) -> bool:
        return is_adapter(self.model)


def find_source(path: Path, overrides: Sequence[str] = ()) -> ShareSource:
    """The run or adapter in a folder; `overrides` change the metadata of the card (`hub.license=mit`).

    Raises RunError if the folder has neither, or if the run is not finished.
    """
    if (path / "recipe.yaml").is_file():
        run = RunFolder.open(path)
        run.results()  # raises if the run is not finished
        if not (run.model / "config.json").is_file() and not is_adapter(run.model):
            raise RunError(f"{path} has no model yet: finish the run with `kit train {path} --resume`")
        recipe = run.recipe()
        accepted = [f"hub.{key}" for key in type(recipe.hub).model_fields]
        check_overrides(overrides, recipe, accepted, f"the card of {path}")
        return ShareSource(path, run.model, run.recipe(overrides))
    if is_adapter(path):
        if overrides:
            raise HubError(f"{overrides[0]} has no effect on an adapter without a recipe: write it into its README.md")
        return ShareSource(path, path, None)
    problem = "is neither a run nor an adapter" if path.is_dir() else "does not exist"
    raise RunError(
        f"{path} {problem}: `kit push` takes the folder of a finished run; with --data, a folder of data files"
    )


def build_folder(source: ShareSource, target: Path, repo: str) -> list[str]:
    """Write all files to publish into the empty folder `target`; returns notes for the user."""
    notes = collect_files(source.model, target)
    notes += remove_foreign_code(target)
    recipe = source.recipe
    base = record_base_model(source, target) if source.is_adapter else None
    if recipe is not None:
        recipe = recipe if base is None else recipe.with_values("hub", base_model=str(base))
        (target / "recipe.yaml").write_text(shared_recipe(recipe), encoding="utf-8")
        results = RunFolder(source.path).results()
        card = create_task(recipe).write_card(source.path, results, repo_id=repo)
        (target / "README.md").write_text(card, encoding="utf-8")
        plots = source.path / "plots"
        if plots.is_dir():
            notes += collect_files(plots, target / "plots", {"": ALLOWED["plots"]})
        notes += missing_metadata(recipe)
        notes += write_benchmark_results(recipe, results, target, repo)
    if not any(target.rglob("*.safetensors")):
        raise HubError(f"{source.model} has no weights as safetensors, the only format that is published")
    check_card(target / "README.md", source.path)
    check_secrets(target)
    return notes


def record_base_model(source: ShareSource, target: Path) -> RepoRef:
    """Store the base model of an adapter in its config and card, as peft does, and return it.

    Raises HubError if it is a folder of this machine, which nobody else could load.
    """
    try:
        settings = read_json(target / "adapter_config.json", "the configuration of an adapter")
        base, revision = str(settings["base_model_name_or_path"] or ""), settings.get("revision")
    except (RunError, KeyError) as error:
        raise HubError(f"adapter_config.json does not name its base model: {error}") from None
    named = source.recipe.hub.base_model if source.recipe is not None else None
    ref = parse_foreign_repo_id(named) if named is not None else parse_repo_id(base)
    if ref is None:
        where = "base_model_name_or_path in adapter_config.json: " if source.recipe is None else "hub.base_model="
        raise HubError(
            f"the base model of the adapter is the folder {base!r}, which exists on this machine only. Push the base "
            f"model and name its id ({where}OWNER/NAME), or make a plain model of both: `kit merge {source.path} "
            "--output FOLDER`"
        )
    if ref.revision is None and isinstance(revision, str) and named is None:
        ref = replace(ref, revision=revision)
    if not ref.is_pinned:  # a later commit of the base model would change what the adapter computes
        ref = replace(ref, revision=resolve_commit(ref, f"the base model of the adapter is {ref}"))
    settings |= {"base_model_name_or_path": ref.repo, "revision": ref.revision}
    write_json(target / "adapter_config.json", settings)
    card = target / "README.md"
    if not card.exists():
        lines = ["library_name: peft", "tags: [seq2seq-kit]", f"base_model: {json.dumps(ref.repo)}"]
        text = "\n".join(["---", *lines, "---", "", "# Adapter", "", "Load it with `peft` on top of its base model."])
        card.write_text(text + "\n", encoding="utf-8")
    return ref


def missing_metadata(recipe: Recipe) -> list[str]:
    """Notes on metadata that the Hub displays and the recipe does not have."""
    values: dict[str, tuple[Any, str]] = {
        "license": (recipe.hub.license, "apache-2.0"),
        # numbers have no language
        "language": (recipe.hub.language or "tokenizer" not in type(recipe).model_fields, "[de,en]"),
        "base_model": (recipe.model.pretrained is None or base_on_hub(recipe), "OWNER/NAME"),
    }
    return [
        f"the card has no {name.replace('_', ' ')}: add hub.{name}={example}"
        for name, (value, example) in values.items()
        if not value
    ]


def check_card(card: Path, source: Path) -> None:
    """Raise HubError if huggingface_hub cannot read the metadata of a card, or if the Hub would reject it."""
    if not card.is_file():
        raise HubError(f"{source} has no README.md, the model card")
    try:
        data = ModelCard(card.read_text(encoding="utf-8")).data
    except Exception as error:  # any exception of the YAML parser or of huggingface_hub
        raise HubError(f"the metadata of {card.name} cannot be read: {' '.join(str(error).split())}") from None
    languages = data.to_dict().get("language") or []
    for language in languages if isinstance(languages, list) else [languages]:
        if not _LANGUAGE.fullmatch(str(language)):
            raise HubError(
                f'hub.language: "{language}" is not a language code such as de, deu or multilingual '
                '(quote "no", which YAML reads as false)'
            )


def check_secrets(folder: Path) -> None:
    """Raise HubError if a file contains an access token: in its text, or among its bytes."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and file_contains_token(path):
            raise HubError(
                f"{path.relative_to(folder).as_posix()} contains an access token: remove it, and revoke the token"
            )


def list_files(folder: Path) -> list[tuple[str, int]]:
    """The files of a folder with their sizes, sorted by name."""
    files: Iterable[Path] = (path for path in folder.rglob("*") if path.is_file())
    return sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in files)
