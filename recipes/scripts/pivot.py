"""Zero-shot translation against pivoting: translate an untrained direction directly, and through a third language.

python recipes/scripts/pivot.py runs/multilingual FOLDER

One model (recipes/translation/multilingual.yaml) translates the test split from German to French in one step, and in
two through English. FOLDER has test_2016_flickr.de, test_2016_flickr.fr and so on, as for training.
"""

import argparse
import sys
from itertools import pairwise
from pathlib import Path

from kit import KitError, RunError, Translator, load_recipe
from kit.cards.markdown import table
from kit.evaluation.metrics import compute_metrics
from kit.runs.folder import RunFolder
from kit.tasks.registry import create_task


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Translate in one step and in two, with one multilingual model.")
    parser.add_argument("run", type=Path, help="folder of a finished run with several directions")
    parser.add_argument("folder", help="its data")
    parser.add_argument("--direction", default="de-fr", help="what to translate [de-fr]")
    parser.add_argument("--through", default="en", help="the pivot language [en]")
    options = parser.parse_args(arguments)
    source, _, target = options.direction.partition("-")

    recipe_file = RunFolder.open(options.run).recipe_file
    trained = load_recipe(recipe_file).data.directions or []
    if not trained:
        raise RunError(
            f"{options.run} has one direction: train with data.directions, as recipes/translation/multilingual"
        )
    changes = [f"data.path={options.folder}", f"data.directions=[{options.direction}]"]
    training_only = ["data.direction_sizes=null", "data.direction_repeats=null", "data.fingerprints=null"]
    test = create_task(load_recipe(recipe_file, [*changes, *training_only])).load_splits().datasets["test"]
    translator = Translator(options.run)

    def translate(lines: list[str], source_language: str, target_language: str) -> list[str]:
        outputs = translator.translate(lines, source_language=source_language, target_language=target_language)
        return [best.text for best, *_ in outputs]

    sources, references = list(test["source"]), list(test["target"])
    direct = translate(sources, source, target)
    pivots = translate(sources, source, options.through)
    pivoted = translate(pivots, options.through, target)

    rows = []
    for path, outputs in ((options.direction, direct), (f"{source}-{options.through}-{target}", pivoted)):
        steps = path.split("-")
        seen = [f"{a}-{b}" in trained for a, b in pairwise(steps)]
        figures = compute_metrics(["bleu", "chrf"], outputs, references)
        rows.append([path, "yes" if all(seen) else "no", figures["bleu"], figures["chrf"]])
    print(table(["path", "seen in training", "BLEU", "chrF"], rows))
    for number in range(min(3, len(sources))):
        print(f"\n{source}: {sources[number]}\n{options.through}: {pivots[number]}")
        print(f"{target}, in one step:  {direct[number]}\n{target}, in two steps: {pivoted[number]}")
        print(f"{target}, reference:    {references[number]}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
