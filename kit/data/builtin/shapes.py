"""Drawn scenes of two shapes, and captions that say what is where: `builtin:shapes`.

    caption                                             first      relation    second
    a small red circle left of a blue square            small      left of     (neither)
    a green triangle above a large white cross          (neither)  above       large

Every picture has exactly one right caption: the two shapes differ in size and the smaller one is named first, and
one of the four relations holds by far. Colours, backgrounds and places vary from picture to picture.

A combination is two kinds of shape (colour and form) in one picture, in whatever order. No combination is in two
splits, so a model must have learned colours, forms, sizes and places apart from each other to caption a new one; each
colour and each form is in every split.
"""

import io
import json
import random
from collections.abc import Sequence
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import pyarrow as pa
from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 40, 40),
    "green": (46, 160, 67),
    "blue": (40, 90, 220),
    "yellow": (240, 200, 30),
    "purple": (140, 60, 190),
    "white": (245, 245, 245),
}
FORMS = ("circle", "square", "triangle", "cross")
SIZES = {"small": 5, "": 9, "large": 13}  # half the width, of a picture of 64 pixels
RELATIONS = ("left of", "right of", "above", "below")
DEFAULT_SIZES = {"train": 8_000, "validation": 500, "test": 1_000}
SHARE_HELD_OUT = 0.12  # of the combinations, for validation and for test
SIDE = 64
GAP = 2  # pixels between the shapes, and to the edge
SMOOTH = 3  # drawn so many times larger, and then made smaller, so that edges are smooth

KINDS = tuple(product(COLOURS, FORMS))
SIZE_PAIRS = (("small", ""), ("small", "large"), ("", "large"))
Kind = tuple[str, str]
Combination = tuple[Kind, Kind]


class Shape(NamedTuple):
    """One shape of a scene."""

    size: str
    colour: str
    form: str
    x: float  # of its middle
    y: float

    @property
    def words(self) -> str:
        """The shape as a caption names it."""
        return " ".join(word for word in ("a", self.size, self.colour, self.form) if word)

    @property
    def edges(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom, in pixels."""
        half = SIZES[self.size]
        return self.x - half, self.y - half, self.x + half, self.y + half


def combinations_of_splits(seed: int) -> dict[str, list[Combination]]:
    """Every combination, dealt out to the splits by seed; each colour and each form is in every split."""
    everything = list(combinations_with_replacement(KINDS, 2))
    held_out = round(len(everything) * SHARE_HELD_OUT)
    chance = random.Random(f"shapes/{seed}/combinations")
    while True:
        chance.shuffle(everything)
        dealt = {
            "train": everything[2 * held_out :],
            "validation": everything[:held_out],
            "test": everything[held_out : 2 * held_out],
        }
        words = [{word for pair in split for kind in pair for word in kind} for split in dealt.values()]
        if all(found == {*COLOURS, *FORMS} for found in words):
            return dealt


def generate(sizes: dict[str, int] | None = None, seed: int = 0) -> dict[str, pa.Table]:
    """Train, validation and test, each with the columns image, caption, relation and boxes.

    `image` is a PNG of 64 by 64 pixels, which `datasets` decodes; `boxes` are left, top, right and bottom of the two
    shapes, in the order of the caption. Relations and pairs of sizes are equally frequent (to within one), and equal
    arguments give equal rows.
    """
    sizes = DEFAULT_SIZES | (sizes or {})
    combinations = combinations_of_splits(seed)
    return {split: sample(combinations[split], sizes[split], split, seed) for split in DEFAULT_SIZES}


def sample(combinations: Sequence[Combination], size: int, split: str, seed: int) -> pa.Table:
    """`size` scenes, by turns of each relation and pair of sizes, in random order."""
    chance = random.Random(f"shapes/{seed}/{split}")
    ways = list(product(RELATIONS, SIZE_PAIRS))
    rows: list[dict[str, object]] = []
    while len(rows) < size:
        chance.shuffle(ways)
        for relation, pair in ways[: size - len(rows)]:
            kinds = list(chance.choice(combinations))
            chance.shuffle(kinds)
            rows.append(row_of(scene(relation, pair, kinds, chance), relation, chance))
    chance.shuffle(rows)
    return pa.Table.from_pylist(rows, SCHEMA)


def scene(relation: str, sizes: Sequence[str], kinds: Sequence[Kind], chance: random.Random) -> list[Shape]:
    """Two shapes that do not touch, the first `relation` the second: twice as far as in any other direction."""
    halves = [SIZES[size] for size in sizes]
    while True:
        places = [tuple(chance.uniform(half + GAP, SIDE - half - GAP) for _ in range(2)) for half in halves]
        (x, y), (other_x, other_y) = places
        right, down = other_x - x, other_y - y  # of the second, seen from the first
        apart = {"left of": right, "right of": -right, "above": down, "below": -down}[relation]
        aside = abs(down if relation in ("left of", "right of") else right)
        if apart >= sum(halves) + GAP and apart >= 2 * aside:
            return [Shape(size, *kind, *place) for size, kind, place in zip(sizes, kinds, places, strict=True)]


def draw(shapes: Sequence[Shape], chance: random.Random) -> Image.Image:
    """The scene on a dark ground, with colours that vary a little."""
    ground = tuple(chance.randint(20, 70) for _ in range(3))
    picture = Image.new("RGB", (SIDE * SMOOTH, SIDE * SMOOTH), ground)
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        colour = tuple(max(0, min(255, part + chance.randint(-12, 12))) for part in COLOURS[shape.colour])
        left, top, right, bottom = (SMOOTH * edge for edge in shape.edges)
        third = (right - left) / 3
        match shape.form:
            case "circle":
                canvas.ellipse((left, top, right, bottom), fill=colour)
            case "square":
                canvas.rectangle((left, top, right, bottom), fill=colour)
            case "triangle":
                canvas.polygon(((left, bottom), ((left + right) / 2, top), (right, bottom)), fill=colour)
            case "cross":
                canvas.rectangle((left + third, top, right - third, bottom), fill=colour)
                canvas.rectangle((left, top + third, right, bottom - third), fill=colour)
    return picture.resize((SIDE, SIDE), Image.Resampling.BOX)


def row_of(shapes: Sequence[Shape], relation: str, chance: random.Random) -> dict[str, object]:
    """The scene as a row of the table."""
    file = io.BytesIO()
    draw(shapes, chance).save(file, "PNG", compress_level=1)
    first, second = shapes
    return {
        "image": {"bytes": file.getvalue(), "path": None},
        "caption": f"{first.words} {relation} {second.words}",
        "relation": relation,
        "boxes": [[round(edge) for edge in shape.edges] for shape in shapes],
    }


def schema() -> pa.Schema:
    """The columns, with the note by which `datasets` knows that `image` is a picture."""
    features = {
        "image": {"_type": "Image"},
        "caption": {"dtype": "string", "_type": "Value"},
        "relation": {"dtype": "string", "_type": "Value"},
        "boxes": {"feature": {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}, "_type": "List"},
    }
    return pa.schema(
        {
            "image": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
            "caption": pa.string(),
            "relation": pa.string(),
            "boxes": pa.list_(pa.list_(pa.int32())),
        },
        {"huggingface": json.dumps({"info": {"features": features}})},
    )


SCHEMA = schema()
