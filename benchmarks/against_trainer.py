"""What a fine-tuning recipe reaches against transformers' own Trainer: same model, data, epochs and batch of sentences.

    python benchmarks/against_trainer.py RECIPE [key=value ...] [--learning-rate 5e-5] [--seeds 1] [--bf16]

RECIPE is for classification, tagging or question answering; `key=value` arguments name its model and data, as for
`kit train`. kit reads and encodes the data, the Trainer trains the model with its defaults (AdamW at 5e-5, linear decay
to zero, random batches, float32, the weights of the last step), and kit evaluates the result as at the end of
`kit train`. What kit reaches is in the section `measured` of the recipe.

--bf16 trains in bf16, with kit's faster layers: for long runs where only the figures matter. The seconds are then not
those of the stock Trainer.
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
            use_cpu=not torch.accelerator.is_available(),  # otherwise bf16 is refused on a CPU
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
            train_dataset=range(len(examples)),  # the collator makes batches of their indices
            data_collator=lambda indices: examples.batch(np.array(indices)),
        )
        seconds = trainer.train().metrics["train_runtime"]
    figures = {"train": {"seconds": float(seconds)}}
    model = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False)  # evaluated in float32, as kit's
    prepared = replace(prepared, built=replace(prepared.built, model=model.eval()))
    objective = prepared.task.objective(model, prepared.state)
    for split in ("validation", "test"):
        if split in prepared.encoded:
            rows, encoded = prepared.splits.datasets[split], prepared.encoded[split]
            evaluation = prepared.task.evaluate(
                prepared.evaluator(Accelerator()), objective, rows, encoded, prepared.state
            )
            prepared = with_config_updates(prepared, evaluation.config_updates)
            figures[split] = evaluation.figures
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("changes", nargs="*", metavar="key=value")
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    arguments = parser.parse_args()
    seeds = [f"train.seed={seed}" for seed in range(arguments.seeds)]
    recipes = [load_recipe(arguments.recipe, [*arguments.changes, seed]) for seed in seeds]
    runs = [trained_by_trainer(recipe, arguments.learning_rate, arguments.bf16) for recipe in recipes]
    rows = [
        [f"{split} {name}", with_error([float(run[split][name]) for run in runs])]
        for split, figures in runs[0].items()
        for name, value in figures.items()
        if isinstance(value, int | float)
    ]
    bits, cores = 16 if arguments.bf16 else 32, torch.get_num_threads()
    setting = f"{len(seeds)} seeds, rate {arguments.learning_rate:g}, {bits} bits, {cores} threads"
    print(f"Trainer, {arguments.recipe}, {setting}\n")
    print(table(["figure", "mean ± standard error"], rows))


if __name__ == "__main__":
    main()
