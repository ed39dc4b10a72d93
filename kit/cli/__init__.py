"""The command `kit`. Commands import heavy modules when they run, so that help appears immediately."""

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from kit.cli.catalog import copy, doctor, explain, recipes
from kit.cli.evaluate import compare, evaluate, verify
from kit.cli.exit import end_with_traceback, fail
from kit.cli.infer import chat, embed, generate, plot, predict
from kit.cli.push import push
from kit.cli.runs import runs
from kit.cli.train import average, data, merge, train
from kit.errors import KitError
from kit.system.redaction import redact
from kit.system.streams import prepare_streams
from kit.system.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # boxes take a third of 80 columns, and break lines inside paragraphs
    pretty_exceptions_enable=False,
)

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "data": data,
    "eval": evaluate,
    "generate": generate,
    "chat": chat,
    "embed": embed,
    "predict": predict,
    "average": average,
    "merge": merge,
    "plot": plot,
    "compare": compare,
    "verify": verify,
    "push": push,
    "runs": runs,
    "recipes": recipes,
    "copy": copy,
    "explain": explain,
    "doctor": doctor,
}
"""Every command, in the order of `kit --help`."""

NOT_WRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EEXIST)
NOT_USABLE = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO)
"""Errors that reading and writing have in common."""


def version(requested: bool) -> None:
    """Print the version and exit, if requested."""
    if requested:
        print(f"kit {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train, evaluate, verify and share sequence models.

    To get started: kit recipes
    """


for name, command in COMMANDS.items():
    app.command(name)(command)


def main() -> NoReturn:
    """Run the command: a user error prints one message and exits with code 2, an unreachable Hub with code 3."""
    from kit.training.launch import exit_with_parent
    from kit.training.signals import exit_code, interrupt_on_sigterm

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    prepare_streams()
    exit_with_parent()
    interrupt_on_sigterm()
    try:
        app()
    except KitError as error:
        fail(f"kit: {redact(str(error))}", error.exit_code)
    except OSError as error:
        if error.errno not in (*NOT_WRITABLE, *NOT_USABLE):
            end_with_traceback()
        what = "cannot write" if error.errno in NOT_WRITABLE else "cannot use"
        where = f" {error.filename}" if error.filename else ""
        fail(f"kit: {KitError(f'{what}{where}: {error.strerror}')}. Completed files are untouched", 2)
    except KeyboardInterrupt as interruption:
        print("kit: interrupted", file=sys.stderr)
        sys.exit(exit_code(interruption))
    except Exception:
        end_with_traceback()
    sys.exit(0)
