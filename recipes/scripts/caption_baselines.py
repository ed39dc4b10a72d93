"""What a captioner has to beat: the most frequent caption for every picture, and the caption of the nearest picture.

    python recipes/scripts/caption_baselines.py RECIPE [key=value ...] [--split test]

Both are judged on the recipe's own split by its own metrics, so that the figures stand beside those of `kit train` with
the same arguments. The nearest picture of the training data is the one whose pixels, in the size that the model sees,
differ least (by their squares).
"""

import argparse
from collections import Counter

import numpy as np

from kit import load_recipe
from kit.errors import DataError, RecipeError
from kit.evaluation.metrics import compute_metrics
from kit.recipe.model_settings import config_class
from kit.tasks.captioning.images import Pictures, PixelReader
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.captioning.rows import root_of
from kit.tasks.registry import create_task

AT_ONCE = 256
"""Pictures that are compared at a time."""


def nearest(asked: Pictures, known: Pictures) -> list[int]:
    """For each picture the number of the known one that is nearest to it."""
    best = np.full(len(asked), np.inf)
    found = np.zeros(len(asked), dtype=np.int64)
    for start in range(0, len(known), AT_ONCE):
        some = known.pixels(np.arange(start, min(start + AT_ONCE, len(known)))).flatten(1).double()  # (known, numbers)
        for first in range(0, len(asked), AT_ONCE):
            places = np.arange(first, min(first + AT_ONCE, len(asked)))
            ours = asked.pixels(places).flatten(1).double()  # (asked, numbers)
            squares = ours.pow(2).sum(1)[:, None] + some.pow(2).sum(1) - 2 * ours @ some.T  # (asked, known)
            least = squares.min(1)
            closer = least.values.numpy() < best[places]
            best[places[closer]] = least.values.numpy()[closer]
            found[places[closer]] = start + least.indices.numpy()[closer]
    return found.tolist()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--split", default="test")
    given = parser.parse_args(arguments)
    recipe = load_recipe(given.recipe, given.overrides)
    if not isinstance(recipe, CaptioningRecipe) or recipe.model.type is None:
        raise RecipeError(f"{given.recipe} is not a recipe of a new captioner")
    splits = create_task(recipe).load_splits()
    if given.split not in splits.datasets:
        raise DataError(f"the data has no split {given.split}, only {', '.join(splits.datasets)}")
    train, asked = splits.datasets["train"], splits.datasets[given.split]
    reader = PixelReader(config_class(recipe.model.type)(**recipe.model.settings))
    pictures = [Pictures(rows, root_of(recipe.data), reader) for rows in (asked, train)]

    captions, right = list(train["caption"]), list(asked["caption"])
    frequent, times = Counter(caption for listed in captions for caption in listed).most_common(1)[0]
    answers = {
        f'most frequent caption ("{frequent}", {times} times)': [frequent] * len(right),
        "caption of the nearest picture": [captions[place][0] for place in nearest(*pictures)],
    }
    print(f"| {given.split}: {len(right)} pictures | {' | '.join(recipe.eval.metrics)} |")
    print("|---" * (1 + len(recipe.eval.metrics)) + "|")
    for name, predictions in answers.items():
        values = compute_metrics(recipe.eval.metrics, predictions, right)
        print(f"| {name} | {' | '.join(f'{values[metric]:.4g}' for metric in recipe.eval.metrics)} |")


if __name__ == "__main__":
    main()
