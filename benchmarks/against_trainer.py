"""What a fine-tuning recipe reaches against transformers' own Trainer: same model, data, epochs and batch of sentences.

    python benchmarks/against_trainer.py RECIPE [key=value ...] [--learning-rate 5e-5] [--seeds 1] [--bf16]

RECIPE is one of classification, tagging or question answering, and the same `key=value`s as for `kit train` say where
its model and data are. The data is read and encoded by kit; then the Trainer trains the model with its usual settings
(AdamW at 5e-5, linearly down to zero, random batches, 32 bits, the weights of the last step), and kit's evaluation, the
same that `kit train` ends with, judges what it has made. What kit itself reaches is in the recipe's `measured:`.

With --bf16 it computes in 16 bits, and with those parts of kit that compute the same in less time: for long runs, of
which only what is learned counts. Its seconds are then not those of the stock Trainer.
"""

import argparse
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import Trainer, TrainingArguments, set_seed

from kit import load_recipe
from kit.cards.markdown import table
from kit.evaluation.aggregate import with_error
from kit.recipe.base import Recipe
from kit.runs.finish import with_config_updates
from kit.runs.prepare import prepare
from kit.training.layer_swaps import swap_layers


def trained_by_trainer(recipe: Recipe, learning_rate: float, bf16: bool) -> dict[str, dict[str, Any]]:
    """The figures on validation and test, and the seconds of training."""
    set_seed(recipe.train.seed)
    prepared = prepare(recipe)
    examples = prepared.encoded["train"].examples
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=recipe.train.num_train_epochs,
            per_device_train_batch_size=recipe.train.batch_size,
            learning_rate=learning_rate,
            bf16=bf16,
            use_cpu=not torch.accelerator.is_available(),  # without it a CPU is refused 16 bits
            seed=recipe.train.seed,
            remove_unused_columns=False,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
        )
        if bf16:
            swap_layers(prepared.model, settings.device, mixed_precision=True)
        trainer = Trainer(
            model=prepared.model,
            args=settings,
            train_dataset=range(len(examples)),  # their numbers, of which the collator makes batches
            data_collator=lambda numbers: examples.batch(np.array(numbers)),
        )
        seconds = trainer.train().metrics["train_runtime"]
    found = {"train": {"seconds": float(seconds)}}
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # judged in 32 bits, as kit's
    prepared = replace(prepared, built=replace(prepared.built, model=model.eval()))
    objective = prepared.task.objective(model, prepared.state)
    for split in ("validation", "test"):
        if split in prepared.encoded:
            rows, encoded = prepared.splits.datasets[split], prepared.encoded[split]
            evaluation = prepared.task.evaluate(
                prepared.evaluator(Accelerator()), objective, rows, encoded, prepared.state
            )
            prepared = with_config_updates(prepared, evaluation.config_updates)
            found[split] = evaluation.figures
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    recipes = [load_recipe(given.recipe, [*given.changes, f"train.seed={seed}"]) for seed in range(given.seeds)]
    runs = [trained_by_trainer(recipe, given.learning_rate, given.bf16) for recipe in recipes]
    rows = [
        [f"{split} {name}", with_error([float(run[split][name]) for run in runs])]
        for split, figures in runs[0].items()
        for name, value in figures.items()
        if isinstance(value, int | float)
    ]
    bits, cores = 16 if given.bf16 else 32, torch.get_num_threads()
    print(f"Trainer, {given.recipe}, {given.seeds} seeds, rate {given.learning_rate:g}, {bits} bits, {cores} threads\n")
    print(table(["figure", "mean ± standard error"], rows))


if __name__ == "__main__":
    main()
