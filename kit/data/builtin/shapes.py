"""Drawings of two shapes, with captions that describe where they are: `builtin:shapes`.

    caption                                             first      relation    second
    a small red circle left of a blue square            small      left of     (neither)
    a green triangle above a large white cross          (neither)  above       large

Every image has exactly one right caption: the two shapes differ in size and the smaller one is named first, and one of
the four relations clearly holds. Colors, backgrounds and positions vary from image to image.

A combination is two kinds of shape (color and form) in one image, in either order. No combination is in two splits, so
a model must learn colors, forms, sizes and positions separately to caption a new one; each color and each form is in
every split.
"""

import io
import random
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import pyarrow as pa
from datasets import Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image, ImageDraw

COLORS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (40, 90, 220),
    "yellow": (240, 200, 30),
    "purple": (140, 60, 190),
    "white": (245, 245, 245),
}
FORMS = ("circle", "square", "triangle", "cross")
SIZES = {"small": 5, "": 9, "large": 13}  # half the width, in an image of 64 pixels
RELATIONS = ("left of", "right of", "above", "below")
DEFAULT_SIZES = {"train": 8_000, "validation": 500, "test": 1_000}
SHARE_HELD_OUT = 0.12  # of the combinations, for validation and for test
SIDE = 64  # pixels, width and height of an image
GAP = 2  # pixels between the shapes, and to the edge
SUPERSAMPLING = 3  # drawn this many times larger and then reduced, for smooth edges

KINDS = tuple(product(COLORS, FORMS))
SIZE_PAIRS = (("small", ""), ("small", "large"), ("", "large"))
Kind = tuple[str, str]
Combination = tuple[Kind, Kind]


class Shape(NamedTuple):
    """One shape of a scene."""

    size: str
    color: str
    form: str
    x: float  # of its center
    y: float

    @property
    def words(self) -> str:
        """The shape in the words of a caption."""
        return " ".join(word for word in ("a", self.size, self.color, self.form) if word)

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, in pixels."""
        half = SIZES[self.size]
        return self.x - half, self.y - half, self.x + half, self.y + half


def combinations_of_splits(seed: int) -> dict[str, list[Combination]]:
    """Every combination, assigned to one of the splits by seed; each color and each form is in every split."""
    combinations = list(combinations_with_replacement(KINDS, 2))
    held_out = round(len(combinations) * SHARE_HELD_OUT)
    rng = random.Random(f"shapes/{seed}/combinations")
    while True:
        rng.shuffle(combinations)
        splits = {
            "train": combinations[2 * held_out :],
            "validation": combinations[:held_out],
            "test": combinations[held_out : 2 * held_out],
        }
        words = [{word for pair in split for kind in pair for word in kind} for split in splits.values()]
        if all(present == {*COLORS, *FORMS} for present in words):
            return splits


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns image, caption, relation and boxes.

    `image` is a PNG of 64 by 64 pixels, which `datasets` decodes; `boxes` are left, top, right and bottom of the two
    shapes, in the order of the caption. Relations and pairs of sizes are equally frequent (within one), and equal
    arguments give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    combinations = combinations_of_splits(seed)
    return {split: sample(combinations[split], sizes[split], split, seed) for split in DEFAULT_SIZES}


def sample(combinations: Sequence[Combination], size: int, split: str, seed: int) -> pa.Table:
    """`size` scenes, alternating between relations and pairs of sizes, then shuffled."""
    rng = random.Random(f"shapes/{seed}/{split}")
    layouts = list(product(RELATIONS, SIZE_PAIRS))
    rows: list[dict[str, object]] = []
    while len(rows) < size:
        rng.shuffle(layouts)
        for relation, pair in layouts[: size - len(rows)]:
            kinds = list(rng.choice(combinations))
            rng.shuffle(kinds)
            rows.append(row_of(scene(relation, pair, kinds, rng), relation, rng))
    rng.shuffle(rows)
    return pa.Table.from_pylist(rows, SCHEMA)


def scene(relation: str, sizes: Sequence[str], kinds: Sequence[Kind], rng: random.Random) -> list[Shape]:
    """Two shapes that do not touch, the first `relation` the second, twice as far apart as along the other axis."""
    halves = [SIZES[size] for size in sizes]
    while True:
        centers = [tuple(rng.uniform(half + GAP, SIDE - half - GAP) for _ in range(2)) for half in halves]
        (x, y), (other_x, other_y) = centers
        right, down = other_x - x, other_y - y  # from the first to the second
        distance = {"left of": right, "right of": -right, "above": down, "below": -down}[relation]
        offset = abs(down if relation in ("left of", "right of") else right)
        if distance >= sum(halves) + GAP and distance >= 2 * offset:
            return [Shape(size, *kind, *center) for size, kind, center in zip(sizes, kinds, centers, strict=True)]


def draw(shapes: Sequence[Shape], rng: random.Random) -> Image.Image:
    """The scene on a dark background, with slightly varied colors."""
    background = tuple(rng.randint(20, 70) for _ in range(3))
    image = Image.new("RGB", (SIDE * SUPERSAMPLING, SIDE * SUPERSAMPLING), background)
    canvas = ImageDraw.Draw(image)
    for shape in shapes:
        color = tuple(max(0, min(255, part + rng.randint(-12, 12))) for part in COLORS[shape.color])
        left, top, right, bottom = (SUPERSAMPLING * edge for edge in shape.edges)
        third = (right - left) / 3
        match shape.form:
            case "circle":
                canvas.ellipse((left, top, right, bottom), fill=color)
            case "square":
                canvas.rectangle((left, top, right, bottom), fill=color)
            case "triangle":
                canvas.polygon(((left, bottom), ((left + right) / 2, top), (right, bottom)), fill=color)
            case "cross":
                canvas.rectangle((left + third, top, right - third, bottom), fill=color)
                canvas.rectangle((left, top + third, right, bottom - third), fill=color)
    return image.resize((SIDE, SIDE), Image.Resampling.BOX)


def row_of(shapes: Sequence[Shape], relation: str, rng: random.Random) -> dict[str, object]:
    """A row with the scene."""
    file = io.BytesIO()
    draw(shapes, rng).save(file, "PNG", compress_level=1)
    first, second = shapes
    return {
        "image": {"bytes": file.getvalue(), "path": None},
        "caption": f"{first.words} {relation} {second.words}",
        "relation": relation,
        "boxes": [[round(edge) for edge in shape.edges] for shape in shapes],
    }


SCHEMA = Features(
    {
        "image": ImageFeature(),
        "caption": Value("string"),
        "relation": Value("string"),
        "boxes": List(List(Value("int32"))),
    }
).arrow_schema
"""The columns, with the metadata that makes `datasets` decode `image`."""
