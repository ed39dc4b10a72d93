"""Train with kit from Python: what `kit train` does, as a few calls.

python recipes/scripts/train_with_kit.py [key=value ...]
"""

import sys

from kit import pipeline, train

CHANGES = ["train.max_steps=200", "eval.steps=100", "data.languages=[en, de, fr, ja]"]
run = train("dates_rnn", output="runs/dates_from_python", overrides=[*CHANGES, *sys.argv[1:]])
print("exact match on the test split:", run.results["test"]["exact_match"])

translate = pipeline("translation", model=run.folder / "model")
print(translate("16. November 2019"))
