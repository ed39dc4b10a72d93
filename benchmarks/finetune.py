"""Fine-tuning speed: kit against transformers' own Trainer, same model, data, epochs and batch of sentences.

    python benchmarks/finetune.py MODEL FOLDER [--rounds 1] [--epochs 2] [--batch 32]

MODEL is an encoder (a folder or a Hub id), FOLDER has train.tsv and dev.tsv (or .tsv.gz) of text and label, as for
recipes/fine_tuning/classification_sst2.yaml, whose settings all sides have. They take turns in one process, several
rounds with a seed each, as machines drift: only ratios mean something. Times are those of training alone.

    kit                      the recipe
    kit, float32             the same without mixed precision
    Trainer                  its default: random batches, padded to the longest sentence in each
    Trainer, by length       train_sampling_strategy="group_by_length"
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from kit import load_recipe, train
from kit.cards.markdown import table
from kit.data.splits import load_splits
from kit.recipe.base import Recipe


@dataclass(frozen=True)
class Outcome:
    """One training."""

    examples_per_second: float
    accuracy: float


Side = Callable[[Recipe, Path], Outcome]


def with_kit(recipe: Recipe, folder: Path) -> Outcome:
    results = train(recipe, folder, quiet=True).results
    seen = results["data"]["examples"]["train"] * results["train"]["epochs"]
    return Outcome(seen / results["train"]["seconds"], results["validation"]["accuracy"])


def with_trainer(sampling: str) -> Side:
    """The same training by the `Trainer` of transformers, with its batches."""

    def run(recipe: Recipe, folder: Path) -> Outcome:
        set_seed(recipe.train.seed)
        tokenizer = AutoTokenizer.from_pretrained(recipe.model.pretrained)
        model = AutoModelForSequenceClassification.from_pretrained(recipe.model.pretrained, num_labels=2)
        splits = load_splits(recipe.data).datasets

        def encode(rows: dict) -> dict:
            encoded = tokenizer(rows[recipe.data.text], truncation=True, max_length=recipe.data.max_length)
            names = recipe.data.label_names
            labels = [names.index(label) if label in names else int(label) for label in rows[recipe.data.label]]
            return {**encoded, "labels": labels, "length": list(map(len, encoded["input_ids"]))}

        encoded = splits.map(encode, batched=True, remove_columns=splits["train"].column_names)
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(folder),
                num_train_epochs=recipe.train.num_train_epochs,
                per_device_train_batch_size=recipe.train.batch_size,
                learning_rate=recipe.train.learning_rate,
                weight_decay=recipe.train.weight_decay,
                warmup_steps=recipe.train.warmup_steps,
                train_sampling_strategy=sampling,
                seed=recipe.train.seed,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=encoded["train"],
            eval_dataset=encoded["validation"],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda output: {"accuracy": float(np.mean(output[0].argmax(-1) == output[1]))},
        )
        speed = trainer.train().metrics["train_samples_per_second"]
        return Outcome(speed, trainer.evaluate()["eval_accuracy"])

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    shared = [
        *(f"model.pretrained={arguments.model}", f"data.path={arguments.folder}"),
        *(
            "data.text=text",
            "data.columns=[text, label]",
            "eval.steps=0",
            "eval.examples=0",
            "train.save_steps=1000000",
        ),
        *(f"train.num_train_epochs={arguments.epochs}", f"train.batch_size={arguments.batch}"),
    ]
    sides: dict[str, tuple[Side, list[str]]] = {
        "kit": (with_kit, []),
        "Trainer": (with_trainer("random"), []),
        "kit, float32": (with_kit, ["train.mixed_precision=no"]),
        "Trainer, by length": (with_trainer("group_by_length"), []),
    }
    outcomes: dict[str, list[Outcome]] = {name: [] for name in sides}
    for seed in range(arguments.rounds):
        for name, (side, changes) in sides.items():
            recipe = load_recipe("classification_sst2", [*shared, f"train.seed={seed}", *changes])
            with tempfile.TemporaryDirectory() as folder:
                outcomes[name].append(side(recipe, Path(folder) / "run"))
            last = outcomes[name][-1]
            print(f"round {seed + 1}, {name}: {last.examples_per_second:.1f} examples/s, accuracy {last.accuracy:.4f}")

    rows = []
    for name, runs in outcomes.items():
        speeds = [run.examples_per_second for run in runs]
        reference = [run.examples_per_second for run in outcomes["Trainer"]]
        ratio = statistics.median(speed / stock for speed, stock in zip(speeds, reference, strict=True))
        accuracy = statistics.mean(run.accuracy for run in runs)
        rows.append([name, f"{statistics.median(speeds):.1f}", f"{ratio:.2f}", f"{accuracy:.4f}"])
    print(table(["side", "examples/s", "times Trainer", "accuracy, mean"], rows))
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")


if __name__ == "__main__":
    main()
