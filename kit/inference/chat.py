"""A conversation in the terminal: `kit chat`."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from kit.decoding.settings import GenerationSettings
from kit.prediction.bad_lines import BadLines, reason
from kit.prediction.files import decoded, raw_lines
from kit.tasks.dialogue.inference import Responder
from kit.tasks.families.seq2seq.inference import UNREADABLE

HELP = "/new begins a new conversation, /quit ends it (so does the end of the input)"
PROMPT = "> "


class Conversation:
    """What has been said so far, and a model that replies to it."""

    def __init__(self, responder: Responder, settings: GenerationSettings | None = None):
        self.responder, self.settings = responder, settings
        self.turns: list[str] = []

    def say(self, line: str) -> str:
        """The model's reply to a line; both become part of the conversation, unless there is no reply."""
        reply = self.responder.reply([*self.turns, line], self.settings)
        self.turns += [line, reply]
        return reply


def chat(responder: Responder, lines: Iterable[str], out: TextIO, settings: GenerationSettings | None = None) -> None:
    """Reply to lines until /quit or their end; whatever a line holds, the conversation goes on."""
    conversation = Conversation(responder, settings)
    for line in lines:
        text = line.strip()
        if text == "/quit":
            return
        if text == "/new":
            conversation.turns.clear()
            print("(a new conversation)", file=out, flush=True)
        elif text.startswith("/"):
            print(f"({HELP})", file=out, flush=True)
        elif UNREADABLE.fullmatch(text):
            print("(nothing to read in this line)", file=out, flush=True)
        else:
            try:
                print(conversation.say(text), file=out, flush=True)
            except Exception as error:  # such as a half of a surrogate pair, or want of memory
                print(f"(no reply: {reason(error)})", file=out, flush=True)


def chat_in_terminal(run: str | Path, settings: dict[str, int | float | None]) -> None:
    """Talk to the model of a run through standard input and output."""
    responder = Responder(run)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    if sys.stdin.isatty():
        print(HELP, file=sys.stderr)
    chat(responder, typed_lines(), sys.stdout, responder.settings(**settings))


def typed_lines() -> Iterator[str]:
    """Lines of standard input, after a prompt where a person types them; broken bytes are read as \ufffd."""
    lines = decoded(raw_lines(sys.stdin.buffer, bad := BadLines()), bad)
    while True:
        if sys.stdin.isatty():
            print(PROMPT, end="", file=sys.stderr, flush=True)
        line = next(lines, None)
        if line is None:
            return
        yield line
