"""A finished run, as `kit.train` returns it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.runs.plots import run_figures
from kit.system.console import Reporter
from kit.tasks.registry import create_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run, with its figures, its model and its plots."""

    folder: Path
    results: dict[str, Any]
    """All figures of the run, as results.json has them: `run.results["test"]["accuracy"]`."""
    already_finished: bool = False
    """Whether the run was already finished, so that nothing was trained."""
    rows: Mapping[str, Dataset] | None = field(default=None, repr=False)
    """The rows of each split if the data came from Python; the run folder does not contain them."""

    @cached_property
    def model(self) -> PreTrainedModel:
        """The trained model, on the CPU; loaded from the run folder when it is first used."""
        model = create_task(RunFolder(self.folder).recipe()).load_model(self._model_folder)
        return model.eval()

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer of the model. Raises RunError for a model that reads no text."""
        return self._model_folder.tokenizer

    def plots(self) -> dict[str, "Figure"]:
        """The plots of the run by name, drawn again as matplotlib figures: training curves, attention, errors, and
        whatever else the task shows. A plot that needs data which is absent is reported and left out."""
        return run_figures(RunFolder(self.folder), self.rows, Reporter().print)

    @cached_property
    def _model_folder(self) -> ModelFolder:
        return ModelFolder.open(self.folder)
