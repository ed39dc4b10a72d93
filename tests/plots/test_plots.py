"""Plots: their content, readable labels in any script, and no side effects on the process."""

import io
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from kit import load_recipe
from kit.errors import DataError, RunError
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.plots.attention import attention_figure
from kit.plots.curves import CurveNotes, curve_figures
from kit.plots.fonts import MISSING_NOTE
from kit.plots.saving import save_figure, save_figures
from kit.tasks.forecasting.plots import forecast_figure
from kit.tasks.registry import create_task

pytestmark = pytest.mark.figures


def weights(*shape: int) -> np.ndarray:
    values = np.random.default_rng(0).random(shape)
    return values / values.sum(axis=-1, keepdims=True)


def labels(figure: Figure, axis: str) -> list[str]:
    axes = figure.axes[0]
    return [text.get_text() for text in (axes.get_xticklabels() if axis == "x" else axes.get_yticklabels())]


def notes(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.texts]


def test_source_runs_along_x_and_output_along_y() -> None:
    values = weights(2, 3)
    figure = attention_figure(values, ["<s>", "▁ein", " Hund"], ["a", "</s>"], title="costs $5 or $6")
    assert labels(figure, "x") == ["START", "␣ein", "␣Hund"]
    assert labels(figure, "y") == ["a", "END"]
    np.testing.assert_array_equal(figure.axes[0].images[0].get_array(), values)
    assert notes(figure) == ["costs $5 or $6"]
    assert figure.axes[0].images[0].get_clim() == (0, values.max())


def test_dollar_signs_are_not_formulas(tmp_path: Path) -> None:
    figure = attention_figure(weights(1, 2), [r"$\nonsense$", "$x$"], ["$$"], title=r"$\nonsense$")
    figure.savefig(tmp_path / "money.png")  # matplotlib would refuse the formula


def test_heads_form_a_grid_with_one_scale() -> None:
    values = weights(6, 4, 5)
    figure = attention_figure(values, list("abcde"), list("wxyz"))
    maps = [axes for axes in figure.axes if axes.images]
    assert len(maps) == 6
    for head, axes in enumerate(maps):
        np.testing.assert_array_equal(axes.images[0].get_array(), values[head])
        assert axes.images[0].get_clim() == (0, values.max())
        assert f"head {head + 1}" in [text.get_text() for text in axes.texts]
    assert len({round(axes.get_position().x0, 6) for axes in maps}) == 3
    assert len({round(axes.get_position().y0, 6) for axes in maps}) == 2


def test_layers_and_heads_form_a_grid_with_named_rows_and_columns() -> None:
    values = weights(3, 4, 2, 5)
    figure = attention_figure(values, list("abcde"), ["y", "z"], "all of them")
    maps = [axes for axes in figure.axes if axes.images]
    corners = [(axes.get_position().x0, axes.get_position().y0) for axes in maps]
    for number, axes in enumerate(maps):
        layer, head = divmod(number, 4)
        np.testing.assert_array_equal(axes.images[0].get_array(), values[layer, head])
        assert axes.get_title() == (f"head {head + 1}" if layer == 0 else "")
        assert [text.get_text() for text in axes.get_yticklabels()] == (["y", "z"] if head == 0 else [])
        assert corners[number][0] == corners[head][0]
        assert corners[number][1] == corners[4 * layer][1]
    assert notes(figure) == ["layer 1", "layer 2", "layer 3", "all of them"]
    middles = [text.get_position()[1] for text in figure.texts[:3]]
    for middle, (_, bottom) in zip(middles, corners[::4], strict=True):
        assert bottom < middle < bottom + maps[0].get_position().height


def test_maps_that_are_not_heads_have_captions_of_their_own() -> None:
    figure = attention_figure(weights(2, 3, 4), list("abcd"), list("xyz"), captions=["layer 1", "layer 2"])
    assert [axes.texts[0].get_text() for axes in figure.axes if axes.images] == ["layer 1", "layer 2"]


def test_causal_maps_mask_the_future_but_show_leaks() -> None:
    values = np.tril(weights(4, 4))
    values[3, 0] = 0.0  # looked at, and found nothing
    names = ("attends to output so far", "output")
    figure = attention_figure(values, list("abcd"), list("bcde"), names=names, causal=True)
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(shown), np.triu(np.ones((4, 4), dtype=bool), 1))
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == names
    values[0, 2] = 0.5
    leak = attention_figure(values, list("abcd"), list("bcde"), causal=True).axes[0].images[0].get_array()
    assert leak[0, 2] == 0.5


@pytest.mark.parametrize(("layers", "heads", "tokens"), [(3, 4, 20), (6, 8, 40)])
def test_a_large_grid_has_every_label_at_a_readable_size(layers: int, heads: int, tokens: int) -> None:
    words = [f"▁word{number}" for number in range(tokens)]
    figure = attention_figure(weights(layers, heads, tokens, tokens), words, words)
    for axis, written in (("x", figure.axes[0].get_xticklabels()), ("y", figure.axes[0].get_yticklabels())):
        assert len(labels(figure, axis)) == tokens
        assert min(text.get_fontsize() for text in written) * figure.dpi / 72 > 11  # pixels
    assert figure.texts[0].get_fontsize() > 0.4 * figure.get_size_inches()[0]  # also readable in the whole figure
    assert max(figure.get_size_inches() * figure.dpi) < 5600


def test_maps_fill_a_page_whatever_their_shape() -> None:
    for sources, outputs in ((60, 10), (10, 60), (20, 20)):
        figure = attention_figure(weights(6, outputs, sources), ["a"] * sources, ["b"] * outputs)
        width, height = figure.get_size_inches()
        assert 0.5 < width / height < 3


def test_single_characters_stand_upright_and_words_do_not() -> None:
    def turned(tokens: list[str]) -> list[float]:
        axes = attention_figure(weights(2, len(tokens)), tokens, ["x", "y"]).axes[0]
        return [text.get_rotation() for text in axes.get_xticklabels()]

    assert turned(["1", "▁", "</s>"]) == [0, 0, 90]
    assert turned(["1", "word", "</s>"]) == [90, 90, 90]


def test_a_tensor_is_taken_as_it_comes_from_a_model() -> None:
    import torch

    tensor = torch.softmax(torch.randn(2, 3, requires_grad=True), -1).to(torch.bfloat16)
    shown = attention_figure(tensor, list("abc"), list("de")).axes[0].images[0].get_array()
    np.testing.assert_allclose(shown, tensor.detach().float().numpy())


@pytest.fixture
def bundled_fonts() -> Iterator[None]:
    """Only the fonts bundled with matplotlib, regardless of what is installed on this machine."""
    from matplotlib import get_data_path
    from matplotlib.font_manager import fontManager

    known = list(fontManager.ttflist)
    fontManager.ttflist[:] = [font for font in known if str(font.fname).startswith(get_data_path())]
    yield
    fontManager.ttflist[:] = known


@pytest.mark.usefixtures("bundled_fonts")
def test_characters_without_a_font_show_as_code_points() -> None:
    figure = attention_figure(weights(1, 6), ["a日b", "本" * 9, "日 本", "\u202e", "\n", "\u200d"], ["שלום"])
    assert labels(figure, "x") == [
        "a U+65E5 b",
        "U+672C U+672C U+672C…",
        "U+65E5 ␣ U+672C",
        "U+202E",
        "⏎",
        "U+200D",
    ]
    assert labels(figure, "y") == ["שלום"]
    assert notes(figure) == [MISSING_NOTE]
    assert notes(attention_figure(weights(1, 2), ["\u202e", "\t"], ["Größe"])) == []


@pytest.mark.usefixtures("bundled_fonts")
def test_an_installed_font_is_used_where_it_has_the_characters(tmp_path: Path) -> None:
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from matplotlib.font_manager import fontManager

    letters = "日本"
    glyphs = [".notdef", "one", "two"]
    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    pen.lineTo((500, 0))
    pen.lineTo((500, 700))
    pen.closePath()
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(dict(zip(map(ord, letters), glyphs[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(glyphs, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (600, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "Kit-Test: Sans", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, usWinAscent=800, usWinDescent=200, usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "test.ttf")

    assert labels(attention_figure(weights(1, 1), [letters], ["x"]), "x") == ["U+65E5 U+672C"]
    fontManager.addfont(tmp_path / "test.ttf")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that it has to draw as a box
        figure = attention_figure(weights(1, 1), [f"é{letters}"], ["x"])
        figure.savefig(tmp_path / "picture.png")
    assert labels(figure, "x") == [f"é{letters}"]
    assert notes(figure) == []


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3), st.text(max_size=20))
@settings(max_examples=15, deadline=None)
def test_any_text_is_drawn_without_a_warning(tokens: list[str], title: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = attention_figure(weights(len(tokens), len(tokens)), tokens, tokens, title)
        figure.savefig(io.BytesIO())
    for label in labels(figure, "x"):
        visible = label.replace("\u200c", "").replace("\u200d", "")
        assert visible.isprintable()
        assert visible.strip()


def test_size_grows_with_the_tokens_up_to_a_limit(tmp_path: Path) -> None:
    sizes = []
    for count in (2, 20, 900):
        tokens = [f"token{number}" for number in range(count)]
        figure = attention_figure(weights(count, count), tokens, tokens)
        sizes.append(tuple(figure.get_size_inches() * figure.dpi))
        if count == 20:
            figure = attention_figure(weights(count, count), tokens, tokens)
            with Image.open(save_figure(figure, tmp_path / "a.png")) as image:
                image.load()
                assert image.size == pytest.approx(sizes[-1], rel=0.1)
    assert sizes[0] < sizes[1] < sizes[2]
    assert max(sizes[2]) < 5600
    assert 100 < len(labels(figure, "x")) < 900
    assert labels(figure, "x")[1] != "token1"


def test_the_picture_replaces_an_older_one_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "map.png"
    save_figure(attention_figure(weights(1, 1), ["a"], ["b"]), path)
    before = path.read_bytes()

    def fail(self: Figure, *arguments: object, **named: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="no space"):
        save_figure(attention_figure(weights(1, 1), ["a"], ["b"]), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "values",
    [weights(3, 2), weights(2, 2, 2, 2, 3), weights(3), np.zeros((0, 2, 3)), np.full((2, 3), np.nan)],
    ids=["swapped", "five axes", "one axis", "no head", "nan"],
)
def test_weights_that_do_not_fit_are_refused(values: np.ndarray) -> None:
    with pytest.raises(DataError, match="Attention weights"):
        attention_figure(values, list("abc"), list("de"))


def test_flat_weights_and_empty_tokens_are_drawn(tmp_path: Path) -> None:
    figure = attention_figure(np.zeros((1, 2)), ["", "a"], [""])
    assert labels(figure, "x") == ["(empty)", "a"]
    figure.savefig(tmp_path / "flat.png")


def write_log(file: Path, lines: list[object], end: str = "\n") -> Path:
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + end)
    return file


LOG: list[object] = [
    {"step": 10, "epoch": 0.5, "train_loss": 3.0, "learning_rate": 1e-3, "grad_norm": 1.0},
    {"step": 20, "epoch": 1.0, "train_loss": float("nan"), "learning_rate": 5e-4},
    {"step": 20, "validation": {"loss": 2.5, "perplexity": 12.2, "bleu": 4.0, "bleu_signature": "x", "examples": 9}},
    {"step": 30, "train_loss": 2.0, "learning_rate": 1e-4},
    {"step": 40, "validation": {"loss": 2.6, "perplexity": 13.4, "bleu": 5.5, "by": {"language": {}}}},
]


def test_one_picture_for_each_kind_of_figure(tmp_path: Path) -> None:
    pictures = save_figures(curve_figures(write_log(tmp_path / "metrics.jsonl", LOG)), tmp_path / "plots")
    assert [path.name for path in pictures] == [
        "loss.png",
        "learning_rate.png",
        "validation_perplexity.png",
        "validation_bleu.png",
    ]
    assert sorted(pictures) == sorted((tmp_path / "plots").iterdir())
    for path in pictures:
        with Image.open(path) as image:
            image.load()
            assert image.width > 500


def test_the_curves_hold_the_logged_values(tmp_path: Path) -> None:
    figures = curve_figures(write_log(tmp_path / "m.jsonl", [*LOG, {"step": 30, "train_loss": 1.5}]))
    drawn = {
        name: {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].lines}
        for name, figure in figures.items()
    }
    assert drawn["loss"] == {
        "training": ([10, 30], [3.0, 1.5]),
        "validation": ([20, 40], [2.5, 2.6]),
        "best 2.5 at step 20": ([20], [2.5]),
    }
    assert drawn["validation_bleu"]["best 5.5 at step 40"] == ([40], [5.5])


def test_curves_state_what_differs(tmp_path: Path) -> None:
    figures = curve_figures(write_log(tmp_path / "m.jsonl", LOG), CurveNotes("with dropout", "greedy search"))
    assert figures["loss"].axes[0].lines[0].get_label() == "training, with dropout"
    assert figures["validation_bleu"].axes[0].get_ylabel() == "BLEU, greedy search"
    assert figures["validation_perplexity"].axes[0].get_ylabel() == "perplexity"


def test_curve_notes_come_from_recipe_and_model() -> None:
    options = ["train.label_smoothing_factor=0.1", "eval.num_beams=4", "eval.num_beams_while_training=2"]
    recipe = load_recipe("dates_rnn", options)
    config = RNNSeq2SeqConfig(dropout=0.3)
    notes = create_task(recipe).curve_notes(config)
    assert notes == CurveNotes("with dropout, label smoothing", "beam search (2 beams)")
    weighted = load_recipe(
        "dates_language", ["data.problem_type=multi_label_classification", "data.pos_weight=balanced"]
    )
    assert create_task(weighted).curve_notes(None).training_loss == "with class weights"
    averaged = create_task(load_recipe("pendulum", ["train.ema_decay=0.99"])).curve_notes(None).training_loss
    assert averaged.endswith("without averaged weights")


@pytest.mark.parametrize("count", [1, 4, 7])
def test_every_target_of_a_forecast_is_drawn(count: int) -> None:
    names = [f"value {number}" for number in range(count)]
    figure = forecast_figure(np.ones((9, count)), np.ones((3, count)), None, names, None)
    assert sorted(axes.get_ylabel() for axes in figure.axes if axes.lines) == names


def test_truncated_last_line_is_skipped(tmp_path: Path) -> None:
    assert curve_figures(write_log(tmp_path / "m.jsonl", [*LOG, '{"step": 50, "tr'], end=""))
    with pytest.raises(RunError, match=r"m\.jsonl, line 1"):
        curve_figures(write_log(tmp_path / "m.jsonl", ['{"step": 5', *LOG]))


@pytest.mark.parametrize(
    "lines", [[], [""], ['{"ste'], [{"step": 1, "grad_norm": 2.0}], [{"step": 1, "validation": None}]]
)
def test_nothing_to_draw(tmp_path: Path, lines: list[object]) -> None:
    assert curve_figures(write_log(tmp_path / "m.jsonl", lines)) == {}
    assert curve_figures(tmp_path / "missing.jsonl") == {}


def test_drawing_is_silent_and_leaves_pyplot_alone(tmp_path: Path) -> None:
    code = """
import logging, sys, pathlib, numpy
logging.basicConfig(level=logging.WARNING)
from kit.plots.attention import attention_figure
from kit.plots.saving import save_figure
figure = attention_figure(numpy.eye(3), ["日本", "यह", "ไทย"], ["a", "한국", "😀"], title="日本")
save_figure(figure, pathlib.Path(sys.argv[1]) / "a.png")
assert "matplotlib.pyplot" not in sys.modules and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "a.png").stat().st_size > 1000
