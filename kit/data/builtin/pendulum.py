"""Noisy measurements of damped, driven pendulums: `builtin:pendulum`.

    column    content
    values    angle (rad, 0 is hanging down) and velocity (rad/s) at each step, 0.1 s apart
    context   the drive (rad/s²) during the 0.1 s before each step
    length    of the pendulum, in meters
    damping   rate at which velocity is lost (1/s)

    angle″ = −g / length · sin(angle) − damping · angle′ + drive

Each row is a different pendulum with its own start, so the test has pendulums that training has not seen, and a model
must infer length and damping from the past. None of them goes over the top. The drive is piecewise constant, and every
measurement has noise.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

GRAVITY = 9.81  # m/s²
STEP = 0.1  # seconds between measurements
SUBSTEPS = 5  # of the integration, within each step
STEPS = 80  # measurements of a pendulum
NOISE = 0.01  # standard deviation of every measurement
# Ranges of uniform draws. Angles are large enough for the sine to matter: a linear model cannot fit them.
LENGTHS = (0.5, 1.5)  # m
DAMPINGS = (0.1, 0.6)  # 1/s
ANGLES = (-1.5, 1.5)  # rad, at the start
VELOCITIES = (-2.0, 2.0)  # rad/s, at the start
DRIVES = (-2.5, 2.5)  # rad/s²
HOLD = (4, 16)  # steps for which a drive is constant
DEFAULT_SIZES = {"train": 2_000, "validation": 200, "test": 400}

Array = NDArray[np.float64]


def generate(sizes: dict[str, int] | None = None, seed: int = 0, steps: int = STEPS) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns values, context, length and damping.

    `values` has `steps` rows of 2 numbers, `context` as many of 1. Equal arguments give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    return {
        split: sample(sizes[split], steps, np.random.default_rng([seed, number]))
        for number, split in enumerate(DEFAULT_SIZES)
    }


def sample(size: int, steps: int, rng: np.random.Generator) -> pa.Table:
    """Measurements of `size` pendulums; those that go over the top are drawn again."""
    parts: list[dict[str, Array]] = []
    while (missing := size - sum(len(part["length"]) for part in parts)) > 0:
        length, damping = rng.uniform(*LENGTHS, missing), rng.uniform(*DAMPINGS, missing)
        start = np.stack([rng.uniform(*ANGLES, missing), rng.uniform(*VELOCITIES, missing)], axis=-1)
        drive = drives(missing, steps, rng)
        values = swing(start, drive, length, damping)
        stays_below = np.abs(values[..., 0]).max(1) < np.pi
        part = {"values": values, "context": drive[..., None], "length": length, "damping": damping}
        parts.append({name: x[stays_below] for name, x in part.items()})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in SCHEMA.names}
    for name in ("values", "context"):
        columns[name] = columns[name] + rng.normal(scale=NOISE, size=columns[name].shape)
    return pa.table({name: x.tolist() for name, x in columns.items()}, SCHEMA)


def drives(size: int, steps: int, rng: np.random.Generator) -> Array:
    """Piecewise constant drives (pendulums, steps)."""
    rows = []
    for _ in range(size):
        parts: list[float] = []
        while len(parts) < steps:
            parts += [rng.uniform(*DRIVES)] * rng.integers(*HOLD, endpoint=True)
        rows.append(parts[:steps])
    return np.array(rows)


def swing(start: Array, drive: Array, length: Array, damping: Array) -> Array:
    """Angle and velocity (pendulums, steps, 2) after each step.

    Integrated with Runge-Kutta from the start (pendulums, 2), under the drive of each step (pendulums, steps).
    """

    def derivative(state: Array, push: Array) -> Array:
        angle, velocity = state.T
        return np.stack([velocity, push - GRAVITY / length * np.sin(angle) - damping * velocity], axis=-1)

    states, state = [], start
    for push in drive.T:
        for _ in range(SUBSTEPS):
            state = runge_kutta(lambda s: derivative(s, push), state, STEP / SUBSTEPS)  # noqa: B023 (called at once)
        states.append(state)
    return np.stack(states, axis=1)


def runge_kutta(derivative: Callable[[Array], Array], state: Array, step: float) -> Array:
    """The state after a step of the classic fourth-order method."""
    first = derivative(state)
    second = derivative(state + step / 2 * first)
    third = derivative(state + step / 2 * second)
    fourth = derivative(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)


SCHEMA = pa.schema(
    {
        "values": pa.list_(pa.list_(pa.float32())),
        "context": pa.list_(pa.list_(pa.float32())),
        "length": pa.float32(),
        "damping": pa.float32(),
    }
)
