"""Does pretraining help? A small BERT learns from few labels which document a paragraph is from, with and without it.

python recipes/scripts/pretraining_helps.py FILE.jsonl --output runs/helps

FILE.jsonl has one document per line: its `title` and its list of `paragraphs`; `builtin:pydocs` takes Python's own
documentation instead. Some paragraphs of each document are held out for testing, and only --labels of the others are
labeled. Everything that is not held out is pretraining text (recipes/pretraining/bert_nsp_tiny.yaml). Then the
pretrained model, and the same model with new weights, are fine-tuned on the labels with the same tokenizer, steps and
seeds (recipes/experiments/few_labels.yaml). Accuracy and its standard error go into helps.md. Any `key=value` changes
the pretraining. Finished steps are not repeated.
"""

import argparse
import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForPreTraining, AutoTokenizer

from kit import DataError, KitError, load_recipe, train
from kit.cards.markdown import table
from kit.data.builtin.pydocs import documents as python_documentation
from kit.evaluation.aggregate import with_error
from kit.system.console import Reporter
from kit.system.outputs import write_text

TEST, VALIDATION = 0.25, 0.1
"""Shares of each document's paragraphs that are held out."""
MIN_LENGTH = 80
"""Characters of a paragraph. Shorter ones are often headings."""


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning with few labels, pretrained and from scratch.")
    parser.add_argument("texts", help="JSON lines with title and paragraphs, gz or not, or builtin:pydocs")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="changes of the pretraining")
    parser.add_argument("--output", type=Path, default=Path("runs/helps"), help="where runs, texts and table go")
    parser.add_argument("--labels", type=int, default=5, help="labeled paragraphs per document")
    parser.add_argument("--seeds", type=int, default=3, help="runs per side")
    parser.add_argument("--steps", type=int, default=300, help="steps of fine-tuning, on both sides")
    options = parser.parse_args(arguments)

    reporter = Reporter()
    summary = write_texts(read_documents(options.texts), options.labels, options.output)
    reporter.print(summary)
    text = [f"data.path={options.output / 'text'}", "data.text=paragraphs"]
    pretraining = load_recipe("pretraining/bert_nsp_tiny", [*text, *options.changes])
    pretrained = train(pretraining, options.output / "pretrained", resume=True).folder
    accuracies: dict[str, list[float]] = {"from scratch": [], "pretrained": []}
    for seed in range(options.seeds):
        untrained = new_weights(pretrained, options.output / f"new_{seed}", seed)
        starts = {"from scratch": untrained, "pretrained": pretrained}
        for name, start in starts.items():
            changes = [f"model.pretrained={start}", f"data.path={options.output / 'labeled'}"]
            changes += [f"train.max_steps={options.steps}", f"train.seed={seed}"]
            recipe = load_recipe("experiments/few_labels", changes)
            output = options.output / f"{name.replace(' ', '_')}_{seed}"
            reporter.print(f"{name}, seed {seed}: {output}")
            results = train(recipe, output, resume=True).results
            accuracies[name].append(results["test"]["accuracy"])
    report = f"{summary}\n\n{as_table(accuracies, options.steps)}"
    write_text(options.output / "helps.md", report + "\n")
    print(report)
    reporter.print(f"written: {options.output / 'helps.md'}")


def read_documents(texts: str) -> dict[str, list[str]]:
    """The paragraphs of each document by its title."""
    if texts == "builtin:pydocs":
        documents = {title: text.split("\n\n") for title, text in python_documentation().items()}
    else:
        path = Path(texts)
        if not path.is_file():
            raise DataError(f"{texts} does not exist: name a file of JSON lines, or builtin:pydocs")
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.strip()]
        try:
            documents = {row["title"]: row["paragraphs"] for row in rows}
        except KeyError as missing:
            raise DataError(f"{texts}: a line has no {missing}; expected title and paragraphs") from None
    return {title: [text for text in paragraphs if len(text) >= MIN_LENGTH] for title, paragraphs in documents.items()}


def write_texts(documents: dict[str, list[str]], labels: int, output: Path) -> str:
    """Write the text to pretrain on and the texts with labels; returns a summary of their sizes.

    No training text contains a paragraph that is held out for validation or testing.
    """
    generator = random.Random(0)
    text: dict[str, list[str]] = {"train": [], "validation": []}
    labeled: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for title, paragraphs in sorted(documents.items()):
        order = generator.sample(range(len(paragraphs)), len(paragraphs))
        test, validation = round(TEST * len(order)), max(1, round(VALIDATION * len(order)))
        parts = {
            "test": order[:test],
            "validation": order[test : test + validation],
            "train": order[test + validation :][:labels],
        }
        if not test or len(order) < test + validation + 2 * labels:
            continue  # too short to be learned and tested
        for split, indices in parts.items():
            labeled[split] += [json.dumps({"text": paragraphs[index], "label": title}) for index in indices]
        held_out = {*parts["test"], *parts["validation"]}
        remaining = [paragraph for index, paragraph in enumerate(paragraphs) if index not in held_out]
        text["train"].append(json.dumps({"title": title, "paragraphs": remaining}))
        validation_text = [paragraphs[index] for index in sorted(parts["validation"])]
        text["validation"].append(json.dumps({"title": title, "paragraphs": validation_text}))
    if len(text["train"]) < 2:
        raise DataError(f"fewer than two documents have enough paragraphs for {labels} labels: use a smaller --labels")
    for name, splits in (("text", text), ("labeled", labeled)):
        (output / name).mkdir(parents=True, exist_ok=True)
        for split, lines in splits.items():
            write_text(output / name / f"{split}.jsonl", "".join(f"{line}\n" for line in lines))
    return (
        f"Which of {len(text['train'])} documents is a paragraph from? {labels} labels for each document, "
        f"{len(labeled['train'])} in all, {len(labeled['test'])} held-out paragraphs."
    )


def new_weights(pretrained: Path, folder: Path, seed: int) -> Path:
    """A folder with the same tokenizer and architecture, and randomly initialized weights."""
    if not (folder / "config.json").is_file():
        torch.manual_seed(seed)
        model = AutoModelForPreTraining.from_config(AutoConfig.from_pretrained(pretrained / "model"))
        AutoTokenizer.from_pretrained(pretrained / "model").save_pretrained(folder)
        model.save_pretrained(folder)
    return folder


def as_table(accuracies: dict[str, list[float]], steps: int) -> str:
    """Accuracy of each side by seed, with mean and standard error, as Markdown."""
    seeds = [f"seed {seed}" for seed in range(len(next(iter(accuracies.values()))))]
    rows = [[name, steps, *values, with_error(values)] for name, values in accuracies.items()]
    return table(["weights", "steps", *seeds, "accuracy ± standard error"], rows)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KitError as error:
        sys.exit(f"error: {error}")
