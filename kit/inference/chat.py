"""A dialogue with a model in the terminal: `kit chat`."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from kit.errors import RunError
from kit.inference.generate import text_predictor
from kit.prediction.issues import LineIssues, describe_error
from kit.prediction.lines import check_standard_input, decode_lines, split_lines
from kit.prediction.options import GenerateOptions
from kit.prediction.text import BLANK, TextPredictor

HELP = "/new starts a new dialogue, /quit (or the end of the input) exits"
PROMPT = "> "


def chat(predictor: TextPredictor, lines: Iterable[str], out: TextIO) -> None:
    """Reply to lines until /quit or their end. A line that fails gets a message and is not part of the dialogue."""
    turns: list[str] = []
    for line in lines:
        text = line.strip()
        if text == "/quit":
            return
        if text == "/new":
            turns = []
            message = "(a new dialogue)"
        elif text.startswith("/"):
            message = f"({HELP})"
        elif BLANK.fullmatch(text):
            message = "(nothing to read in this line)"
        else:
            try:
                message = predictor.reply([*turns, text])
                turns += [text, message]
            except Exception as error:  # half a surrogate pair, or out of memory
                message = f"(no reply: {describe_error(error)})"
        print(message, file=out, flush=True)


def chat_in_terminal(run: str | Path, options: GenerateOptions) -> None:
    """Chat with the model of a run through standard input and output."""
    predictor = text_predictor(run, options)
    if not predictor.chats:
        raise RunError(f"{run} is not a dialogue model: use `kit generate`")
    check_standard_input()
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    chat(predictor, typed_lines(), sys.stdout)


def typed_lines() -> Iterator[str]:
    """Lines of standard input, after a prompt if it is a terminal; invalid bytes are read as \ufffd."""
    issues = LineIssues()
    lines = decode_lines(split_lines(sys.stdin.buffer, issues), issues)
    while True:
        if sys.stdin.isatty():
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line
