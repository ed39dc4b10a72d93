"""A generated look-alike of electricity data: hourly values with a daily shape, a weekly one and a drifting level."""

import csv
from pathlib import Path

import numpy as np

DAYS = 120
PEAKS = {8: 2.0, 18: 3.0}
"""Height of the morning and the evening peak over a base of 1."""
WIDTH = 1.2
WEEKEND = 0.65
"""Of the values of a working day."""
START = np.datetime64("2024-01-01T00", "h")  # a Monday


def write_seasonal_csv(path: Path) -> Path:
    """A csv file with the columns date and load."""
    chance = np.random.default_rng(0)
    hours = np.arange(24)
    shape = 1 + sum(height * np.exp(-0.5 * ((hours - peak) / WIDTH) ** 2) for peak, height in PEAKS.items())
    level = np.exp(np.cumsum(chance.normal(0, 0.03, DAYS)))
    load = np.concatenate([level[day] * shape * (WEEKEND if day % 7 >= 5 else 1) for day in range(DAYS)])
    load *= 1 + 0.05 * chance.normal(size=len(load))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["date", "load"])
        writer.writerows((str(START + hour), f"{value:.4f}") for hour, value in enumerate(load))
    return path
