"""Golden equality: two versions of kit train the same weights, report the same figures and write the same output.

    python tests/golden_equality.py record OLD_RESULTS --source OLD_CHECKOUT --dialect 0.1
    python tests/golden_equality.py record NEW_RESULTS --source . --inputs OLD_RESULTS
    python tests/golden_equality.py compare OLD_RESULTS NEW_RESULTS

Each job trains 100 steps through the real command line, then writes 200 lines of `kit generate` or `kit predict`.
Weights are compared bit by bit through a map of renamed parameters, figures and predictions within 1e-6, and written
output byte for byte. Both sides must run on the same machine: bits depend on the CPU.
"""

import argparse
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from safetensors.numpy import load_file

STEPS = 100
INPUT_ROWS = 200

RENAMED_KEYS: dict[str, str] = {
    "model.num_attention_heads": "model.attention_heads",
    "model.intermediate_size": "model.feed_forward_size",
    "model.num_hidden_layers": "model.layers",
    "model.include_utterances": "model.sees_utterances",
    "data.mlm_probability": "data.mask_probability",
    "data.whole_word_mask": "data.whole_words",
    "data.label_all_tokens": "data.label_all_subwords",
    "eval.metric_for_best_model": "eval.select_by",
}
"""Recipe keys of the jobs below, with the name that version 0.1 knows. Those of `model` belong to kit's model types."""

FOREIGN_MODELS = ("bert", "gpt2")

RENAMED_PARAMETERS: list[tuple[str, str]] = [
    (r"decoder\.handover\.", "decoder.bridge."),
    (r"decoder\.join\.", "decoder.combine."),
    (r"decoder\.readout\.join\.", "decoder.readout.projection."),
    (r"encoder\.network\.halving\.", "encoder.network.downsampling."),
    (r"encoder\.feature\.", "encoder.projection."),
]
"""Patterns in parameter names of version 0.1, and what stands in their place now."""

RENAMED_FIGURES: dict[str, str] = {"cut": "truncated"}
"""Figures and columns of version 0.1, and their names now."""

TRAIN = {"max_steps": STEPS, "learning_rate": 2e-3, "warmup_steps": 10, "save_steps": 1000, "logging_steps": 10}
DATES = {"path": "builtin:dates", "sizes": {"train": 2000, "validation": 60, "test": 200}, "languages": ["en", "de"]}
RNN = {"hidden_size": 48, "embedding_size": 24, "attention": "additive", "dropout": 0.1}
BERT = {
    "type": "bert", "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96,
    "max_position_embeddings": 128,
}  # fmt: skip
CHARACTERS = {"train": "char", "vocab_size": 1000, "min_frequency": 1}
WORDPIECE = {"train": "wordpiece", "vocab_size": 1000}
SEQ2SEQ_EVAL = {"steps": 50, "metrics": ["exact_match", "chrf"], "num_beams": 3, "max_new_tokens": 14}


@dataclass(frozen=True)
class Job:
    """A recipe, and the command that writes output for rows of its test split."""

    recipe: dict[str, Any]
    command: str | None = None
    inputs: str | None = None
    """Column of the predictions that is the input of `kit generate`."""
    columns: tuple[str, ...] = ()
    """Columns of the predictions that are the input of `kit predict`."""
    arguments: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())
    """Jobs whose run folder the recipe names, as {NAME}."""


def translation(model: dict[str, Any], data: dict[str, Any] = DATES, **sections: dict[str, Any]) -> Job:
    return Job(
        {
            "task": "translation", "model": model, "tokenizer": {**CHARACTERS, **sections.get("tokenizer", {})},
            "data": data, "train": {**TRAIN, "tokens_per_batch": 1024, **sections.get("train", {})},
            "eval": SEQ2SEQ_EVAL,
        },
        "generate", "source", arguments=("--scores",),
    )  # fmt: skip


def labeling(task: str, data: dict[str, Any], metrics: list[str], columns: tuple[str, ...], **more: Any) -> Job:
    return Job(
        {
            "task": task, "model": more.pop("model", BERT), "tokenizer": more.pop("tokenizer", WORDPIECE),
            "data": {"sizes": {"train": 1000, "validation": 60, "test": 200}, **data},
            "train": {**TRAIN, "batch_size": 16}, "eval": {"steps": 50, "metrics": metrics, **more},
        },
        "predict", columns=columns,
    )  # fmt: skip


JOBS: dict[str, Job] = {
    "translation_gru": translation(
        {"type": "rnn_seq2seq", "cell": "gru", "attention_query": "current", "context_to": ["readout"], **RNN},
        tokenizer={"shared": False},
    ),
    "translation_lstm": translation(
        {
            "type": "rnn_seq2seq", **RNN, "cell": "lstm", "encoder_layers": 2, "decoder_layers": 2,
            "attention": "keyed", "num_attention_heads": 2, "context_to": ["input", "readout"], "embedding_noise": 0.05,
        },
        train={"label_smoothing_factor": 0.1, "micro_batches": 2},
    ),
    "scheduled_sampling": translation(
        {"type": "rnn_seq2seq", "cell": "gru", "scheduled_sampling": 0.5, **RNN},
        train={"sampling_start": 20, "sampling_steps": 50},
    ),
    "transformer": translation(
        {
            "type": "transformer_seq2seq", "hidden_size": 48, "encoder_layers": 2, "decoder_layers": 2,
            "num_attention_heads": 2, "intermediate_size": 96, "dropout": 0.1,
        },
        train={"mixed_precision": "bf16", "ema_decay": 0.9},
    ),
    "streaming": translation(
        {"type": "rnn_seq2seq", "cell": "gru", **RNN},
        {"path": "{corpus}", "source": "source", "target": "target", "streaming": True, "buffer_size": 300,
         "max_length": 40},
    ),
    "rnn_lm": Job(
        {
            "task": "causal_lm",
            "model": {"type": "rnn_lm", "cell": "lstm", "embedding_size": 32, "hidden_size": 48, "num_hidden_layers": 2,
                      "dropout": 0.2},
            "tokenizer": {"train": "byte_bpe", "vocab_size": 600},
            "data": {"path": "builtin:pydocs", "block_size": 32, "carry_state": True},
            "train": {**TRAIN, "tokens_per_batch": 1024},
            "eval": {"steps": 50, "prompt_tokens": 4, "max_new_tokens": 8},
        },
        "generate", "prompt", arguments=("--max-new-tokens", "8"),
    ),
    "gpt": Job(
        {
            "task": "causal_lm",
            "model": {"type": "gpt2", "n_embd": 48, "n_layer": 2, "n_head": 2, "n_positions": 64},
            "tokenizer": {"train": "byte_bpe", "vocab_size": 600},
            "data": {"path": "builtin:pydocs", "block_size": 64},
            "train": {**TRAIN, "tokens_per_batch": 1024},
            "eval": {"steps": 50, "prompt_tokens": 4, "max_new_tokens": 8},
        },
        "generate", "prompt", arguments=("--max-new-tokens", "8"),
    ),
    "masked_lm_pairs": Job(
        {
            "task": "masked_lm", "model": BERT, "tokenizer": {**WORDPIECE, "lowercase": True},
            "data": {"path": "builtin:pydocs", "pairs": "next_sentence", "block_size": 64, "whole_word_mask": True},
            "train": {**TRAIN, "tokens_per_batch": 1024}, "eval": {"steps": 50},
        },
    ),
    "classification": labeling(
        "classification", {"path": "builtin:date_language"}, ["accuracy", "f1_macro"], ("text",), tokenizer=CHARACTERS
    ),
    "tagging": labeling(
        "tagging", {"path": "builtin:date_tags", "scheme": "BIO"}, ["entity_f1", "tag_accuracy"], ("tokens",)
    ),
    "question_answering": labeling(
        "question_answering",
        {"path": "builtin:date_questions", "max_length": 96, "doc_stride": 16, "max_question_length": 24},
        ["squad_f1"], ("question", "context"), tokenizer={**WORDPIECE, "vocab_size": 1500},
    ),
    "instruction_tuning": Job(
        {
            "task": "instruction_tuning", "model": {"pretrained": "{gpt}"},
            "peft": {"method": "lora", "target_modules": "all-linear", "rank": 4, "alpha": 8, "dropout": 0.05},
            "data": {"path": "builtin:date_instructions", "prompt": "prompt", "answer": "answer",
                     "template": "{prompt}\n", "max_length": 64,
                     "sizes": {"train": 600, "validation": 40, "test": 100}},
            "train": {**TRAIN, "batch_size": 16},
            "eval": {"steps": 50, "metrics": ["exact_match", "rouge1"], "max_new_tokens": 10},
        },
        needs=("gpt",),  # not compared: `kit generate` of 0.1 left out the template that the model was trained with
    ),
    "captioning": Job(
        {
            "task": "captioning",
            "model": {"type": "rnn_captioner", "image_size": 32, "cnn_channels": [8, 16], "cnn_blocks": 1,
                      "cell": "gru", **RNN},
            "tokenizer": {"train": "word", "min_frequency": 1},
            "data": {"path": "builtin:shapes", "sizes": {"train": 400, "validation": 30, "test": 60}},
            "train": {**TRAIN, "batch_size": 16},
            "eval": {"steps": 50, "metrics": ["bleu"], "num_beams": 2, "max_new_tokens": 12},
        },
    ),
    "dialogue": Job(
        {
            "task": "dialogue",
            "model": {"type": "hred", "cell": "lstm", **RNN, "attention": "general", "include_utterances": True},
            "tokenizer": {"train": "word", "min_frequency": 1},
            "data": {"path": "builtin:dialogues", "target": "response", "answer": "answer",
                     "sizes": {"train": 1000, "validation": 60, "test": 200}},
            "train": {**TRAIN, "batch_size": 16},
            "eval": {"steps": 50, "metrics": ["bleu", "distinct_1"], "max_new_tokens": 12},
        },
        "generate", "turns",
    ),
    "forecasting": Job(
        {
            "task": "forecasting",
            "model": {"type": "rnn_forecaster", "cell": "gru", "hidden_size": 32, "loss": "gaussian",
                      "scheduled_sampling": 1.0},
            "data": {"path": "builtin:pendulum", "targets": ["values"], "context": ["context"], "history": 20,
                     "horizon": 20, "stride": 10, "sizes": {"train": 60, "validation": 10, "test": 20}},
            "train": {**TRAIN, "batch_size": 16, "sampling_start": 20, "sampling_steps": 50},
            "eval": {"steps": 50, "metrics": ["mse", "mae"]},
        },
        "predict", columns=("values", "context"),
    ),
}  # fmt: skip


def record(folder: Path, source: Path, inputs: Path, old_names: bool, names: list[str]) -> None:
    """Run the jobs with the kit in the folder `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "corpus"
    write_corpus(corpus)
    for name in names:
        job = JOBS[name]
        run = folder / name
        if (run / "model").is_dir():
            print(f"{name}: recorded before", flush=True)
            continue
        paths = {"corpus": str(corpus), **{needed: str(folder / needed) for needed in job.needs}}
        recipe = folder / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(filled(job.recipe, paths, old_names), sort_keys=False), encoding="utf-8")
        kit(source, "train", recipe, "--output", run)
        if job.command is not None:
            if inputs == folder:
                write_inputs(job, run, folder / f"{name}.input.jsonl")
            input_file = inputs / f"{name}.input.jsonl"
            if job.command == "generate":
                output: tuple[Path, ...] = (folder / f"{name}.out",)
                input_file = as_lines(input_file, folder / f"{name}.input.txt")
            else:
                output = (folder / f"{name}.out.csv", folder / f"{name}.out.jsonl")
            for path in output:
                kit(source, job.command, run, input_file, "--output", path, *job.arguments)
        print(f"{name}: recorded", flush=True)


def kit(source: Path, *arguments: object) -> None:
    """The command line of the kit in the folder `source`."""
    environment = {**os.environ, "PYTHONPATH": str(source.resolve()), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "kit", *map(str, arguments)]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")


def filled(recipe: dict[str, Any], paths: dict[str, str], old_names: bool) -> dict[str, Any]:
    """The recipe with the paths of this side, and with the keys that it knows."""
    resolved = json.loads(json.dumps(recipe))
    for section in resolved.values():
        if isinstance(section, dict):
            for key in ("path", "pretrained"):
                if str(section.get(key)).startswith("{"):
                    section[key] = paths[section[key].strip("{}")]
    if old_names:
        for new, old in RENAMED_KEYS.items():
            section, key = new.split(".")
            if section == "model" and resolved["model"].get("type") in FOREIGN_MODELS:
                continue
            if key in resolved.get(section, {}):
                moved_to, old_key = old.split(".")
                resolved[moved_to][old_key] = resolved[section].pop(key)
    return resolved


def write_corpus(folder: Path) -> None:
    """A translation corpus in files, for the streamed job: sequences of letters, reversed."""
    folder.mkdir(exist_ok=True)
    draw = random.Random(0)
    for split, count in (("train", 1500), ("validation", 40), ("test", 200)):
        texts = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 8))) for _ in range(count)]
        rows = [json.dumps({"source": text, "target": text[::-1]}) for text in texts]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_inputs(job: Job, run: Path, path: Path) -> None:
    """The rows of the test split that `kit generate` or `kit predict` reads."""
    predictions = run / "predictions" / "test.jsonl"
    rows = [json.loads(line) for line in predictions.read_text(encoding="utf-8").splitlines()]
    if job.inputs is not None:
        rows = [{job.inputs: row.get(job.inputs)} for row in rows]
        if job.inputs == "prompt" and (not rows or rows[0]["prompt"] is None):
            rows = [{"prompt": f"The {word} of"} for word in ("value", "class", "name", "list", "statement")]
    elif job.recipe["task"] == "forecasting":
        rows = series()
    else:
        rows = [{column: row[column] for column in job.columns} for row in rows]
    written = [json.dumps(row, ensure_ascii=False) for row in rows[:INPUT_ROWS]]
    path.write_text("\n".join(written) + "\n", encoding="utf-8")


def series() -> list[dict[str, Any]]:
    """Series to forecast: sine waves with a drive that is known ahead."""
    return [
        {
            "values": [[math.sin((step + phase) / 5), math.cos((step + phase) / 5)] for step in range(20)],
            "context": [[math.sin(step / 7 + phase)] for step in range(40)],
        }
        for phase in range(20)
    ]


def as_lines(rows: Path, path: Path) -> Path:
    """The inputs as `kit generate` reads them, one on a line; turns as a JSON list."""
    values = [next(iter(json.loads(line).values())) for line in rows.read_text(encoding="utf-8").splitlines()]
    lines = [text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for text in values]
    path.write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n", encoding="utf-8")
    return path


def compare(old: Path, new: Path, names: list[str]) -> int:
    """Print every difference between two folders of results; returns their number."""
    differences = 0
    for name in names:
        job_differences = list(differences_of(name, old, new))
        differences += len(job_differences)
        print(f"{name}: {'equal' if not job_differences else f'{len(job_differences)} differences'}")
        for difference in job_differences[:8]:
            print(f"    {difference}")
    return differences


def differences_of(name: str, old: Path, new: Path) -> Iterator[str]:
    """What differs between the two runs of a job."""
    yield from weight_differences(weights(old / name), weights(new / name))
    mine, theirs = (json.loads((side / name / "results.json").read_text("utf-8")) for side in (old, new))
    for split in ("validation", "test"):
        yield from value_differences(split, mine.get(split), theirs.get(split))
        rows = [read_rows(side / name / "predictions" / f"{split}.jsonl") for side in (old, new)]
        yield from value_differences(f"predictions/{split}", *rows)
    for path in sorted(old.glob(f"{name}.out*")) if JOBS[name].command is not None else ():
        if path.read_bytes() != (new / path.name).read_bytes():
            yield f"{path.name} differs"


def weights(run: Path) -> dict[str, Any]:
    files = sorted((run / "model").glob("*.safetensors"))
    return {name: array for file in files for name, array in load_file(file).items()}


def weight_differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    renamed = {}
    for name, array in old.items():
        for pattern, replacement in RENAMED_PARAMETERS:
            name = re.sub(pattern, replacement, name)
        renamed[name] = array
    for name in sorted(renamed.keys() ^ new.keys()):
        yield f"parameter {name} is only in the {'old' if name in renamed else 'new'} model"
    for name in sorted(renamed.keys() & new.keys()):
        if renamed[name].shape != new[name].shape or renamed[name].tobytes() != new[name].tobytes():
            yield f"parameter {name} differs"


def value_differences(key: str, old: Any, new: Any) -> Iterator[str]:
    """Differences between two values as JSON holds them; numbers may differ by 1e-6."""
    if isinstance(old, dict) and isinstance(new, dict):
        old = {RENAMED_FIGURES.get(name, name): value for name, value in old.items()}
        for name in sorted(old.keys() ^ new.keys()):
            yield f"{key}.{name} is only in the {'old' if name in old else 'new'} results"
        for name in sorted(old.keys() & new.keys()):
            yield from value_differences(f"{key}.{name}", old[name], new[name])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (mine, theirs) in enumerate(zip(old, new, strict=True)):
            yield from value_differences(f"{key}[{index}]", mine, theirs)
    elif isinstance(old, float) and isinstance(new, float):
        if not (math.isclose(old, new, rel_tol=1e-6, abs_tol=1e-6) or (math.isnan(old) and math.isnan(new))):
            yield f"{key}: {old} before, {new} now"
    elif old != new:
        yield f"{key}: {str(old)[:60]!r} before, {str(new)[:60]!r} now"


def read_rows(path: Path) -> list[Any] | None:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line] if path.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--source", type=Path, required=True, help="checkout of the kit to run")
    recording.add_argument("--inputs", type=Path, help="results whose inputs to read [default: make them]")
    recording.add_argument("--dialect", choices=["0.1", "now"], default="now", help="names that this kit knows")
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    for command in (recording, comparing):
        command.add_argument("--only", nargs="+", choices=list(JOBS), default=list(JOBS), metavar="JOB")
    arguments = parser.parse_args()
    if arguments.command == "record":
        folder = arguments.folder.resolve()
        record(
            folder, arguments.source, (arguments.inputs or folder).resolve(), arguments.dialect == "0.1", arguments.only
        )
    else:
        raise SystemExit(min(1, compare(arguments.old, arguments.new, arguments.only)))


if __name__ == "__main__":
    main()
