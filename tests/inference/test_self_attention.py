"""`kit plot` of encoders and causal models: the weights are those of the forward pass of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunKit
from matplotlib.figure import Figure
from support.recipes import make_recipe
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from kit import train
from kit.errors import KitError
from kit.inference.plot import plot
from kit.plots import saving
from kit.prediction.options import PlotOptions


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A BERT that classifies and a GPT, trained for a step."""
    folder = tmp_path_factory.mktemp("attention")
    steps = ["train.max_steps=1", "eval.steps=0"]
    return {
        task: train(make_recipe(folder, task, overrides=[*steps, *more]), folder / task, quiet=True).folder
        for task, more in (("classification", []), ("causal_lm", ["eval.examples=1", "eval.max_new_tokens=4"]))
    }


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    monkeypatch.setattr(saving, "save_figure", lambda figure, path: figures.setdefault(path.name, figure) and path)
    return figures


def test_the_maps_of_an_encoder_are_its_attention(runs: dict[str, Path], drawn: dict[str, Figure]) -> None:
    run = runs["classification"]
    (path,) = plot(run, PlotOptions(sentence="3 maj 1984"))
    assert path == run / "plots" / "encoder_attention.png"
    model = AutoModelForSequenceClassification.from_pretrained(run / "model", attn_implementation="eager").eval()
    inputs = AutoTokenizer.from_pretrained(run / "model")("3 maj 1984", return_tensors="pt")
    with torch.inference_mode():
        expected = model(**inputs, output_attentions=True).attentions[-1][0].numpy()
    figure = drawn["encoder_attention.png"]
    maps = np.stack([axes.images[0].get_array() for axes in figure.axes if axes.images])
    np.testing.assert_allclose(maps, expected, rtol=1e-5)
    assert figure.axes[0].get_xticklabels()[0].get_text() == "[CLS]"


def test_a_run_shows_its_first_prediction_and_a_causal_model_no_later_tokens(
    runs: dict[str, Path], drawn: dict[str, Figure]
) -> None:
    run = runs["causal_lm"]
    plot(run, PlotOptions(layer="1", head="mean", output=run / "maps"))
    (figure,) = drawn.values()
    values = figure.axes[0].images[0].get_array()
    assert np.ma.getmaskarray(values)[np.triu_indices(len(values), 1)].all()
    row = json.loads((run / "predictions" / "test.jsonl").read_text().splitlines()[0])
    tokens = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    text = row["prompt"].removeprefix("</s>")  # special tokens are left out, since tokenizing adds them
    assert tokens[0] == text[0]


def test_plots_of_a_run_include_the_attention_in_every_format(runs: dict[str, Path], kit_here: RunKit) -> None:
    run = runs["classification"]
    for format, start in (("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")):
        done = kit_here("plot", run, "--format", format, "--output", "figures")
        files = [run.parent / line for line in done.stdout.splitlines()]
        assert f"encoder_attention.{format}" in {file.name for file in files}, done.stderr
        written = Path("figures") / f"loss.{format}"
        assert written.read_bytes().startswith(start)
    assert kit_here("plot", run, "--sentence", "a", "--output", "one.pdf").returncode == 0
    assert Path("one.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sentence": "a", "kind": "decoder"}, "has encoder attention only"),
        ({"sentence": " "}, "the sentence is empty"),
        ({"sentence": "a", "target": "b"}, "--target has no effect"),
        ({"sentence": "a", "head": "9"}, "--head 9: each layer has 2 heads"),
        ({"format": "gif"}, '--format "gif": expected one of png, svg, pdf'),
        ({"sentence": "a", "output": Path("x.svg"), "format": "png"}, "--format has no effect"),
        ({"sentence": "a", "output": Path("x.gif")}, "ends in .png, .svg, .pdf"),
    ],
)
def test_mistakes(runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object],
                  message: str) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KitError) as mistake:
        plot(runs["classification"], PlotOptions(**options))  # type: ignore[arg-type]
    assert message in str(mistake.value)
