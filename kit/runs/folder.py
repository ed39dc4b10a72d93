"""The folder of a run: its files, the recipe it belongs to, and the lock of the process that trains in it."""

import socket
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kit.data.text.tokenizer import NoTokenizers, Tokenizers
from kit.errors import RecipeError, RunError
from kit.hub.download import is_downloaded
from kit.recipe.base import RESUMABLE_KEYS, Recipe
from kit.runs.revisions import check_origin
from kit.system.files import TEMPORARY_PREFIX, irregular_entry, outside_link, read_json, replace_folder
from kit.system.format import FORMAT_STAMP, RUN_FILE, check_format, read_run_format
from kit.system.json_files import write_json
from kit.system.outputs import remove_leftovers, write_text
from kit.system.version import __version__
from kit.tasks.registry import load_recipe
from kit.training.processes import gather, on_main

RECIPE_VALUES = "recipe"
"""Key of run.json for the recipe's values at the start of the run, without those of keys that may change later."""

LOCK_SECONDS = 1.0
"""How long a run waits for the lock of its folder: `kit runs` holds it for a moment to find out who trains."""


class RunFolder:
    """The paths of a run. Creating one reads and writes nothing."""

    def __init__(self, path: Path):
        self.path = path
        self.format_file = path / RUN_FILE
        self.recipe_file = path / "recipe.yaml"
        self.results_file = path / "results.json"
        self.failure_file = path / "failure.json"
        self.metrics_file = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.tokenizer = path / "tokenizer"
        self.model = path / "model"
        self.predictions = path / "predictions"
        self.losses = path / "losses"
        self.plots = path / "plots"
        self.card = path / "README.md"

    @classmethod
    def open(cls, path: Path, overrides: Sequence[str] = ()) -> "RunFolder":
        """The folder of an existing run; `overrides` will change its recipe.

        Raises RunError if there is none, or if another version of kit wrote it, and HubError if it comes from the Hub
        and names a path on this machine.
        """
        folder = cls(path)
        if not folder.model.is_dir() and any(
            (path / name).is_file() for name in ("config.json", "adapter_config.json")
        ):
            folder.model = path  # the layout on the Hub
        if not folder.recipe_file.is_file():
            problem = "is not a run folder: it has no recipe.yaml" if path.exists() else "does not exist"
            raise RunError(f"{path} {problem}. `kit train RECIPE` creates one, by default under runs/")
        folder.check_links()
        folder.check_format()
        check_origin(folder.recipe_file, overrides)
        return folder

    def check_format(self) -> None:
        """Raise RunError unless the run has the format number that this version of kit reads."""
        stored = read_run_format(self.path)
        if "kit_format" not in stored:
            raise RunError(
                f"{self.path} has a recipe but no format number, so kit {__version__} did not write it. Nothing was "
                f"touched. To repeat the run: kit train {self.recipe_file} --output FOLDER"
            )
        check_format(self.path, stored)

    def check_links(self) -> None:
        """Raise RunError if a link in the folder points outside it, or if an entry is not a file, such as a named pipe.

        A run from someone else could otherwise make kit read, publish or overwrite any file of this machine.
        """
        if not is_downloaded(self.path) and (link := outside_link(self.path)) is not None:
            raise RunError(f"{link} is a link to a path outside {self.path}: replace it with its content, or remove it")
        if problem := irregular_entry(self.path):
            raise RunError(f"{problem}: replace it with a file, or remove it")

    @property
    def is_finished(self) -> bool:
        """Whether the run has results."""
        return self.results_file.is_file()

    def recipe(self, overrides: Sequence[str] = ()) -> Recipe:
        """The resolved recipe that the run was started with, changed by `overrides`.

        Raises RunError if this version of kit cannot read it, or if it has been edited since.
        """
        self.check_format()
        try:
            recipe = load_recipe(self.recipe_file, saved=True)
        except RecipeError as error:
            raise RunError(
                f"{error}\n{self.path} was written by another version of kit, or edited by hand: version {__version__} "
                "cannot read its recipe. Nothing was touched"
            ) from None
        self._check_unedited(recipe)
        return load_recipe(self.recipe_file, overrides, saved=True) if overrides else recipe

    def _check_unedited(self, recipe: Recipe) -> None:
        """Raise RunError unless the recipe is the one that the run was started with, whose results the folder holds.

        Without a record of its values in run.json, as for a run on the Hub, nothing is compared.
        """
        started_with = read_run_format(self.path).get(RECIPE_VALUES)
        if not isinstance(started_with, dict):
            return
        if changes := recipe.changes_since(started_with):
            raise RunError(
                f"{self.recipe_file} was edited after the run had been started: {changes}. Nothing was touched. Undo "
                f"the change, or train the edited recipe into a new folder: kit train {self.recipe_file} --output "
                "FOLDER"
            )

    def results(self) -> dict[str, Any]:
        """The figures of a finished run. Raises RunError if the run is not finished."""
        if not self.is_finished:
            raise RunError(f"{self.path} is not finished: it has no results.json. Continue it with --resume")
        try:
            return read_json(self.results_file, "the results of a run")
        except RunError as error:
            raise RunError(
                f"{error}. Remove it, and `kit train {self.path} --resume` evaluates the model again and writes it"
            ) from None

    def check_available(self, recipe: Recipe, resume: bool) -> None:
        """Raise RunError unless this folder is empty or belongs to a run of this recipe; nothing is written."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file: name another folder with --output")
        self.check_links()
        if not self.recipe_file.exists():
            # a run that was killed before it wrote its recipe may have left these
            entries = [path.name for path in self.path.iterdir()] if self.path.exists() else []
            leftovers = (".lock", self.format_file.name)
            foreign = [name for name in entries if name not in leftovers and not name.startswith(TEMPORARY_PREFIX)]
            if foreign:
                raise RunError(
                    f"{self.path} is not empty and holds no run ({', '.join(sorted(foreign)[:3])}): nothing was "
                    "touched. Name an empty or a new folder with --output"
                )
            return
        saved = self.recipe()
        if changes := recipe.changes_since(saved.fixed_values()):
            raise RunError(
                f"{self.path} belongs to another recipe: {changes}. Nothing was touched. Name another folder with "
                f"--output, or undo the change; keys that may change within a run: {', '.join(RESUMABLE_KEYS)}"
                + self._why_length_is_fixed(recipe, saved)
            )
        if not resume and self.is_finished and not recipe.has_length_of(saved):
            raise RunError(
                f"{self.path} holds a finished run of another length. Extend it with --resume, or name another folder "
                "with --output"
            )
        if not resume and not self.is_finished:
            raise RunError(
                f"{self.path} holds an unfinished run of this recipe. Continue it with --resume, or name another "
                "folder with --output"
            )

    def _why_length_is_fixed(self, recipe: Recipe, saved: Recipe) -> str:
        """A sentence on why the length of the run cannot change, if the recipe changes it; otherwise empty."""
        if recipe.has_length_of(saved) or not saved.train.rate_depends_on_length:
            return ""
        return (
            f". With train.lr_scheduler_type: {saved.train.lr_scheduler_type}, the learning rate of every step depends "
            "on the length of the run; constant, constant_with_warmup and inverse_sqrt allow extending it. To train "
            f"this model further, start a new run from it: model.pretrained={self.path}"
        )

    def tokenizers(self) -> Tokenizers | None:
        """The tokenizers of the run; None before `start`."""
        return Tokenizers.load(self.tokenizer) if self.tokenizer.exists() else None

    def start(self, recipe: Recipe, tokenizers: Tokenizers) -> None:
        """Write the resolved recipe and the tokenizers, and remove the results of an earlier, shorter run.

        From here on, the folder belongs to this recipe. The section `measured` is left out: its figures are those of
        another run.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        values = {**FORMAT_STAMP, RECIPE_VALUES: recipe.fixed_values()}
        write_json(self.format_file, values)
        self.results_file.unlink(missing_ok=True)  # of a shorter run that is extended
        self.failure_file.unlink(missing_ok=True)
        write_text(self.recipe_file, recipe.model_copy(update={"measured": None}).to_yaml())
        if not self.tokenizer.exists() and not isinstance(tokenizers, NoTokenizers):
            temporary = self.path / f"{TEMPORARY_PREFIX}tokenizer"
            tokenizers.save(temporary)
            replace_folder(temporary, self.tokenizer)

    @contextmanager
    def locked(self, is_main_process: bool = True) -> Iterator[None]:
        """Lock this folder against other runs, and remove what killed ones left in it.

        The operating system releases the lock if this process dies.
        """
        if not is_main_process:
            yield
            return
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=LOCK_SECONDS)
        except Timeout:
            raise RunError(
                f"another process is training in {self.path}. Wait for it, or name another --output"
            ) from None
        try:
            remove_leftovers(self.path)
            yield
        finally:
            lock.release()
            if [entry.name for entry in self.path.iterdir()] == [".lock"]:  # the run failed before it wrote anything
                (self.path / ".lock").unlink()
                self.path.rmdir()

    def check_shared(self) -> None:
        """Raise RunError unless all processes, which may be on several machines, see the same run folder.

        The main process writes a file with a random name, so that no network file system can remember its absence.
        """
        token = self.path / on_main(lambda: f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        on_main(lambda: write_text(token, socket.gethostname()))
        seen = [(token.is_file(), socket.gethostname())]
        blind = [f"process {rank} ({host})" for rank, (sees, host) in enumerate(gather(seen)) if not sees]
        on_main(lambda: token.unlink())
        if blind:
            raise RunError(
                f"the run folder of process 0, {self.path.absolute()}, is not visible to {', '.join(blind)}. Put it "
                "on a disk that all machines share, and name it with --output on each of them"
            )

    def write_results(self, results: dict[str, Any]) -> None:
        """Write results.json, which marks the run as finished."""
        write_json(self.results_file, results)
