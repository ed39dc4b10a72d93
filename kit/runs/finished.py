"""A finished run, as `kit.train` returns it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.tasks.registry import create_task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
"""Pixels per inch of the figures: one for each pixel of the saved image."""


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run, with its figures, its model and its plots."""

    folder: Path
    results: dict[str, Any]
    """All figures of the run, as results.json has them: `run.results["test"]["accuracy"]`."""
    already_finished: bool = False
    """Whether the run was finished already, so that nothing was trained."""

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
        """The plots of the run folder by name, as matplotlib figures that show the saved images: training curves,
        attention, errors, and whatever else the task draws."""
        from matplotlib.figure import Figure
        from matplotlib.image import imread

        figures = {}
        for path in sorted(RunFolder(self.folder).plots.glob("*.png")):
            image = imread(path)
            height, width = image.shape[:2]
            figures[path.stem] = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
            figures[path.stem].figimage(image)
        return figures

    @cached_property
    def _model_folder(self) -> ModelFolder:
        return ModelFolder.open(self.folder)
