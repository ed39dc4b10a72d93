"""What a fine-tuning recipe reaches against transformers' own Trainer: same model, data, epochs and batch of sentences.

    python benchmarks/against_trainer.py RECIPE [key=value ...] [--learning-rate 5e-5] [--seeds 1]

RECIPE is one of classification, tagging or question answering, and the same `key=value`s as for `kit train` say where
its model and data are. The data is read and encoded by kit; then the Trainer trains the model with its usual settings
(AdamW at 5e-5, linearly down to zero, random batches, 32 bits, the weights of the last step), and kit's evaluation, the
same that `kit train` ends with, judges what it has made. What kit itself reaches is in the recipe's `measured:`.
"""

import argparse
import tempfile
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import Trainer, TrainingArguments, set_seed

from kit import load_recipe
from kit.evaluation.seeds import with_error
from kit.markdown import table
from kit.prepare import prepare
from kit.recipe import Recipe


def trained_by_trainer(recipe: Recipe, learning_rate: float) -> dict[str, dict[str, Any]]:
    """The figures on validation and test, and the seconds of training."""
    set_seed(recipe.train.seed)
    prepared = prepare(recipe)
    examples = prepared.encoded.splits["train"]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=prepared.model,
            args=TrainingArguments(
                output_dir=folder,
                num_train_epochs=recipe.train.num_train_epochs,
                per_device_train_batch_size=recipe.train.batch_size,
                learning_rate=learning_rate,
                seed=recipe.train.seed,
                remove_unused_columns=False,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
            ),
            train_dataset=range(len(examples)),  # their numbers, of which the collator makes batches
            data_collator=lambda numbers: examples.batch(np.array(numbers)),
        )
        seconds = trainer.train().metrics["train_runtime"]
    found = {"train": {"seconds": float(seconds)}}
    objective = prepared.task.objective(prepared.model.eval())
    for split in ("validation", "test"):
        if split in prepared.encoded.splits:
            evaluation = prepared.task.evaluate(
                objective, prepared.splits, prepared.encoded, prepared.tokenizers, split, Accelerator()
            )
            if split == "validation":
                prepared.task.settle(prepared.model, evaluation)
            found[split] = evaluation.figures
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    runs = [
        trained_by_trainer(load_recipe(given.recipe, [*given.changes, f"train.seed={seed}"]), given.learning_rate)
        for seed in range(given.seeds)
    ]
    rows = [
        [f"{split} {name}", with_error([float(run[split][name]) for run in runs])]
        for split, figures in runs[0].items()
        for name, value in figures.items()
        if isinstance(value, int | float)
    ]
    cores = torch.get_num_threads()
    print(f"Trainer, {given.recipe}, learning rate {given.learning_rate:g}, {given.seeds} seeds, {cores} threads\n")
    print(table(["figure", "mean ± standard error"], rows))


if __name__ == "__main__":
    main()
