"""`kit plot`: the weights equal those of `generate()`, and the figures show the requested ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RunKit
from matplotlib.figure import Figure
from support.pretrained_models import FAMILIES
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel, PreTrainedTokenizerFast

from kit import Translator
from kit.errors import KitError
from kit.inference.plot import plot
from kit.models.configuration_rnn_seq2seq import RNNSeq2SeqConfig
from kit.models.configuration_transformer_seq2seq import TransformerSeq2SeqConfig
from kit.plots.fonts import SPECIAL_NAMES
from kit.prediction.options import PlotOptions
from kit.pretrained.pipelines import register
from kit.tasks.families.seq2seq.attention_weights import (
    MAX_TOKENS,
    Attention,
    attention_of,
    attention_weights,
    readable,
)
from kit.tasks.families.seq2seq.plots import Question, first_question
from kit.tasks.families.seq2seq.task import vocabulary_settings

register()

SENTENCE = "3. April 2021"
OURS = {
    "rnn": lambda **more: RNNSeq2SeqConfig(hidden_size=8, num_attention_heads=2, **more),
    "input-fed rnn": lambda **more: RNNSeq2SeqConfig(
        hidden_size=8, attention_query="current", context_to=["input", "readout"], **more
    ),
    "rnn without attention": lambda **more: RNNSeq2SeqConfig(
        hidden_size=8, attention="none", context_to=[], **more
    ),
    "transformer": lambda **more: TransformerSeq2SeqConfig(
        hidden_size=8, intermediate_size=8, num_attention_heads=4, encoder_layers=2, decoder_layers=3,
        share_encoder_decoder_embeddings=False, **more,
    ),
}  # fmt: skip


def random_model(name: str, **more: object) -> PreTrainedModel:
    config = OURS[name](**(more or {"vocab_size": 40})) if name in OURS else FAMILIES[name]().config
    torch.manual_seed(3)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)  # so that no two weights are alike
    return model


# ---- the weights -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("name", ["rnn", "input-fed rnn", "transformer", "marian", "bart", "t5"])
def test_one_forward_pass_equals_attention_of_every_generate_step(name: str, num_beams: int) -> None:
    model = random_model(name)
    source = [5, 9, 7, 30, 11, 2]
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        seen = model.generate(
            input_ids=torch.tensor([source]), attention_mask=torch.ones(1, len(source), dtype=torch.long),
            num_beams=num_beams, max_new_tokens=7, return_dict_in_generate=True, output_attentions=True,
        )  # fmt: skip
    model.set_attn_implementation(implementation)
    tokens = seen.sequences[0].tolist()  # with START
    steps = len(tokens) - 1
    beams = seen.beam_indices[0].tolist() if num_beams > 1 else [0] * steps
    assert steps > 2

    maps = attention_weights(model, source, tokens[:-1])
    assert model.config._attn_implementation == implementation
    for step in range(steps):
        for layer, weights in enumerate(seen.cross_attentions[step]):
            actual = maps["cross"][layer, :, step]
            torch.testing.assert_close(actual, weights[beams[step], :, -1], atol=1e-5, rtol=1e-4)
    assert len(maps["cross"]) == len(seen.cross_attentions[0])
    if "rnn" in name:
        assert list(maps) == ["cross"]
        return
    for step in range(steps):
        for layer, weights in enumerate(seen.decoder_attentions[step]):
            actual = maps["decoder"][layer, :, step, : step + 1]
            torch.testing.assert_close(actual, weights[beams[step], :, -1], atol=1e-5, rtol=1e-4)
    assert not maps["decoder"].triu(1).any()
    torch.testing.assert_close(maps["encoder"], torch.cat([layer[:1] for layer in seen.encoder_attentions]))
    for weights in maps.values():
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


@pytest.fixture(scope="module")
def run_of(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Copies of a finished run whose model is another one, with random weights."""

    def make(name: str | None = None, **more: object) -> Path:
        folder = tmp_path_factory.mktemp("run") / "run"
        shutil.copytree(trained, folder)
        shutil.rmtree(folder / "plots")
        if name is not None:
            tokenizers = Translator(trained).tokenizers
            model = random_model(name, **vocabulary_settings(tokenizers), **more)
            model.generation_config.max_new_tokens = 9
            model.save_pretrained(folder / "model")
            tokenizers.save(folder / "model")
        return folder

    return make


@pytest.fixture(scope="module")
def rnn(run_of: Callable[..., Path]) -> Path:
    return run_of()


@pytest.fixture(scope="module")
def transformer(run_of: Callable[..., Path]) -> Path:
    return run_of("transformer")


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Figure]:
    """The figures instead of files."""
    figures: dict[Path, Figure] = {}

    def keep(figure: Figure, path: Path) -> Path:
        figures[path] = figure
        return path

    for module in ("kit.inference.plot", "kit.plots.saving"):
        monkeypatch.setattr(f"{module}.save_figure", keep)
    return figures


def tokens_along(figure: Figure) -> tuple[list[str], list[str]]:
    """The labels of queries and of keys."""
    axes = figure.axes[0]
    return [text.get_text() for text in axes.get_yticklabels()], [text.get_text() for text in axes.get_xticklabels()]


def maps_of(figure: Figure) -> np.ndarray:
    return np.stack([np.ma.getdata(axes.images[0].get_array()) for axes in figure.axes if axes.images])


def title_of(figure: Figure) -> str:
    """The title, whose line breaks depend on the width of the figure."""
    return " ".join(figure.texts[-1].get_text().split())


def characters(text: str) -> list[str]:
    return [*text.replace(" ", "␣"), "END"]


def attention_by(run: Path, sentence: str, target: str | None = None) -> Attention:
    translator = Translator(run)
    return attention_of(translator.model, translator.tokenizers, Question(sentence, target))


# ---- the pictures ----------------------------------------------------------------------------------------------------


def test_without_a_sentence_the_first_prediction_is_drawn(rnn: Path, drawn: dict[Path, Figure]) -> None:
    row = json.loads((rnn / "predictions" / "test.jsonl").read_text(encoding="utf-8").splitlines()[0])
    (path,) = plot(rnn, PlotOptions(kind="cross"))
    assert path == rnn / "plots" / "attention.png"
    output, source = tokens_along(drawn[path])
    assert source == characters(row["source"])
    assert output == characters(row["prediction"])[: None if row["finished"] else -1]


def test_the_first_example_with_something_to_read_and_its_languages() -> None:
    nothing = {"source": " \u200b", "target": "x"}
    spoken = {"source": "a", "direction": "de-en", "source_language": "de", "target_language": "en"}
    assert first_question([nothing, spoken]) == Question("a", None, "de", "en")
    assert first_question([{"source": "a", "target_language": "a column like any other"}]) == Question("a")
    assert first_question([nothing]) is None
    dialogues = [{"source": "x", "turns": ["a"] * number} for number in (1, 2, 4, 9)]
    assert first_question(dialogues) == Question('["a", "a", "a", "a"]')
    assert first_question(dialogues[:2]) == Question('["a", "a"]')


def test_command_draws_curves_and_attention_and_prints_paths(rnn: Path, kit_here: RunKit) -> None:
    done = kit_here("plot", rnn)
    assert (done.returncode, done.stderr) == (0, "")
    written = [Path(line) for line in done.stdout.splitlines()]
    assert sorted(written) == sorted((rnn / "plots").iterdir())
    assert {"loss.png", "validation_exact_match.png", "attention.png"} <= {path.name for path in written}
    for path in written:
        assert path.read_bytes()[:4] == b"\x89PNG"
    done = kit_here("plot", rnn, "--kind", "curves", "--output", "only/curves")
    names = sorted(path.name for path in written if path.name != "attention.png")
    assert sorted(Path(line).name for line in done.stdout.splitlines()) == names


def test_every_kind_of_a_transformer(transformer: Path, drawn: dict[Path, Figure], tmp_path: Path) -> None:
    attention = attention_by(transformer, SENTENCE)
    source, output = characters(SENTENCE), tokens_along_output(attention)
    pictures = plot(transformer, PlotOptions(sentence=SENTENCE, kind="all", layer="all", output=tmp_path))
    assert [path.name for path in pictures] == [
        "attention_all_layers.png", "encoder_attention_all_layers.png", "decoder_attention_all_layers.png",
    ]  # fmt: skip
    sides = [(output, source), (source, source), (output, ["START", *output[:-1]])]
    for path, kind, side in zip(pictures, ("cross", "encoder", "decoder"), sides, strict=True):
        figure = drawn[path]
        assert tokens_along(figure) == side
        np.testing.assert_array_equal(maps_of(figure), attention.weights[kind].flatten(0, 1).numpy())
    encoder, decoder = drawn[pictures[1]].axes[0], drawn[pictures[2]].axes[0]
    assert (encoder.get_ylabel(), encoder.get_xlabel()) == ("source", "attends to source")
    assert (decoder.get_ylabel(), decoder.get_xlabel()) == ("output", "attends to output so far")
    assert np.ma.getmaskarray(decoder.images[0].get_array())[0, 1:].all()


def tokens_along_output(attention: Attention) -> list[str]:
    return [SPECIAL_NAMES.get(token, token) for token in attention.output]


@pytest.mark.parametrize(
    ("layer", "head", "name", "title"),
    [
        (None, None, "attention.png", "cross-attention · layer 3 of 3"),
        ("1", None, "attention_layer_1.png", "cross-attention · layer 1 of 3"),
        ("2", "4", "attention_layer_2_head_4.png", "cross-attention · layer 2 of 3 · head 4 of 4"),
        (None, "mean", "attention_mean.png", "cross-attention · layer 3 of 3 · mean of 4 heads"),
        ("all", "1", "attention_all_layers_head_1.png", "cross-attention · head 1 of 4"),
        ("all", "mean", "attention_all_layers_mean.png", "cross-attention · mean of 4 heads"),
    ],
)
def test_layers_and_heads_are_counted_from_one(
    transformer: Path, drawn: dict[Path, Figure], layer: str | None, head: str | None, name: str, title: str
) -> None:
    weights = attention_by(transformer, SENTENCE).weights["cross"].numpy()
    (path,) = plot(transformer, PlotOptions(sentence=SENTENCE, layer=layer, head=head))
    assert path.name == name
    assert title_of(drawn[path]) == title
    expected = weights if layer == "all" else weights[[int(layer or 3) - 1]]
    expected = expected.mean(1, keepdims=True) if head == "mean" else expected
    expected = expected[:, [int(head) - 1]] if head in ("1", "4") else expected
    np.testing.assert_allclose(maps_of(drawn[path]), expected.reshape(-1, *expected.shape[2:]), atol=1e-7)
    captions = [axes.texts[0].get_text() for axes in drawn[path].axes if axes.images and axes.texts]
    if layer == "all":
        assert captions == ["layer 1", "layer 2", "layer 3"]
    else:
        assert captions == ([] if head else ["head 1", "head 2", "head 3", "head 4"])


def test_a_given_target_is_read_instead_of_a_search(transformer: Path, drawn: dict[Path, Figure]) -> None:
    translator = Translator(transformer)
    (path,) = plot(transformer, PlotOptions(sentence=SENTENCE, target="2021-04-03", kind="decoder"))
    output, read = tokens_along(drawn[path])
    assert output == characters("2021-04-03")
    assert read == ["START", *characters("2021-04-03")[:-1]]
    assert "the output was given" in title_of(drawn[path])
    # the same as a forward pass with labels
    labels = translator.tokenizers.encode_target(["2021-04-03"])
    translator.model.set_attn_implementation("eager")
    with torch.inference_mode():
        forward = translator.model(
            input_ids=torch.tensor(translator.tokenizers.encode_source([SENTENCE])), labels=torch.tensor(labels),
            output_attentions=True,
        )  # fmt: skip
    np.testing.assert_allclose(maps_of(drawn[path]), forward.decoder_attentions[-1][0].numpy(), atol=1e-6)


def test_sequence_beyond_the_positions_is_truncated_with_a_note(
    run_of: Callable[..., Path], drawn: dict[Path, Figure]
) -> None:
    short = run_of("transformer", max_position_embeddings=6)
    (path,) = plot(short, PlotOptions(sentence=SENTENCE))
    assert tokens_along(drawn[path])[1] == [*"3.␣Ap", "END"]
    assert "truncated after 6 tokens" in title_of(drawn[path])
    attention = attention_by(short, "3", "2021-04-03")
    assert (len(attention.output), attention.truncated_at) == (6, 6)
    assert attention_by(short, "3", "20").truncated_at is None
    assert len(attention_by(run_of("rnn"), "3 " * MAX_TOKENS).source) == MAX_TOKENS


@pytest.mark.parametrize("family", FAMILIES)
def test_pretrained_models(
    family: str, tmp_path: Path, drawn: dict[Path, Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = FAMILIES[family]()
    chosen.generation.update(max_new_tokens=6, min_length=0)
    folder = chosen.save(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    languages = chosen.recipe.get("tokenizer", {})
    pictures = plot(folder, PlotOptions(sentence="ab cd", kind="all", **languages))
    assert pictures == [Path("attention.png"), Path("encoder_attention.png"), Path("decoder_attention.png")]
    output, source = tokens_along(drawn[Path("attention.png")])
    assert "ab␣cd" in "".join(source)
    _, read = tokens_along(drawn[Path("decoder_attention.png")])
    assert read == ["START", *output[:-1]]
    if family in ("mbart50", "nllb"):
        assert output[0] == languages["target_language"]


def test_bytes_are_read_as_text() -> None:
    backend = Tokenizer(models.BPE(unk_token=None))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    from tokenizers.trainers import BpeTrainer

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=262, initial_alphabet=alphabet, special_tokens=["<s>", "<2日>"], show_progress=False
    )
    backend.train_from_iterator([" für für für"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert readable(tokenizer, tokenizer("<s><2日>x für 日\n")["input_ids"]) == [
        "<s>", "<2日>", "x", " für", " ", "\\xe6", "\\x97", "\\xa5", "\n",
    ]  # fmt: skip
    assert readable(tokenizer, [9999]) == ["token 9999"]


# ---- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "encodr"}, 'Did you mean "encoder"?'),
        ({"layer": "4"}, "--layer 4: the decoder has 3 layers, counted from 1"),
        ({"layer": "3", "kind": "all"}, "--layer 3: the encoder has 2 layers"),
        ({"layer": "0"}, "--layer 0: the decoder has 3 layers"),
        ({"layer": "last"}, '--layer "last": expected a number or "all"'),
        ({"head": "5"}, "--head 5: each layer has 4 heads, counted from 1"),
        ({"head": "-1"}, '--head "-1": expected a number or "all" or "mean"'),
        ({"sentence": " \n"}, "the sentence is empty"),
        ({"sentence": "a", "target": ""}, "the target is empty"),
        ({"target": "a"}, "--target needs --sentence"),
        ({"kind": "curves", "head": "1"}, "--head has no effect on --kind curves"),
        ({"kind": "all", "output": Path("a.png")}, "--kind all has several plots: name a folder"),
        ({"sentence": "a", "output": Path("a.gif")}, "a.gif: name a file that ends in .png, .svg, .pdf, or a folder"),
        ({"sentence": "a", "target_language": "fr"}, 'cannot translate into "fr"'),
    ],
)
def test_mistakes(transformer: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(KitError) as error:
        plot(transformer, PlotOptions(**options))
    assert message in str(error.value)
    assert not (transformer / "plots").exists()


def test_a_multilingual_model_names_the_option_that_it_needs(multilingual: Path) -> None:
    with pytest.raises(KitError, match=r"choose one of en, de, fr with --target-language") as missing:
        plot(multilingual, PlotOptions(sentence="one"))
    assert "target_language in Python" in str(missing.value)


def test_rnn_has_only_cross_attention(rnn: Path, drawn: dict[Path, Figure]) -> None:
    for kind in ("encoder", "decoder"):
        with pytest.raises(KitError, match=rf"--kind {kind}: .* \(rnn_seq2seq\) .* only cross-attention"):
            plot(rnn, PlotOptions(kind=kind))
    (path,) = plot(rnn, PlotOptions(kind="all", layer="all"))
    assert title_of(drawn[path]) == "cross-attention"  # one layer, one head


def test_a_model_without_attention(run_of: Callable[..., Path], tmp_path: Path) -> None:
    blind = run_of("rnn without attention")
    messages: list[str] = []
    names = {path.name for path in plot(blind, PlotOptions(output=tmp_path / "pictures"), messages.append)}
    assert "loss.png" in names
    assert "attention.png" not in names
    assert len(messages) == 1
    assert "has no attention" in messages[0]
    with pytest.raises(KitError, match="has no attention"):
        plot(blind, PlotOptions(sentence=SENTENCE))


def test_an_unfinished_run_has_curves_only(run_of: Callable[..., Path], kit_here: RunKit) -> None:
    run = run_of()
    shutil.rmtree(run / "model")
    done = kit_here("plot", run)
    assert done.returncode == 0
    assert "has no model yet: finish it with" in done.stderr
    assert "loss.png" in done.stdout
    (run / "metrics.jsonl").unlink()
    assert kit_here("plot", run).returncode == 2
    done = kit_here("plot", run, "--kind", "curves")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has no curves to plot" in done.stderr


def test_a_model_folder_needs_a_sentence(rnn: Path, kit_here: RunKit, tmp_path: Path) -> None:
    done = kit_here("plot", rnn / "model")
    assert done.returncode == 2
    assert "pass one with --sentence" in done.stderr
    done = kit_here("plot", rnn / "model", "--sentence", SENTENCE, "--output", "one/map.PNG")
    assert done.stdout.splitlines() == ["one/map.PNG"]
    assert (tmp_path / "one" / "map.PNG").read_bytes()[:4] == b"\x89PNG"
