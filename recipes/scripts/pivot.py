"""A direction that training has never seen, translated directly and through a language between: which is better?

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
    parser.add_argument("--through", default="en", help="the language between [en]")
    given = parser.parse_args(arguments)
    source, _, target = given.direction.partition("-")

    recipe_file = RunFolder.open(given.run).recipe_file
    trained = load_recipe(recipe_file).data.directions or []
    if not trained:
        raise RunError(
            f"{given.run} has one direction: train with data.directions, as recipes/translation/multilingual"
        )
    changes = [f"data.path={given.folder}", f"data.directions=[{given.direction}]"]
    of_training = ["data.direction_sizes=null", "data.direction_repeats=null", "data.fingerprints=null"]
    test = create_task(load_recipe(recipe_file, [*changes, *of_training])).load_splits().datasets["test"]
    translator = Translator(given.run)

    def translate(lines: list[str], reading: str, writing: str) -> list[str]:
        outputs = translator.translate(lines, source_language=reading, target_language=writing)
        return [best.text for best, *_ in outputs]

    sources, references = list(test["source"]), list(test["target"])
    direct = translate(sources, source, target)
    between = translate(sources, source, given.through)
    pivoted = translate(between, given.through, target)

    rows = []
    for way, outputs in ((given.direction, direct), (f"{source}-{given.through}-{target}", pivoted)):
        steps = way.split("-")
        seen = [f"{a}-{b}" in trained for a, b in pairwise(steps)]
        figures = compute_metrics(["bleu", "chrf"], outputs, references)
        rows.append([way, "yes" if all(seen) else "no", figures["bleu"], figures["chrf"]])
    print(table(["way", "seen in training", "BLEU", "chrF"], rows))
    for number in range(min(3, len(sources))):
        print(f"\n{source}: {sources[number]}\n{given.through}: {between[number]}")
        print(f"{target}, in one step:  {direct[number]}\n{target}, in two steps: {pivoted[number]}")
        print(f"{target}, reference:    {references[number]}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
