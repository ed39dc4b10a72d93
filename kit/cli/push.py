"""The command that pushes runs and data to the Hub: push."""

from pathlib import Path
from typing import Annotated

import typer

from kit.errors import KitError


def push(
    source: Annotated[Path, typer.Argument(metavar="RUN", help="Finished run, adapter or, with --data, data files.")],
    repo: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the Hub.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="hub.key=value", help="Metadata of the card to override, such as hub.license=mit."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Make the repository public; by default it is private.")
    ] = False,
    data: Annotated[bool, typer.Option("--data", help="Push a folder of data files as a dataset.")] = False,
    delete_others: Annotated[
        bool, typer.Option("--delete-others", help="Remove files of the repository that are not part of this push.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build and check the files, and list them; upload and keep nothing.")
    ] = False,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="With --dry-run, a new folder to keep the files in.")
    ] = None,
) -> None:
    """Push a run to the Hub, in one commit.

    The repository gets the weights, the tokenizer, the code, the recipe, the card and the plots. Before the upload, a
    process without kit loads the folder and must reproduce the outputs of the run.
    """
    from kit.hub.upload import Destination
    from kit.sharing.push import preview
    from kit.sharing.push import push as share
    from kit.system.console import Reporter

    for option, given in {"--public": public, "--delete-others": delete_others}.items():
        if dry_run and given:
            raise KitError(f"{option} has no effect with --dry-run, which uploads nothing. Leave it out")
    if keep is not None and not dry_run:
        raise KitError("--keep has no effect without --dry-run: what is pushed is on the Hub")
    reporter = Reporter()
    to = Destination(repo, "dataset" if data else "model", public, delete_others)
    if dry_run:
        files = preview(source, to, overrides or [], keep, reporter.print)
        width = max(len(f"{size:,}") for _, size in files)
        print("\n".join(f"{size:>{width},}  {name}" for name, size in files))
        kept = f"; the files are in {keep}" if keep is not None else ""
        reporter.print(f"nothing was uploaded{kept}")
        return
    done = share(source, to, overrides or [], reporter.print)
    for name in done.removed:
        why = "not part of this push" if delete_others else "left over from an earlier push"
        reporter.print(f"removed from the repository: {name}, {why}")
    if done.others:
        names = ", ".join(done.others[:10]) + (" …" if len(done.others) > 10 else "")
        reporter.print(f"the repository also has files that are not part of this push (--delete-others): {names}")
    visibility = "public" if public else "private"
    status = "already up to date" if done.unchanged else "uploaded"
    reporter.print(f"{status} ({visibility}); commit {done.commit}")
    print(done.url)
