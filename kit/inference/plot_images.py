"""What `kit plot` draws of a captioner: where it looks in a picture for each word."""

from pathlib import Path
from typing import Any

from kit.errors import KitError, RunError
from kit.runs.folder import RunFolder
from kit.tasks.captioning.inference import Captioner, is_captioner
from kit.tasks.captioning.plots import draw_caption


def reads_pictures(run: str | Path) -> bool:
    """Whether the model of a run, finished or not, of a model folder or of a Hub id captions pictures."""
    if (Path(run) / "recipe.yaml").is_file():
        return RunFolder(Path(run)).recipe().task == "captioning"
    return is_captioner(run)


def plot_pictures(
    run: str | Path, image: Path | None, caption: str | None, head: int | str, folder: Path, file: Path | None
) -> list[Path]:
    """Draw the attention over a picture, or over a few of the run's test data, and return the files."""
    captioner = Captioner(run)
    places: dict[Path, Any]
    if image is not None:
        places = {file or folder / f"attention_{image.stem}.png": image}
    elif (Path(run) / "recipe.yaml").is_file():
        from kit.tasks.captioning.task import first_pictures

        pictures = first_pictures(RunFolder(Path(run)).path, RunFolder(Path(run)).recipe(), captioner)
        places = {folder / f"attention_{number}.png": one for number, one in enumerate(pictures, start=1)}
        places = {file: pictures[0]} if file is not None else places
    else:
        raise RunError(f"{run} has no data to take a picture from: give one with --image")
    for place, picture in places.items():
        if not draw_caption(captioner, picture, place, caption, head):
            raise RunError(f"the model of {run} has no attention: it sees the picture through a fixed state only")
    return list(places)


def which_head(head: int | str | None) -> int | str:
    """The head to draw from what a user has chosen: a number from 1, or by default the mean of all."""
    if head == "all":
        raise KitError("--head all: of a captioner, the heads are drawn one by one (--head 2) or as their mean")
    return "mean" if head is None else head
