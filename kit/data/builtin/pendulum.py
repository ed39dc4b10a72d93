"""Pendulums that swing, slow down and are driven, as instruments would measure them: `builtin:pendulum`.

    column    what it holds
    values    angle (rad, 0 is hanging down) and velocity (rad/s) at each step, a tenth of a second apart
    context   the drive (rad/s²) during the tenth of a second that led to each step
    length    of the pendulum, in metres
    damping   how much of the velocity is lost, per second

    angle″ = −g / length · sin(angle) − damping · angle′ + drive

Each row is another pendulum, begun at another angle and velocity, so that the test asks about pendulums that training
has not seen: how long and how damped one is must be told from its past. None of them goes over the top. The drive is
constant for some steps, and then another one. All measurements have some noise.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

GRAVITY = 9.81
STEP = 0.1  # seconds between measurements
SUBSTEPS = 5  # of the integration, within each step
STEPS = 80
NOISE = 0.01  # standard deviation of every measurement
LENGTHS = (0.5, 1.5)
DAMPINGS = (0.1, 0.6)
ANGLES = (-1.5, 1.5)
VELOCITIES = (-2.0, 2.0)
DRIVES = (-2.5, 2.5)
HOLD = (4, 16)  # steps for which a drive stays
DEFAULT_SIZES = {"train": 2_000, "validation": 200, "test": 400}

Array = NDArray[np.float64]


def generate(sizes: dict[str, int] | None = None, seed: int = 0, steps: int = STEPS) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns values, context, length and damping.

    `values` has `steps` rows of 2 numbers, `context` as many of 1. No pendulum is in two rows, and equal arguments give
    equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    return {
        split: sample(sizes[split], steps, np.random.default_rng([seed, number]))
        for number, split in enumerate(DEFAULT_SIZES)
    }


def sample(size: int, steps: int, chance: np.random.Generator) -> pa.Table:
    """Measurements of `size` pendulums."""
    parts: list[dict[str, Array]] = []
    while (missing := size - sum(len(part["length"]) for part in parts)) > 0:
        length, damping = chance.uniform(*LENGTHS, missing), chance.uniform(*DAMPINGS, missing)
        start = np.stack([chance.uniform(*ANGLES, missing), chance.uniform(*VELOCITIES, missing)], axis=-1)
        drive = drives(missing, steps, chance)
        values = swing(start, drive, length, damping)
        below = np.abs(values[..., 0]).max(1) < np.pi
        part = {"values": values, "context": drive[..., None], "length": length, "damping": damping}
        parts.append({name: x[below] for name, x in part.items()})
    columns = {name: np.concatenate([part[name] for part in parts]) for name in SCHEMA.names}
    for name in ("values", "context"):
        columns[name] = columns[name] + chance.normal(scale=NOISE, size=columns[name].shape)
    return pa.table({name: x.tolist() for name, x in columns.items()}, SCHEMA)


def drives(size: int, steps: int, chance: np.random.Generator) -> Array:
    """A drive (size, steps) for each pendulum, held for some steps at a time."""
    rows = []
    for _ in range(size):
        parts: list[float] = []
        while len(parts) < steps:
            parts += [chance.uniform(*DRIVES)] * chance.integers(*HOLD, endpoint=True)
        rows.append(parts[:steps])
    return np.array(rows)


def swing(start: Array, drive: Array, length: Array, damping: Array) -> Array:
    """Angle and velocity (pendulums, steps, 2) after each step, from their start (pendulums, 2), with the drive of each
    step (pendulums, steps), by the method of Runge and Kutta."""

    def change(now: Array, push: Array) -> Array:
        angle, velocity = now.T
        return np.stack([velocity, push - GRAVITY / length * np.sin(angle) - damping * velocity], axis=-1)

    states, state = [], start
    for push in drive.T:
        for _ in range(SUBSTEPS):
            state = runge_kutta(lambda now: change(now, push), state, STEP / SUBSTEPS)  # noqa: B023 (called at once)
        states.append(state)
    return np.stack(states, axis=1)


def runge_kutta(change: Callable[[Array], Array], state: Array, step: float) -> Array:
    """The state after a step, by the classic method of fourth order."""
    first = change(state)
    second = change(state + step / 2 * first)
    third = change(state + step / 2 * second)
    fourth = change(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)


SCHEMA = pa.schema(
    {
        "values": pa.list_(pa.list_(pa.float32())),
        "context": pa.list_(pa.list_(pa.float32())),
        "length": pa.float32(),
        "damping": pa.float32(),
    }
)
