"""The commands that use models: generate, chat, embed, predict, plot."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kit.cli.arguments import Overrides, RunOrHub
from kit.errors import KitError


def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    file: Annotated[
        Path | None, typer.Argument(help="Lines of text, or paths of pictures [default: standard input]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write [default: standard output]")] = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beams [default: as the model was saved]")] = None,
    n_best: Annotated[int, typer.Option(min=1, help="Number of outputs for each line.")] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent of the length in a score.")] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(min=0, help="No sequence of so many tokens twice in an output; 0 allows all.")
    ] = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw tokens instead of searching the likeliest.")] = False,
    temperature: Annotated[float | None, typer.Option(min=0.01, help="Of --sample: below 1, more cautious.")] = None,
    top_p: Annotated[
        float | None, typer.Option(min=0.01, max=1.0, help="Of --sample: draw from the likeliest of this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of --sample: another one, other texts.")] = None,
    source_language: Annotated[str | None, typer.Option(help="Language to read, if the model has several.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language to write, if the model has several.")] = None,
    split_sentences: Annotated[
        str | None, typer.Option(metavar="LANGUAGE", help="Translate each sentence alone; split as in this language.")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Write line, rank, score, finished, text.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON lines.")] = False,
    attention: Annotated[Path | None, typer.Option(help="Draw the attention of the first line there (PNG).")] = None,
    tokens_per_batch: Annotated[int, typer.Option(min=1, help="Size of a batch: memory and speed.")] = 8192,
) -> None:
    """Translate lines of text, in order; files of any size stream through, and a bad line never stops one.

    A causal language model goes on with each line (an empty one: from nothing), a dialogue model replies to it (a turn,
    or a JSON list of turns), and a captioner takes it for the path of a picture.
    """
    from functools import partial

    from kit.inference.generate import Wishes, writer_for
    from kit.prediction.files import translate_file, write_outputs
    from kit.system.console import Reporter

    reporter = Reporter()
    if file is not None and not file.is_file():
        raise KitError(f"{file} does not exist: name a text file, or pipe text into `kit generate {run}`")
    details = scores or n_best > 1
    wishes = Wishes(
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
        at_once=file is None and sys.stdin.isatty(),
    )
    write = partial(write_outputs, details=details, as_json=as_json)
    try:
        translate_file(writer_for(run, wishes, reporter.print), file, output, write, reporter)
    except KeyboardInterrupt:
        reporter.print("interrupted" if output is None else f"interrupted: {output} is as it was before")
        raise typer.Exit(130) from None


def chat(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beams [default: as the model was saved]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply, in tokens.")] = None,
) -> None:
    """Talk to a dialogue model, a line at a time: /new begins anew, /quit ends."""
    from kit.inference.chat import chat_in_terminal

    chat_in_terminal(run, {"num_beams": num_beams, "max_new_tokens": max_new_tokens})


def embed(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    file: Annotated[Path | None, typer.Argument(help="Lines to embed [default: standard input]")] = None,
    output: Annotated[Path | None, typer.Option(help="A .npy file [default: JSON lines to standard output]")] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls (the first token) or last.")] = "mean",
    tokens_per_batch: Annotated[int, typer.Option(min=1, help="Size of a batch: memory and speed.")] = 8192,
) -> None:
    """Write a vector for each line of text, in order: JSON lines, or one matrix as a .npy file."""
    from kit.inference.embed import embed_file
    from kit.system.console import Reporter

    embed_file(run, file, output, pooling, tokens_per_batch, Reporter())


def predict(
    run: RunOrHub,
    file: Annotated[
        Path, typer.Argument(help="Rows or series: csv, tsv, JSON lines, parquet, txt, conll, SQuAD, npz.")
    ],
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(help="A .csv or .jsonl file [default: JSON lines to standard output]")
    ] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps to forecast [default: as trained]")] = None,
) -> None:
    """Say what a fine-tuned model says about each row of a file (label, tags, answer), or how its series go on.

    Columns have the names of the run's recipe; overrides such as data.text=review tell others. Rows need no labels.
    """
    from kit.inference.predict import label_file
    from kit.system.console import Reporter
    from kit.tasks.forecasting.inference import forecast_file, is_forecaster

    if not file.is_file():
        raise KitError(f"{file} does not exist: name a file with the rows, or the series, to predict for")
    if is_forecaster(run):
        if overrides:
            raise KitError(f"{overrides[0]}: forecasts take the columns that {run} was trained on. Leave it out")
        forecast_file(run, file, output, horizon, Reporter())
    elif horizon is not None:
        raise KitError(f"--horizon is for forecasts, and {run} makes none. Leave it out")
    else:
        label_file(run, file, overrides or [], output, Reporter())


def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    sentence: Annotated[str | None, typer.Option(help="Text to translate (default: the first test example).")] = None,
    target: Annotated[str | None, typer.Option(help="Output to read, in place of the model's own.")] = None,
    kind: Annotated[str | None, typer.Option(help="cross, encoder, decoder, all (of these), or curves.")] = None,
    layer: Annotated[str | None, typer.Option(help="Number from 1, or all (default: the last).")] = None,
    head: Annotated[str | None, typer.Option(help="Number from 1, mean, or all (default: all).")] = None,
    image: Annotated[Path | None, typer.Option(help="Picture to caption (default: some of the test data).")] = None,
    source_language: Annotated[str | None, typer.Option(help="Language of --sentence, if there are several.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language to write, if there are several.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder or .png file (default: RUN/plots).")] = None,
) -> None:
    """Draw the training curves of a run, and where its model looks: cross-attention and self-attention."""
    from kit.inference.plot import plot as draw
    from kit.system.console import Reporter

    pictures = draw(
        run, sentence=sentence, target=target, kind=kind, layer=layer, head=head, output=output,
        source_language=source_language, target_language=target_language, image=image, say=Reporter().print,
    )  # fmt: skip
    for picture in pictures:
        print(picture)
