"""The commands that use models: generate, chat, embed, predict, plot."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.arguments import CheckpointOption, Overrides, RunOrHub
from kit.errors import KitError

# The bounds of the same keys in recipes. A test compares them: importing them would load pydantic for `kit --help`.
MAX_BEAMS = 1000
MAX_NEW_TOKENS = 2**17
MAX_SEED = 2**32 - 1


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, model folder or Hub id.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="File with one text or image path per line (default: standard input)."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="File to write to (default: standard output).")] = None,
    num_beams: Annotated[
        int | None, typer.Option(min=1, max=MAX_BEAMS, help="Number of beams (default: as saved with the model).")
    ] = None,
    n_best: Annotated[
        int, typer.Option(min=1, max=MAX_BEAMS, help="Number of outputs per line; a search has at least as many beams.")
    ] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=MAX_NEW_TOKENS, help="Maximum number of output tokens.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(min=-10, max=10, help="Exponent of the length by which scores are divided.")
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None,
        typer.Option(min=0, help="Length of the n-grams that may not occur twice in an output; 0 allows repetition."),
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Sample tokens instead of searching.")] = False,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.01, help="Sampling temperature: values below 1 sharpen the distribution (with --sample)."),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1.0,
            help="Nucleus sampling: keep the most probable tokens up to this total probability (with --sample).",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MAX_SEED, help="Random seed for --sample.")] = None,
    source_language: Annotated[str | None, typer.Option(help="Source language, for multilingual models.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Target language, for multilingual models.")] = None,
    split_sentences: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE",
            help="Split the text into sentences by the rules of this language, and translate each separately.",
        ),
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Write the columns line, rank, score, finished, text.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Plot the attention of the first line to this .png, .svg or .pdf file.")
    ] = None,
    tokens_per_batch: Annotated[
        int, typer.Option(min=1, help="Batch size in tokens; affects memory and speed only.")
    ] = 8192,
    checkpoint: CheckpointOption = None,
) -> None:
    """Generate text for each line of a file, in order.

    A translator translates each line, a causal language model continues it (an empty line: generates from scratch),
    an instruction-tuned model answers it, a dialogue model replies to it (a turn, or a JSON list of turns), and a
    captioner reads it as the path of an image. Files of any size are streamed; bad lines are reported and skipped.
    """
    from kit.inference.generate import generate_file
    from kit.prediction.lines import check_input
    from kit.prediction.options import GenerateOptions
    from kit.runs.checkpoints import at_checkpoint
    from kit.system.console import Reporter
    from kit.training.signals import exit_code

    reporter = Reporter()
    if file is not None:
        check_input(file, f"pass a text file, or pipe text into `kit generate {run}`")
    if scores and as_json:
        raise KitError("--scores has no effect with --json, which always has them. Leave it out")
    details = scores or n_best > 1
    options = GenerateOptions(
        n_best=n_best,
        num_beams=num_beams,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        sample=sample,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        source_language=source_language,
        target_language=target_language,
        split_sentences=split_sentences,
        attention=attention,
        scores=details or as_json,
        tokens_per_batch=tokens_per_batch,
        portion_size=1 if file is None and sys.stdin.isatty() else None,
    )
    try:
        with at_checkpoint(run, checkpoint) as source:
            generate_file(source, file, output, options, reporter, details=details, as_json=as_json)
    except KeyboardInterrupt as interruption:
        reporter.print("interrupted" if output is None else f"interrupted: {output} is unchanged")
        raise typer.Exit(exit_code(interruption)) from None


def chat(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, model folder or Hub id.")],
    num_beams: Annotated[
        int | None, typer.Option(min=1, max=MAX_BEAMS, help="Number of beams (default: as saved with the model).")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, max=MAX_NEW_TOKENS, help="Maximum number of tokens in a reply.")
    ] = None,
) -> None:
    """Chat with a dialogue model in the terminal.

    /new starts a new dialogue, /quit exits.
    """
    from kit.inference.chat import chat_in_terminal
    from kit.prediction.options import GenerateOptions

    chat_in_terminal(run, GenerateOptions(num_beams=num_beams, max_new_tokens=max_new_tokens))


def embed(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, model folder or Hub id.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with one text per line (default: standard input).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help=".npy file to write to (default: JSON lines on standard output).")
    ] = None,
    pooling: Annotated[str, typer.Option(help="Pooling over tokens: mean, cls (the first token) or last.")] = "mean",
    tokens_per_batch: Annotated[
        int, typer.Option(min=1, help="Batch size in tokens; affects memory and speed only.")
    ] = 8192,
) -> None:
    """Embed each line of text, in order.

    Vectors are written as JSON lines, or as one matrix to a .npy file.
    """
    from kit.inference.embed import embed_file
    from kit.system.console import Reporter

    embed_file(run, file, output, pooling, tokens_per_batch, Reporter())


def predict(
    run: RunOrHub,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File with rows or series: csv, tsv, JSON lines, parquet, txt, conll, SQuAD, npz."
        ),
    ],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(help=".csv or .jsonl file to write to (default: JSON lines on standard output).")
    ] = None,
    horizon: Annotated[
        int | None, typer.Option(min=1, help="Number of steps to forecast (default: as in training).")
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=1, help="Also write the K best labels, answers or tokens of each row, with their scores."),
    ] = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Predict labels, tags, answers, masked tokens or forecasts.

    Column names are those in the run's recipe; overrides such as data.text=review change them. Rows need no labels.
    """
    from kit.inference.predict import predict_file
    from kit.prediction.lines import check_input
    from kit.prediction.rows import PredictOptions
    from kit.runs.checkpoints import at_checkpoint
    from kit.system.console import Reporter

    check_input(file, "pass a file with the rows or series to predict")
    with at_checkpoint(run, checkpoint) as source:
        predict_file(source, PredictOptions(file, tuple(overrides or ()), horizon, top_k), output, Reporter())


def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Run folder, model folder or Hub id.")],
    sentence: Annotated[str | None, typer.Option(help="Input text (default: the first test example).")] = None,
    target: Annotated[str | None, typer.Option(help="Output text to use instead of the model's output.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="Kind of plot: cross, encoder or decoder attention, all (of these), or curves.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Layer, counted from 1, or all (default: the last).")] = None,
    head: Annotated[str | None, typer.Option(help="Head, counted from 1, mean, or all (default: all).")] = None,
    image: Annotated[Path | None, typer.Option(help="Image to caption (default: some of the test data).")] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Language of --sentence, for multilingual models.")
    ] = None,
    target_language: Annotated[str | None, typer.Option(help="Target language, for multilingual models.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder, or .png, .svg or .pdf file, to write to (default: RUN/plots).")
    ] = None,
    format: Annotated[str | None, typer.Option(help="Format of the files: png (default), svg or pdf.")] = None,
    checkpoint: CheckpointOption = None,
) -> None:
    """Plot the curves, the errors and the attention of a run.

    Options select the input, the layers and the heads of attention maps, of a run or of a pretrained model.
    """
    from kit.inference.plot import plot as plot_run
    from kit.prediction.options import PlotOptions
    from kit.runs.checkpoints import at_checkpoint
    from kit.system.console import Reporter

    if checkpoint is not None and output is None:
        output = Path(run) / "plots" / checkpoint
    options = PlotOptions(sentence, target, kind, layer, head, image, source_language, target_language, output, format)
    with at_checkpoint(run, checkpoint) as source:
        for path in plot_run(source, options, Reporter().print):
            print(path)
