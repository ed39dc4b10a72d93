"""Captioning: training, resuming, evaluation, captions of files, plots, proofs, and the model without kit."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.scripts import script

import kit as kit_package
from kit import evaluate, load_recipe, train
from kit.data.batching.ragged import IGNORE_INDEX
from kit.data.builtin import shapes
from kit.decoding.search import search
from kit.errors import DataError, RecipeError
from kit.evaluation.metrics import compute_metrics
from kit.runs.prepare import prepare
from kit.runs.verify import verify
from kit.tasks.captioning.examples import CaptionedImages
from kit.tasks.captioning.inference import Captioner
from kit.tasks.captioning.plots import caption_attention

RECIPE = """\
task: captioning
model:
  type: rnn_captioner
  cell: gru
  hidden_size: 16
  cnn_channels: [6, 8]
  image_size: 16
  attention: additive
  num_attention_heads: 2
  dropout: 0.1
tokenizer: {train: word, min_frequency: 1}
data: {path: FOLDER, caption: captions, validation_size: 6, test_size: 8}
train: {max_steps: 12, batch_size: 16, learning_rate: 1e-2, logging_steps: 1, save_steps: 4, save_total_limit: 5}
eval: {steps: 6, metrics: [exact_match, bleu, chrf, rougeL, cider], num_beams: 2, max_new_tokens: 12,
       group_by: [relation]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn scenes as an image folder, each with two captions."""
    path = tmp_path_factory.mktemp("scenes")
    rows = shapes.generate({"train": 40, "validation": 1, "test": 1})["train"].to_pylist()
    lines = []
    for number, row in enumerate(rows):
        (path / f"{number}.png").write_bytes(row["image"]["bytes"])
        captions = [row["caption"], row["caption"].removeprefix("a ")]
        lines.append({"file_name": f"{number}.png", "captions": captions, "relation": row["relation"]})
    (path / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (path / "recipe.yaml").write_text(RECIPE.replace("FOLDER", str(path)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on them."""
    return train(load_recipe(folder / "recipe.yaml"), tmp_path_factory.mktemp("captioner") / "run").folder


def rows_of(run: Path, split: str = "test") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "predictions" / f"{split}.jsonl").read_text().splitlines()]


def test_run_folder_contents(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())
    assert results["data"]["examples"] == {"train": 52, "validation": 12, "test": 16}  # captions, two of each picture
    assert results["test"]["examples"] == len(rows_of(run)) == 8
    assert set(results["test"]["by"]["relation"]) == {row["relation"] for row in rows_of(run)}
    assert all(len(row["target"]) == 2 and "image_bytes" not in row for row in rows_of(run))
    predictions, targets = ([row[name] for row in rows_of(run)] for name in ("prediction", "target"))
    again = compute_metrics(["exact_match", "bleu", "chrf", "rougeL", "cider"], predictions, targets)
    assert {name: results["test"][name] for name in again} == again
    assert (run / "plots" / "attention_1.png").read_bytes().startswith(b"\x89PNG")
    card = (run / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: image-to-text" in card
    assert "plots/attention_3.png" in card
    assert str(run.parent) not in card


def test_each_epoch_sees_every_caption_with_its_own_picture(folder: Path) -> None:
    prepared = prepare(load_recipe(folder / "recipe.yaml"))
    examples = prepared.encoded["train"].examples
    assert isinstance(examples, CaptionedImages)
    rows = prepared.splits.datasets["train"]
    expected = sorted(
        (tuple(examples.images.pixels(np.array([index])).flatten().tolist()), caption)
        for index, captions in enumerate(rows["caption"])
        for caption in captions
    )
    make = prepared.make_batch
    for epoch in range(2):
        seen = []
        for step in range(prepared.plan.steps_per_epoch):
            for part in prepared.plan.step(epoch * prepared.plan.steps_per_epoch + step):
                batch = make(part, np.random.default_rng(0))
                for pixels, labels in zip(batch["pixel_values"], batch["labels"], strict=True):
                    text = prepared.tokenizers.decode([labels[labels != IGNORE_INDEX].tolist()])[0]
                    seen.append((tuple(pixels.flatten().tolist()), text))
        assert sorted(seen) == expected


def test_resume_is_bit_identical(run: Path, folder: Path, tmp_path: Path) -> None:
    for part in ("run.json", "recipe.yaml", "tokenizer", "checkpoints/step-4"):
        copy = shutil.copytree if (run / part).is_dir() else shutil.copy
        (tmp_path / "run" / part).parent.mkdir(parents=True, exist_ok=True)
        copy(run / part, tmp_path / "run" / part)
    train(load_recipe(run / "recipe.yaml"), tmp_path / "run", resume=True)
    actual, expected = (load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "run", run))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)
    assert rows_of(tmp_path / "run") == rows_of(run)


def test_evaluation_is_reproducible_and_independent_of_batches(run: Path) -> None:
    results = json.loads((run / "results.json").read_text())["test"]
    alone = evaluate(run, "test", ["eval.tokens_per_batch=1"])
    assert [row["prediction"] for row in alone.rows] == [row["prediction"] for row in rows_of(run)]
    assert alone.figures["loss"] == pytest.approx(results["loss"], rel=1e-5)
    assert alone.figures["chrf"] == results["chrf"]


def test_files_of_paths_are_captioned_past_bad_lines(kit_here, run: Path, folder: Path, tmp_path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    paths = [str(folder / row["source"]) for row in rows_of(run)]
    lines = [paths[0], str(tmp_path / "gone.png"), *paths[1:3], "", str(tmp_path / "broken.png"), *paths[3:]]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    done = kit_here("generate", run, "lines.txt", "--output", "out.txt")
    assert done.returncode == 0, done.stderr
    assert "2 lines named no image that can be read (FileNotFoundError: " in done.stderr
    assert "the output is empty: lines 2, 6" in done.stderr
    right = [row["prediction"] for row in rows_of(run)]
    assert (tmp_path / "out.txt").read_text().splitlines() == [right[0], "", *right[1:3], "", "", *right[3:]]
    refused = kit_here("generate", run, "lines.txt", "--target-language", "de")
    assert refused.returncode == 2
    assert "--target-language has no effect on" in refused.stderr


@pytest.mark.soak
def test_pipeline_with_and_without_kit(run: Path, folder: Path, tmp_path: Path) -> None:
    paths = [str(folder / row["source"]) for row in rows_of(run)][:3]
    right = [[{"generated_text": row["prediction"]}] for row in rows_of(run)[:3]]
    pipe = kit_package.pipeline("image-to-text", run)
    assert pipe(paths[0]) == right[0]
    assert pipe([Image.open(paths[0]), Path(paths[1]), paths[2]]) == right
    assert pipe(paths, batch_size=2) == right
    assert pipe([]) == []
    assert len(pipe(paths[0], num_beams=3, num_return_sequences=3)) == 3
    with pytest.raises(ValueError, match=r"gone\.png.*cannot be read as an image"):
        pipe("gone.png")
    with pytest.raises(ValueError, match="takes paths of files or PIL images"):
        pipe(3)
    again = kit_package.pipeline(
        "image-to-text", pipe.model, tokenizer=pipe.tokenizer, image_processor=pipe.image_processor
    )
    assert again(paths[0]) == right[0]
    program = f"""
import sys
sys.modules["kit"] = None
from transformers import pipeline
pipe = pipeline("image-to-text", model={str(run / "model")!r}, trust_remote_code=True)
print(pipe({paths!r}) == {right!r})
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, env={**os.environ, "HF_HOME": str(tmp_path / "hf"), "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.stdout.strip() == "True", done.stderr


def test_heat_maps_equal_attention_of_each_search_step(run: Path, folder: Path) -> None:
    captioner = Captioner(run)
    seen = caption_attention(captioner.model, captioner.tokenizers, captioner.reader, folder / "3.png")
    reader = captioner.reader
    batch = {"pixel_values": reader.pixels(reader.resized(reader.open(folder / "3.png"))[None])}
    (hypothesis,) = search(captioner.model, batch, captioner.settings, attention=True)[0]
    assert hypothesis.attention is not None
    assert seen.weights.shape == (2, len(hypothesis.tokens), 4, 4)
    torch.testing.assert_close(seen.weights.flatten(2), hypothesis.attention.float())
    forced = caption_attention(
        captioner.model, captioner.tokenizers, captioner.reader, folder / "3.png", "a red circle"
    )
    assert len(forced.tokens) == 4


def test_plots_of_a_captioner(kit_here, run: Path, folder: Path, tmp_path: Path) -> None:
    done = kit_here("plot", run, "--image", folder / "3.png", "--output", "map.png", "--head", "2")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    done = kit_here("plot", run, "--output", "maps.png")
    assert done.returncode == 2
    assert "--output maps.png is one file, but there are 3 plots: name a folder" in done.stderr
    assert not (tmp_path / "maps.png").exists()
    done = kit_here("plot", run, "--output", "all")
    assert done.returncode == 0, done.stderr
    assert {"loss.png", "attention_1.png"} <= {path.name for path in (tmp_path / "all").iterdir()}
    for arguments, message in (
        (["--sentence", "x"], "--sentence has no effect on"),
        (["--head", "3"], "--head 3: the model has 2 heads"),
        (["--kind", "encoder"], "a captioning model has cross-attention only"),
        (["--image", "gone.png"], "gone.png"),
    ):
        refused = kit_here("plot", run, *arguments, "--output", "none")
        assert refused.returncode == 2
        assert message in refused.stderr
    assert not (tmp_path / "none").exists()


def test_verify_and_data_report_of_a_captioner(kit_here, run: Path, folder: Path) -> None:
    checks = verify(run)
    assert all(check.passed for check in checks), [check for check in checks if not check.passed]
    names = {check.name for check in checks}
    assert {"padding", "cache", "beam search", "kit search", "overfitting", "accumulation", "fused layers"} <= names
    done = kit_here("data", folder / "recipe.yaml")
    assert done.returncode == 0, done.stderr
    assert "rnn_captioner" in done.stdout
    assert "could not be measured" not in done.stdout


def test_without_attention_there_is_nothing_to_draw_and_grey_pictures_are_read(folder: Path, tmp_path: Path) -> None:
    choices = ["model.attention=none", "model.context_to=[]", "model.num_attention_heads=1", "model.num_channels=1"]
    quick = ["train.max_steps=1", "eval.steps=0", "eval.num_beams=1", "data.max_length=8"]
    run = train(load_recipe(folder / "recipe.yaml", [*choices, *quick]), tmp_path / "run")
    assert not list((tmp_path / "run" / "plots").glob("attention*"))
    assert run.results["data"]["left_out"]["max_length"] > 0
    (output,) = next(iter(Captioner(tmp_path / "run").stream([folder / "1.png"])))
    assert isinstance(output.text, str)
    with pytest.raises(DataError, match=r"line 2 named no image .*gone\.png"):
        list(Captioner(tmp_path / "run").stream([folder / "1.png", "gone.png"]))


def test_transformers_backbone_reads_images(folder: Path, tmp_path: Path) -> None:
    resnet = "{model_type: resnet, embedding_size: 4, hidden_sizes: [4, 6], depths: [1, 1], layer_type: basic}"
    quick = [f"model.backbone_config={resnet}", "train.max_steps=2", "eval.steps=0"]
    run = train(load_recipe(folder / "recipe.yaml", quick), tmp_path / "run")
    paths = [folder / row["source"] for row in rows_of(run.folder)]
    outputs = [best.text for (best,) in Captioner(run.folder).stream(paths)]
    assert outputs == [row["prediction"] for row in rows_of(run.folder)]
    # its statistics, which batches of another size would change, are kept with the weights
    assert any(name.endswith("running_mean") for name in load_file(run.folder / "model" / "model.safetensors"))
    with pytest.raises(RecipeError, match=r"train\.micro_batches: the backbone normalizes over the images"):
        prepare(load_recipe(folder / "recipe.yaml", [*quick, "train.micro_batches=2"]))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.image=captions", 'image and caption are both "captions"'),
        ("data.validation_share=0.1", "cannot be combined with data.validation_size"),
        ("data.streaming=true", "task: captioning does not support it"),
        ("eval.group_by=[length]", "an image has no length"),
        ("model.background=white", "background must be a color such as #ffffff"),
        ("model.type=rnn_seq2seq", "is not a model type of kit"),
    ],
)
def test_contradictory_recipes_are_rejected(folder: Path, override: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe(folder / "recipe.yaml", [override])


def test_baselines_share_the_images(folder: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    baselines = script("caption_baselines")
    baselines.BLOCK_SIZE = 7
    baselines.main([str(folder / "recipe.yaml"), "eval.metrics=[chrf]"])
    table = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines()]

    def pixels(name: str) -> np.ndarray:
        return np.asarray(Image.open(folder / name).resize((16, 16), Image.Resampling.BILINEAR), dtype=np.float64)

    lines = (folder / "metadata.jsonl").read_text().splitlines()
    captions = {line["file_name"]: line["captions"] for line in map(json.loads, lines)}
    held_out = {row["source"] for split in ("test", "validation") for row in rows_of(run, split)}
    answers = []
    for row in rows_of(run):
        known = [name for name in captions if name not in held_out]
        best = min(known, key=lambda name: float(((pixels(name) - pixels(row["source"])) ** 2).sum()))
        answers.append(captions[best][0])
    expected = compute_metrics(["chrf"], answers, [row["target"] for row in rows_of(run)])["chrf"]
    assert float(table[3][1]) == pytest.approx(float(expected), rel=1e-3)
    assert table[0][0].strip() == "test: 8 images"
