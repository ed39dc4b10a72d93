"""The head of a pretrained model for other labels: each label keeps the weights that were trained for it.

A head has one row of weights for each label. transformers keeps rows by their number if the number of labels is equal,
whatever the labels are, and reinitializes all of them if it differs. Here, rows follow the names of their labels.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from kit.pretrained.architecture import is_saved_as

UNNAMED = re.compile(r"LABEL_\d+")
"""What transformers calls a label that has no name."""
MAX_LISTED = 8
"""Labels that a report lists."""


@dataclass(frozen=True)
class LabelRows:
    """Which row of a pretrained head each row of a new head takes over."""

    sources: Sequence[int | None]
    """For each label of the new head, its row in the pretrained one; None for a new row."""
    labels: Sequence[str]
    """The labels of the new head; none for a head without labels, such as that of a regression."""
    dropped: Sequence[str] = ()
    """Labels of the pretrained head that the new one does not have."""
    reason: str = ""
    """Why no row is kept."""

    @property
    def is_unchanged(self) -> bool:
        """Whether the head is the pretrained one."""
        return list(self.sources) == list(range(len(self.sources))) and not self.dropped

    @property
    def kept(self) -> dict[int, int]:
        """The rows of the new head that are not new, each with its row in the pretrained head."""
        return {row: source for row, source in enumerate(self.sources) if source is not None}

    def describe(self) -> str:
        """A line for the log: the labels whose rows are kept, moved, new, and dropped."""
        if not self.kept:
            return f"head: new, {self.reason}"
        if not self.labels:
            return "head: kept from model.pretrained"
        parts = {
            "kept": [self.labels[row] for row, source in self.kept.items() if row == source],
            "kept, in another position": [self.labels[row] for row, source in self.kept.items() if row != source],
            "new": [label for label, source in zip(self.labels, self.sources, strict=True) if source is None],
            "dropped": self.dropped,
        }
        return f"head: {'; '.join(f'{name}: {listed(labels)}' for name, labels in parts.items() if labels)}"


def match_labels(stored: PreTrainedConfig, auto_class: Any, config: PreTrainedConfig) -> LabelRows:
    """Which rows of a pretrained head, saved with the configuration `stored`, a head for `config` takes over."""
    size = config.num_labels
    is_regression = getattr(config, "problem_type", None) == "regression"
    labels = [] if is_regression else [config.id2label[row] for row in range(size)]
    before = [str(stored.id2label.get(row, f"LABEL_{row}")) for row in range(stored.num_labels)]

    def new(reason: str) -> LabelRows:
        return LabelRows([None] * size, labels, reason=reason)

    if not is_saved_as(stored, auto_class):
        return new("because model.pretrained has no head of this kind")
    was_regression = stored.num_labels == 1 and getattr(stored, "problem_type", None) in (None, "regression")
    if is_regression or was_regression:
        if is_regression and was_regression:
            return LabelRows([0], labels)
        return new(f"because model.pretrained predicts {'a number' if was_regression else 'labels'}")
    if all(UNNAMED.fullmatch(name) for name in before):
        return new(f"because model.pretrained has no names for its labels ({listed(before)})")
    rows = {name: row for row, name in enumerate(before) if not UNNAMED.fullmatch(name)}
    sources = [rows.get(label) for label in labels]
    if not any(source is not None for source in sources):
        return new(f"because model.pretrained has other labels ({listed(before)})")
    return LabelRows(sources, labels, [name for name in before if name not in labels])


def listed(labels: Sequence[str]) -> str:
    """The first labels as text, with the total number if there are more than `MAX_LISTED`."""
    more = f", … ({len(labels)} in total)" if len(labels) > MAX_LISTED else ""
    return ", ".join(labels[:MAX_LISTED]) + more


def row_parameters(model: PreTrainedModel) -> list[str]:
    """The names of the parameters that have a row for each label: those that depend on the number of labels."""
    shapes = []
    for size in (model.config.num_labels, model.config.num_labels + 1):
        config = copy.deepcopy(model.config)
        config.num_labels = size
        with torch.device("meta"):
            shapes.append({name: tuple(p.shape) for name, p in type(model)(config).named_parameters()})
    return [name for name, shape in shapes[0].items() if shapes[1][name][:1] != shape[:1]]


def copy_rows(model: PreTrainedModel, names: Sequence[str]) -> dict[str, Tensor]:
    """Copies of these parameters of a model."""
    return {name: model.get_parameter(name).detach().clone() for name in names}


def move_rows(model: PreTrainedModel, pretrained: Mapping[str, Tensor], rows: LabelRows) -> None:
    """Give each row of a head the weights that were trained for its label, and reinitialize the others.

    `pretrained` has the parameters of the pretrained head by name.
    """
    for name in pretrained:
        module, _, parameter = name.rpartition(".")
        owner = model.get_submodule(module)
        # transformers initializes a parameter only if it is not marked as loaded
        setattr(owner, parameter, nn.Parameter(torch.empty_like(model.get_parameter(name))))
    for module in dict.fromkeys(name.rpartition(".")[0] for name in pretrained):
        model._init_weights(model.get_submodule(module))
    targets, sources = list(rows.kept), list(rows.kept.values())
    with torch.no_grad():
        for name, tensor in pretrained.items():
            if targets:
                model.get_parameter(name)[targets] = tensor[sources]
