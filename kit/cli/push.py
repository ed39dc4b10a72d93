"""The command that shares runs and data: push."""

from pathlib import Path
from typing import Annotated

import typer


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
    from kit.hub.upload import Destination
    from kit.sharing.push import format_listing
    from kit.sharing.push import push as share
    from kit.system.console import Reporter

    reporter = Reporter()
    to = Destination(repo, "dataset" if data else "model", public)
    done = share(source, to, overrides or [], dry_run, reporter.print)
    if isinstance(done, Path):
        print("\n".join(format_listing(done)))
        reporter.print(f"nothing was sent; the folder that would be is {done}")
        return
    for name in done.removed:
        reporter.print(f"removed there: {name}, left over from an older push")
    who = "for everybody to see" if public else "private"
    reporter.print(f"{'there already' if done.unchanged else 'sent'}, {who}; commit {done.commit}")
    print(done.url)
