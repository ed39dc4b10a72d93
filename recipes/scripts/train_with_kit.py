"""Train with kit from Python: what `kit train` does, as a few calls.

python recipes/scripts/train_with_kit.py
"""

from kit import load_recipe, pipeline, train
from kit.system.console import Reporter

recipe = load_recipe("dates_rnn", ["train.max_steps=200", "eval.steps=100", "data.languages=[en, de, fr, ja]"])
run = train(recipe, output="runs/dates_from_python", reporter=Reporter())
print("exact match on the test split:", run.results["test"]["exact_match"])

translate = pipeline("translation", model=run.folder / "model")
print(translate("16. November 2019"))
