"""The command `kit`. Everything heavy is imported inside the commands, so that help appears at once."""

import errno
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from kit import __version__
from kit.errors import KitError
from kit.secrets import mask

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Train, check and use sequence models. Start with: kit recipes",
)

NOT_WRITABLE = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR,
)  # fmt: skip

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[key=value]...", help="Changes to the recipe.")]
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A recipe file, or the name of a shipped recipe.")
]
RunOrHub = Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or OWNER/NAME[@REVISION] on the Hub.")]
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
    shard: Annotated[
        bool, typer.Option("--shard", help="Divide the weights among the processes (FSDP2): for large models.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what a run would see and take.")] = False,
) -> None:
    """Train what a recipe describes; RECIPE may also be the folder of a run to repeat or go on with, or a run on the
    Hub to repeat (OWNER/NAME[@REVISION])."""
    from kit.recipe import load_recipe

    path = Path(recipe)
    is_run = (path / "recipe.yaml").is_file()
    on_hub = None if is_run else _run_on_hub(recipe)
    if on_hub is not None:
        from kit.pins import recipe_of

        loaded = recipe_of(on_hub, overrides or [])
    else:
        loaded = load_recipe(path / "recipe.yaml" if is_run else recipe, overrides or [])
    if dry_run:
        return _inspect(loaded)
    name = path.stem if on_hub is None else on_hub.repo.rpartition("/")[2]
    target = output or (path if is_run else Path("runs") / name)
    if processes > 1:
        return _train_in_processes(processes, target, shard)
    if shard and "RANK" not in os.environ:
        raise KitError("--shard divides the weights among processes: add --processes 2 or more")
    _train(loaded, target, resume)


def _run_on_hub(recipe: str) -> Any:
    """The run on the Hub that is meant by OWNER/NAME[@REVISION], unless it is a recipe that is here."""
    from kit.places import hub_name
    from kit.shipped import names_recipe

    name = hub_name(recipe)
    return name if name is not None and "/" in name.repo and not names_recipe(recipe) else None


def _train(recipe: Any, output: Path, resume: bool) -> None:
    from kit.reporting import Reporter
    from kit.run import train as run_training
    from kit.training.loop import TrainingFailed, TrainingInterrupted

    reporter = Reporter(quiet=not _is_main_process())
    go_on = f"go on with: kit train {output} --resume"
    try:
        finished = run_training(recipe, output, resume, reporter)
    except TrainingInterrupted as stop:
        reporter.say(f"stopped after step {stop.step}; {go_on}")
        raise typer.Exit(128 + stop.signal_number) from None
    except TrainingFailed as failure:
        _fail(f"training failed: {failure}", 1)
    except KeyboardInterrupt:  # before the first step or after the last, when there is nothing new to save
        reporter.say(f"interrupted; {go_on}" if (output / "recipe.yaml").is_file() else "interrupted")
        raise typer.Exit(130) from None
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


def _train_in_processes(processes: int, output: Path, shard: bool) -> None:
    from kit.launch import launch

    arguments = [*sys.argv[1:], "--processes", "1"]  # the last one counts
    if not any(argument.split("=")[0] == "--output" for argument in sys.argv):
        arguments += ["--output", str(output)]
    code = launch(processes, arguments, shard)
    if code > 128 and code - 128 not in (signal.SIGINT, signal.SIGTERM) and (output / "checkpoints").is_dir():
        print(f"the last checkpoint is whole; go on with: kit train {output} --resume", file=sys.stderr)
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
    run: RunOrHub,
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

    from kit.generate_files import translate_file, write_outputs
    from kit.reporting import Reporter
    from kit.writers import Wishes, writer_for

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
        translate_file(writer_for(run, wishes, reporter.say), file, output, write, reporter)
    except KeyboardInterrupt:
        reporter.say("interrupted" if output is None else f"interrupted: {output} is as it was before")
        raise typer.Exit(130) from None


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
def merge(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder or an adapter's folder.")],
    output: Annotated[Path, typer.Option(help="New folder for the merged model.")],
) -> None:
    """Merge the adapter of a run into its base model: a plain model folder, proven to predict the same."""
    from kit.merge import merge as merge_adapter

    made = merge_adapter(run, output)
    print(
        f"{made.folder}: {made.base} with the adapter of {run} merged into it. On {made.examples} examples logits "
        f"differ by at most {made.difference:.1e} of the largest"
    )


@app.command()
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
    from kit.plot import plot as draw
    from kit.reporting import Reporter

    pictures = draw(
        run, sentence=sentence, target=target, kind=kind, layer=layer, head=head, output=output,
        source_language=source_language, target_language=target_language, image=image, say=Reporter().say,
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
def push(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run, an adapter, or (--data) data files.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Where it goes on the Hub.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[hub.key=value]...", help="What the card says: hub.license=mit")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="Let everybody see it; without, it is private.")] = False,
    data: Annotated[bool, typer.Option("--data", help="RUN is a folder of data files: share it as a dataset.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build and check the folder, list it, send nothing.")
    ] = False,
) -> None:
    """Share a run on the Hub: weights, tokenizer, code, recipe, card and pictures, in one commit.

    Before that, a process without kit loads the folder, and must compute what the run does.
    """
    from kit.reporting import Reporter
    from kit.sharing.push import push as share
    from kit.sharing.push import table
    from kit.sharing.upload import Destination

    reporter = Reporter()
    to = Destination(repo, "dataset" if data else "model", public)
    done = share(source, to, overrides or [], dry_run, reporter.say)
    if isinstance(done, Path):
        print("\n".join(table(done)))
        reporter.say(f"nothing was sent; the folder that would be is {done}")
        return
    for name in done.removed:
        reporter.say(f"removed there: {name}, left over from an older push")
    who = "for everybody to see" if public else "private"
    reporter.say(f"{'there already' if done.was_there else 'sent'}, {who}; commit {done.commit}")
    print(done.url)


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
    from kit.measured import record as record_run

    for name, value in record_run(run, recipe).items():
        print(f"{name}: {value}")


@app.command()
def doctor(
    self_check: Annotated[bool, typer.Option(help="Train a tiny model for up to a minute.")] = True,
    hub: Annotated[bool, typer.Option("--hub", help="Try to reach the Hub too.")] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Train in one process, in several and sharded, and compare.")
    ] = False,
    processes: Annotated[
        int | None, typer.Option(min=2, help="Number of them for --train [default: the GPUs, or 2]")
    ] = None,
) -> None:
    """Check versions, devices and what is missing, and that training works here."""
    from rich.console import Console

    from kit.doctor import any_problem, diagnose, render

    if processes is not None and not train:
        raise KitError("--processes has no meaning without --train")
    findings = diagnose(self_check, check_hub=hub, train=train, processes=processes)
    Console().print(render(findings))
    if any_problem(findings):
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command; a user's mistake is one message and exit code 2, a Hub that cannot be reached one and 3."""
    from kit.launch import end_with_launcher

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    end_with_launcher()
    try:
        app()
    except KitError as error:
        _fail(f"kit: {mask(str(error))}", error.exit_code)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            _end_with_traceback()
        where = f" {error.filename}" if error.filename else ""
        _fail(f"kit: cannot write{where}: {error.strerror}. What was complete is untouched", 2)
    except KeyboardInterrupt:
        print("kit: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception:
        _end_with_traceback()
    sys.exit(0)


def _end_with_traceback() -> NoReturn:
    """End as Python does, but show no access token that may be in a message; in a group of processes the launcher shows
    the traceback, once."""
    import traceback

    from kit.launch import tell

    if not tell(None, 1):
        print(mask(traceback.format_exc()), end="", file=sys.stderr)
    sys.exit(1)


def _fail(message: str, code: int) -> NoReturn:
    """End with a message; in a group of processes the launcher shows it, once."""
    from kit.launch import tell

    if not tell(message, code):
        number = "" if _is_main_process() else f" (process {os.environ['RANK']})"
        print(f"{message}{number}", file=sys.stderr)
    sys.exit(code)
