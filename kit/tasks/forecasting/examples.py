"""Windows of series as examples: steps to read, followed by steps to predict."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kit.tasks.forecasting.series import Array, Series


@dataclass(frozen=True)
class Windows:
    """Windows of series: steps to read, followed by steps to predict."""

    series: list[Series]
    positions: NDArray[np.int64]  # (windows, 2): index of the series, and first step of the window
    history: int
    horizon: int
    truncated: int = 0
    """Always 0: windows are as long as the model reads."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def lengths(self) -> np.ndarray:
        return np.full(len(self), self.history + self.horizon, dtype=np.int64)

    @property
    def value_size(self) -> int:
        return self.series[0].value_size

    @property
    def context_size(self) -> int:
        return self.series[0].context_size

    def dates(self, index: int) -> list[str] | None:
        """The dates of the steps to predict in a window; None if the series has none."""
        number, start = self.positions[index].tolist()
        return self.series[number].date_texts(start + self.history, start + self.history + self.horizon)

    def arrays(self, indices: np.ndarray) -> tuple[Array, Array]:
        """The values and the context (batch, history + horizon, …) of these windows."""
        length = self.history + self.horizon
        parts = [(self.series[number], start) for number, start in self.positions[indices].tolist()]
        values = np.stack([item.values[start : start + length] for item, start in parts])
        return values, np.stack([item.context[start : start + length] for item, start in parts])

    def batch(self, indices: np.ndarray) -> dict[str, Tensor]:
        """The model inputs: past_… (batch, history, …) and future_… (batch, horizon, …)."""
        values, context = self.arrays(indices)
        present = ~np.isnan(values).any(-1)
        sides = {
            "values": torch.from_numpy(np.nan_to_num(values).astype(np.float32)),
            "mask": torch.from_numpy(present),
            "context": torch.from_numpy(context.astype(np.float32)),
        }
        if self.context_size == 0:
            del sides["context"]
        past = {f"past_{name}": tensor[:, : self.history] for name, tensor in sides.items()}
        return past | {f"future_{name}": tensor[:, self.history :] for name, tensor in sides.items()}


def windows_of(series: list[Series], history: int, horizon: int, stride: int) -> Windows:
    """The windows that start every `stride` steps of each series.

    A window has at least one complete step in its history and one in its horizon; others are left out.
    """
    positions = []
    for number, steps in enumerate(series):
        present = steps.present
        for start in range(0, len(steps) - history - horizon + 1, stride):
            split = start + history
            if present[start:split].any() and present[split : split + horizon].any():
                positions.append((number, start))
    return Windows(series, np.array(positions, dtype=np.int64).reshape(-1, 2), history, horizon)
