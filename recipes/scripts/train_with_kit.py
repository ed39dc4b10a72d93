"""Train with kit from Python: what `kit train` does, as a few calls.

python recipes/scripts/train_with_kit.py [key=value ...]
"""

import sys

from kit import load_recipe, pipeline, train
from kit.system.console import Reporter

CHANGES = ["train.max_steps=200", "eval.steps=100", "data.languages=[en, de, fr, ja]"]
recipe = load_recipe("dates_rnn", [*CHANGES, *sys.argv[1:]])
run = train(recipe, output="runs/dates_from_python", reporter=Reporter())
print("exact match on the test split:", run.results["test"]["exact_match"])

translate = pipeline("translation", model=run.folder / "model")
print(translate("16. November 2019"))
