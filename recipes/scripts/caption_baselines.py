"""Baselines for a captioner: the most frequent caption for every image, and the caption of the nearest image.

    python recipes/scripts/caption_baselines.py RECIPE [key=value ...] [--split test]

Both are evaluated on a split of the recipe with the recipe's metrics, so the figures are comparable with those of
`kit train` with the same arguments. The nearest training image has the smallest squared pixel difference, at the size
that the model sees.
"""

import argparse
import sys
from collections import Counter

import numpy as np

from kit import DataError, KitError, RecipeError, load_recipe
from kit.cards.markdown import table
from kit.evaluation.metrics import compute_metrics
from kit.recipe.model_settings import config_class
from kit.tasks.captioning.images import Images, PixelReader
from kit.tasks.captioning.recipe import CaptioningRecipe
from kit.tasks.captioning.rows import root_of
from kit.tasks.registry import create_task

BLOCK_SIZE = 256
"""Images compared at a time, which bounds memory."""


def nearest_indices(queries: Images, candidates: Images) -> list[int]:
    """The index of the nearest candidate for each query."""
    best = np.full(len(queries), np.inf)
    nearest = np.zeros(len(queries), dtype=np.int64)
    for start in range(0, len(candidates), BLOCK_SIZE):
        block = np.arange(start, min(start + BLOCK_SIZE, len(candidates)))
        y = candidates.pixels(block).flatten(1).double()  # (candidates, values)
        for first in range(0, len(queries), BLOCK_SIZE):
            rows = np.arange(first, min(first + BLOCK_SIZE, len(queries)))
            x = queries.pixels(rows).flatten(1).double()  # (queries, values)
            distances = x.pow(2).sum(1)[:, None] + y.pow(2).sum(1) - 2 * x @ y.T  # (queries, candidates)
            minimum = distances.min(1)
            closer = minimum.values.numpy() < best[rows]
            best[rows[closer]] = minimum.values.numpy()[closer]
            nearest[rows[closer]] = start + minimum.indices.numpy()[closer]
    return nearest.tolist()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description="Baselines for a captioner: the most frequent and the nearest caption."
    )
    parser.add_argument("recipe", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    parser.add_argument("--split", default="test", help="what to evaluate on [test]")
    options = parser.parse_args(arguments)
    recipe = load_recipe(options.recipe, options.overrides)
    if not isinstance(recipe, CaptioningRecipe) or recipe.model.type is None:
        raise RecipeError(f"{options.recipe} is not a recipe of a new captioner")
    splits = create_task(recipe).load_splits()
    if options.split not in splits.datasets:
        raise DataError(f"the data has no split {options.split}, only {', '.join(splits.datasets)}")
    train, evaluated = splits.datasets["train"], splits.datasets[options.split]
    reader = PixelReader(config_class(recipe.model.type)(**recipe.model.settings))
    images = [Images(rows, root_of(recipe.data), reader) for rows in (evaluated, train)]

    captions, references = list(train["caption"]), list(evaluated["caption"])
    frequent, count = Counter(caption for texts in captions for caption in texts).most_common(1)[0]
    baselines = {
        f'most frequent caption ("{frequent}", {count} times)': [frequent] * len(references),
        "caption of the nearest image": [captions[index][0] for index in nearest_indices(*images)],
    }
    metrics, rows = recipe.eval.metrics, []
    for name, predictions in baselines.items():
        figures = compute_metrics(metrics, predictions, references)
        rows.append([name, *(figures[metric] for metric in metrics)])
    print(table([f"{options.split}: {len(references)} images", *metrics], rows))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
