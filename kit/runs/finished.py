"""A finished run, as `kit.train` returns it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kit.pretrained.folder import ModelFolder
from kit.runs.folder import RunFolder
from kit.tasks.registry import create_task


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run, its figures, and its model."""

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

    @cached_property
    def _model_folder(self) -> ModelFolder:
        return ModelFolder.open(self.folder)
