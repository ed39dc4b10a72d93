"""Pictures of a run: its training curves, and where its model looks."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kit.errors import KitError, RunError, did_you_mean
from kit.evaluation.compare import read_predictions
from kit.inference.plot_images import plot_pictures, reads_pictures, which_head
from kit.plots.curves import draw_curves, save_figure
from kit.runs.folder import RunFolder
from kit.tasks.dialogue.inference import Responder, draw_history, history_of, load_translator
from kit.tasks.families.seq2seq.attention_weights import KINDS
from kit.tasks.families.seq2seq.plots import Maps, Question, ask, draw_maps, first_question, parse_number

if TYPE_CHECKING:
    pass

CHOICES = ("curves", *KINDS, "all")


def plot(
    run: str | Path,
    *,
    sentence: str | None = None,
    target: str | None = None,
    kind: str | None = None,
    layer: str | None = None,
    head: str | None = None,
    output: Path | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    image: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[Path]:
    """Draw a run folder, or the attention of a model folder or a Hub id, and return the pictures.

    Asked for nothing in particular, it draws the curves of a run and the cross-attention of the last layer for the
    first example of its test (or validation) predictions, and says if there is no attention to draw. Asked about
    attention, it draws only that. Of a captioner, it is the attention over `image`, or over a few pictures of its data,
    with `target` as the caption to read instead of the model's own. Pictures go to the folder `plots` of a run, else to
    the working folder; or to `output`, a folder or, for a single picture, a file.
    """
    details: dict[str, Any] = {"--sentence": sentence, "--target": target, "--layer": layer, "--head": head}
    details |= {"--source-language": source_language, "--target-language": target_language, "--image": image}
    given = [name for name, value in details.items() if value is not None]
    if kind is not None and kind not in CHOICES:
        raise KitError(f'--kind "{kind}": expected one of {", ".join(CHOICES)}.{did_you_mean(kind, CHOICES)}')
    maps = Maps.of(layer, head)
    is_file = output is not None and _is_file(output)
    if is_file and kind in ("curves", "all"):
        raise KitError(f"--output {output} is one file, but --kind {kind} draws several: name a folder")
    if kind == "curves":
        if given:
            raise KitError(f"{given[0]} has no effect with --kind curves: leave one of them out")
        return _plot_curves(RunFolder.existing(Path(run)), output)
    if reads_pictures(run):
        return _plot_captioner(run, details, kind, output, say)
    if image is not None:
        raise KitError(f"--image: the model of {run} reads text, not pictures: give --sentence")
    question = None
    if sentence is not None:
        question = Question(sentence, target, source_language, target_language)
    elif others := [name for name in given if name not in ("--layer", "--head")]:
        raise KitError(f"{others[0]} needs --sentence, the sentence that it is about")

    everything = kind is None and not given and not is_file
    if not everything or not _is_run(run):
        return _plot_attention(run, question, kind or "cross", maps, output)
    curves = draw_curves(RunFolder(Path(run)).metrics_file, output or RunFolder(Path(run)).plots)
    try:
        return curves + _plot_attention(run, question, "cross", maps, output)
    except KitError as problem:
        if not curves:
            raise
        say(f"no picture of attention: {problem}")
        return curves


def _plot_captioner(
    run: str | Path, details: dict[str, Any], kind: str | None, output: Path | None, say: Callable[[str], None]
) -> list[Path]:
    """The curves of a run and where it looks in pictures, or what of it was asked for."""
    for name in ("--sentence", "--layer", "--source-language", "--target-language"):
        if details[name] is not None:
            raise KitError(f"{name} has no meaning for a captioner, which reads pictures: give --image")
    if kind not in (None, "cross"):
        raise KitError(f"--kind {kind}: a captioner has cross-attention only")
    if details["--target"] is not None and details["--image"] is None:
        raise KitError("--target needs --image, the picture that it is about")
    file = output if output is not None and _is_file(output) else None
    folder = output if output is not None and file is None else RunFolder(Path(run)).plots if _is_run(run) else Path()
    head = None if details["--head"] is None else parse_number("--head", details["--head"], ("all", "mean"))
    asked = kind is not None or file is not None or any(value is not None for value in details.values())
    curves = draw_curves(RunFolder(Path(run)).metrics_file, folder) if _is_run(run) and not asked else []
    try:
        image, caption = details["--image"], details["--target"]
        return curves + plot_pictures(run, image, caption, which_head(head), folder, file)
    except KitError as problem:
        if not curves:
            raise
        say(f"no picture of attention: {problem}")
        return curves


def _plot_curves(folder: RunFolder, output: Path | None) -> list[Path]:
    pictures = draw_curves(folder.metrics_file, output or folder.plots)
    if not pictures:
        raise RunError(f"{folder.path} holds no figures to draw yet: metrics.jsonl is written while it trains")
    return pictures


def _plot_attention(
    run: str | Path, question: Question | None, kind: str, maps: Maps, output: Path | None
) -> list[Path]:
    """The chosen maps of one kind, or of `all` kinds that the model has."""
    translator = load_translator(run)
    if isinstance(translator, Responder):
        return [_plot_history(translator, run, question, kind, maps, output)]
    question = question or _first_example(run)
    attention = ask(translator, question)
    if not attention.weights:
        raise RunError(f"the model of {run} has no attention: it sees the source through a fixed state only")
    kinds = [one for one in attention.weights if kind in (one, "all")]
    if not kinds:
        there = " and ".join(KINDS[one] for one in attention.weights)
        model_type = translator.model.config.model_type
        raise RunError(f"--kind {kind}: the model of {run} ({model_type}) has no such attention, only {there}")
    # all of them are made before the first is written, so that a layer that one kind lacks leaves nothing behind
    figures = [(draw_maps(attention, one, maps, question), maps.file_name(one)) for one in kinds]
    if output is not None and _is_file(output):
        return [save_figure(figures[0][0], output)]
    folder = output or (RunFolder(Path(run)).plots if _is_run(run) else Path())
    return [save_figure(figure, folder / name) for figure, name in figures]


def _plot_history(
    responder: Responder, run: str | Path, question: Question | None, kind: str, maps: Maps, output: Path | None
) -> Path:
    """What the reply to a dialogue looks at; `question` holds a turn, or a JSON list of them."""
    if kind not in ("cross", "all") or maps != Maps() or (question is not None and question.target is not None):
        raise KitError(
            "of a dialogue model, what its replies look at is drawn: leave out --kind, --layer, --head, --target"
        )
    turns = history_of(question.sentence) if question is not None else history_of(_first_example(run).sentence)
    place = output if output is not None and _is_file(output) else None
    folder = output or (RunFolder(Path(run)).plots if _is_run(run) else Path())
    drawn = draw_history(responder, turns, place or folder / maps.file_name("cross"))
    if drawn is None:
        raise RunError(f"the model of {run} has no attention: it sees the turns through a fixed state only")
    return drawn


def _is_run(run: str | Path) -> bool:
    return (Path(run) / "recipe.yaml").is_file()


def _is_file(output: Path) -> bool:
    """Whether `--output` names a picture, and not a folder."""
    if output.is_dir() or not output.suffix:
        return False
    if output.suffix.lower() != ".png":
        raise KitError(f"--output {output}: pictures are PNG files. Name one that ends in .png, or a folder")
    return True


def _first_example(run: str | Path) -> Question:
    """An example of the run's predictions."""
    folder = RunFolder(Path(run)).predictions
    for split in ("test", "validation"):
        file = folder / f"{split}.jsonl"
        if _is_run(run) and file.is_file() and file.stat().st_size:
            found = first_question(read_predictions(file))
            if found is not None:
                return found
    raise RunError(f"{run} has no predictions to take an example from: give one with --sentence")
