"""The command `kit`. Everything heavy is imported inside the commands, so that help appears at once."""

import errno
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kit import __version__
from kit.errors import KitError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, check and use sequence models. Start with: kit recipes",
)

NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes to the recipe.")]
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped recipe.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
Processes = Annotated[int, typer.Option(min=1, help="Number of processes to train with.")]


def version(asked: bool) -> None:
    if asked:
        print(f"kit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show it.")] = False,
) -> None:
    """Train, check and use sequence models. Start with: kit recipes"""


@app.command()
def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[Path | None, typer.Option(help="Run folder [default: runs/NAME-OF-RECIPE]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    processes: Processes = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a run would see and take.")] = False,
) -> None:
    """Train what a recipe describes; RECIPE may also be the folder of a run to repeat or go on with."""
    from kit.recipe import load_recipe

    path = Path(recipe)
    is_run = (path / "recipe.yaml").is_file()
    loaded = load_recipe(path / "recipe.yaml" if is_run else recipe, overrides or [])
    if dry_run:
        return _inspect(loaded)
    target = output or (path if is_run else Path("runs") / path.stem)
    if processes > 1:
        return _train_in_processes(processes, target)
    _train(loaded, target, resume)


def _train(recipe: Any, output: Path, resume: bool) -> None:
    from kit.reporting import Reporter
    from kit.run import train as run_training
    from kit.training.loop import TrainingFailed, TrainingInterrupted

    reporter = Reporter()
    try:
        finished = run_training(recipe, output, resume, reporter)
    except TrainingInterrupted as stop:
        reporter.say(f"stopped after step {stop.step}; go on with: kit train {output} --resume")
        raise typer.Exit(128 + stop.signal_number) from None
    except TrainingFailed as failure:
        reporter.say(f"training failed: {failure}")
        raise typer.Exit(1) from None
    _show_results(finished, reporter)


def _show_results(finished: Any, reporter: Any) -> None:
    """Say where a run is, and print its figures."""
    if finished.was_there:
        reporter.say(f"{finished.folder} is already there, finished, and left as it is (name another with --output):")
    else:
        reporter.say(f"the run is in {finished.folder}: model/, results.json, plots/, README.md")
    if _is_main_process():
        for split in ("validation", "test"):
            if split in finished.results:
                shown = {k: v for k, v in finished.results[split].items() if isinstance(v, float)}
                print(f"{split}: " + ", ".join(f"{name} {value:.4g}" for name, value in shown.items()))


def _is_main_process() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _train_in_processes(processes: int, output: Path) -> None:
    from kit.launch import launch

    arguments = [*sys.argv[1:], "--processes", "1"]  # the last one counts
    if not any(argument.split("=")[0] == "--output" for argument in sys.argv):
        arguments += ["--output", str(output)]
    code = launch(processes, arguments)
    if code:
        raise typer.Exit(code)


@app.command()
def data(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Show what a run would see: examples, lengths, unknown tokens, overlaps, size, time and memory."""
    from kit.recipe import load_recipe

    _inspect(load_recipe(recipe, overrides or []))


def _inspect(recipe: Any) -> None:
    from rich.console import Console

    from kit.inspection import inspect_recipe, render

    Console().print(render(inspect_recipe(recipe)))


@app.command(name="eval")
def evaluate(
    run: RunArgument,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="Split of the data to evaluate on.")] = "test",
    predictions: Annotated[Path | None, typer.Option(help="Write predictions there, as JSON lines.")] = None,
) -> None:
    """Evaluate the model of a run; overrides such as eval.num_beams=5 apply to this evaluation only."""
    from kit.evaluation.run import evaluate as evaluate_run

    found = evaluate_run(run, split, overrides)
    if predictions is not None:
        with _writing(predictions) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows)
    print(json.dumps(found.figures, indent=1, ensure_ascii=False))


@app.command()
def generate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    file: Annotated[Path | None, typer.Argument(help="Lines to translate [default: standard input]")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to write [default: standard output]")] = None,
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beams [default: as the model was saved]")] = None,
    n_best: Annotated[int, typer.Option(min=1, help="Number of outputs for each line.")] = 1,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest output, in tokens.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent of the length in a score.")] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(min=0, help="No sequence of so many tokens twice in an output; 0 allows all.")
    ] = None,
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

    A dialogue model replies to each line: a turn, or a JSON list of turns.
    """
    from functools import partial

    from kit.generate import LINES_AT_ONCE
    from kit.generate_files import translate_file, write_outputs
    from kit.reporting import Reporter
    from kit.responder import Responder, load_translator

    reporter = Reporter()
    if file is not None and not file.is_file():
        raise KitError(f"{file} does not exist: name a text file, or pipe text into `kit generate {run}`")
    if split_sentences is not None and n_best > 1:
        raise KitError("--n-best has no meaning with --split-sentences, which puts together the best of each sentence")
    translator = load_translator(run)
    if split_sentences is not None and isinstance(translator, Responder):
        raise KitError(
            "--split-sentences has no meaning for a dialogue model: a line is a turn, or a JSON list of turns"
        )
    settings = translator.settings(
        num_beams=max(num_beams or translator.settings().num_beams, n_best),
        num_return_sequences=n_best,
        max_new_tokens=max_new_tokens,
        length_penalty=length_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        **translator.tokenizers.search_tokens(target_language),
    )
    interactive = file is None and sys.stdin.isatty()
    languages: dict[str, Any] = {"source_language": source_language, "target_language": target_language}

    def translate(lines: Any, **how: Any) -> Any:
        if attention is not None:
            lines = _draw_first(translator, lines, attention, settings, languages, reporter)
        at_once = 1 if interactive else LINES_AT_ONCE
        return translator.translate(
            lines, settings, tokens_per_batch, at_once, split=split_sentences, **languages, **how
        )

    try:
        translate_file(
            translate, file, output, partial(write_outputs, details=scores or n_best > 1, as_json=as_json), reporter
        )
    except KeyboardInterrupt:
        reporter.say("interrupted" if output is None else f"interrupted: {output} is as it was before")
        raise typer.Exit(130) from None


def _draw_first(
    translator: Any, lines: Any, path: Path, settings: Any, languages: dict[str, Any], reporter: Any
) -> Any:
    from itertools import chain

    from kit.plot import Question, draw_sentence
    from kit.responder import Responder, draw_history, history_of

    first = next(lines, None)
    if first is None:
        raise KitError("there is no line to draw the attention of: the input is empty")
    if isinstance(translator, Responder):
        drawn: Any = draw_history(translator, history_of(first), path, settings)
    else:
        drawn = draw_sentence(translator, Question(first, **languages), path, settings)
    if not drawn:
        raise KitError("--attention: this model has none; it sees the source through a fixed state only")
    reporter.say(f"attention of the first line: {path}")
    return chain([first], lines)


def _writing(path: Path | None) -> Any:
    """A file that appears when it is complete, or standard output."""
    from kit.generate_files import writing

    return writing(path)


@app.command()
def chat(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beams [default: as the model was saved]")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply, in tokens.")] = None,
) -> None:
    """Talk to a dialogue model, a line at a time: /new begins anew, /quit ends."""
    from kit.chat import chat_in_terminal

    chat_in_terminal(run, {"num_beams": num_beams, "max_new_tokens": max_new_tokens})


@app.command()
def embed(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    file: Annotated[Path | None, typer.Argument(help="Lines to embed [default: standard input]")] = None,
    output: Annotated[Path | None, typer.Option(help="A .npy file [default: JSON lines to standard output]")] = None,
    pooling: Annotated[str, typer.Option(help="mean, cls (the first token) or last.")] = "mean",
    tokens_per_batch: Annotated[int, typer.Option(min=1, help="Size of a batch: memory and speed.")] = 8192,
) -> None:
    """Write a vector for each line of text, in order: JSON lines, or one matrix as a .npy file."""
    from kit.embed import embed_file
    from kit.reporting import Reporter

    embed_file(run, file, output, pooling, tokens_per_batch, Reporter())


@app.command()
def predict(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    file: Annotated[Path, typer.Argument(help="Series to go on with: csv, tsv, JSON lines, parquet or npz.")],
    output: Annotated[
        Path | None, typer.Option(help="A .csv or .jsonl file [default: JSON lines to standard output]")
    ] = None,
    horizon: Annotated[int | None, typer.Option(min=1, help="Steps to predict [default: as trained]")] = None,
) -> None:
    """Forecast how each series of a file goes on."""
    from kit.forecast import forecast_file
    from kit.reporting import Reporter

    forecast_file(run, file, output, horizon, Reporter())


@app.command()
def average(
    run: RunArgument,
    last: Annotated[int, typer.Option(min=2, help="Number of checkpoints to average, counted from the last.")] = 5,
    output: Annotated[Path | None, typer.Option(help="New run folder [default: RUN_average]")] = None,
) -> None:
    """Average the weights of the last checkpoints of a run into a new run folder, and evaluate it."""
    from kit.average import average_checkpoints
    from kit.reporting import Reporter

    reporter = Reporter()
    _show_results(average_checkpoints(run, last, output or run.with_name(f"{run.name}_average"), reporter), reporter)


@app.command()
def plot(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, a model folder or a Hub id.")],
    sentence: Annotated[str | None, typer.Option(help="Text to translate (default: the first test example).")] = None,
    target: Annotated[str | None, typer.Option(help="Output to read, in place of the model's own.")] = None,
    kind: Annotated[str | None, typer.Option(help="cross, encoder, decoder, all (of these), or curves.")] = None,
    layer: Annotated[str | None, typer.Option(help="Number from 1, or all (default: the last).")] = None,
    head: Annotated[str | None, typer.Option(help="Number from 1, mean, or all (default: all).")] = None,
    source_language: Annotated[str | None, typer.Option(help="Language of --sentence, if there are several.")] = None,
    target_language: Annotated[str | None, typer.Option(help="Language to write, if there are several.")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder or .png file (default: RUN/plots).")] = None,
) -> None:
    """Draw the training curves of a run, and where its model looks: cross-attention and self-attention."""
    from kit.plot import plot as draw
    from kit.reporting import Reporter

    pictures = draw(
        run, sentence=sentence, target=target, kind=kind, layer=layer, head=head, output=output,
        source_language=source_language, target_language=target_language, say=Reporter().say,
    )  # fmt: skip
    for picture in pictures:
        print(picture)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Run folders; the first is the baseline.")],
    split: Annotated[str, typer.Option(help="Split whose predictions are compared.")] = "test",
    metrics: Annotated[str | None, typer.Option(help="Comma-separated [default: those of the recipes]")] = None,
    samples: Annotated[int, typer.Option(min=10, help="Number of bootstrap samples.")] = 1000,
) -> None:
    """Compare runs on the same examples by paired bootstrap: is the difference more than chance?"""
    from rich.console import Console

    from kit.evaluation.compare import compare_runs

    chosen = metrics.split(",") if metrics else None
    Console().print(compare_runs(runs, split=split, metrics=chosen, samples=samples).table())


@app.command()
def verify(
    target: Annotated[str, typer.Argument(metavar="RUN|RECIPE", help="A run folder, or a recipe to build afresh.")],
) -> None:
    """Prove on your own model what you rely on: save = load, cache = no cache, beam = exhaustive search, …"""
    from rich.console import Console

    from kit.verify import table
    from kit.verify import verify as run_checks

    checks = run_checks(target)
    Console().print(table(checks))
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


@app.command()
def recipes(
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of recipes, for editors.")] = False,
) -> None:
    """List the shipped recipes with the figures of their real runs."""
    from kit.recipe_book import list_recipes, recipe_schema

    if schema:
        print(json.dumps(recipe_schema(), indent=1))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what", "measured", box=None, pad_edge=False)
    for row in list_recipes():
        table.add_row(row.name, row.title, row.headline() or row.reason)
    Console().print(table)


@app.command()
def copy(
    name: Annotated[str, typer.Argument(help="A shipped recipe.")],
    destination: Annotated[Path, typer.Argument(help="File or folder to copy it to.")] = Path(),
) -> None:
    """Make a shipped recipe yours."""
    from kit.recipe_book import copy_recipe

    print(copy_recipe(name, destination))


@app.command()
def explain(key: Annotated[str, typer.Argument(help="A key such as train.warmup_steps, or a section.")] = "") -> None:
    """Explain a key of recipes."""
    from kit.recipe_book import explain as explain_key

    print(explain_key(key))


@app.command()
def record(run: RunArgument, recipe: Annotated[Path, typer.Argument(help="The recipe file of that run.")]) -> None:
    """Write the figures of a finished run into its recipe's `measured` section."""
    from kit.recipe_book import record as record_run

    for name, value in record_run(run, recipe).items():
        print(f"{name}: {value}")


@app.command()
def doctor(
    self_check: Annotated[bool, typer.Option(help="Train a tiny model for up to a minute.")] = True,
    hub: Annotated[bool, typer.Option("--hub", help="Try to reach the Hub too.")] = False,
) -> None:
    """Check versions, devices and what is missing, and that training works here."""
    from rich.console import Console

    from kit.doctor import any_problem, diagnose, render

    findings = diagnose(self_check, check_hub=hub)
    Console().print(render(findings))
    if any_problem(findings):
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command; a user's mistake is one message and exit code 2."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        app()
    except KitError as error:
        if _is_main_process():
            print(f"kit: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        where = f" {error.filename}" if error.filename else ""
        print(f"kit: cannot write{where}: {error.strerror}. What was complete is untouched", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("kit: interrupted", file=sys.stderr)
        sys.exit(130)
    sys.exit(0)
