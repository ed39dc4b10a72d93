"""The documentation as data: its code blocks, commands, links and inline code, each with file and line."""

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "recipes/README.md")
] + PAGES
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))

FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
MARKER = re.compile(r"<!-- (\w+)(?:: (.+?))? -->\s*\Z")
END_OF_COMMAND = {"|", "&&", ";", "||"}


@dataclass(frozen=True)
class Block:
    """A fenced code block, and the comment `<!-- name: value -->` in front of it, if any."""

    path: Path
    line: int
    language: str
    text: str
    marker: str = ""
    value: str = ""

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a shell, without what is piped into it."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.where}: {shlex.join(self.words)}"


def blocks(path: Path) -> list[Block]:
    """The fenced code blocks of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    result = []
    for match in FENCE.finditer(text):
        before = MARKER.search(text[: match.start()])
        marker, value = (before[1], before[2] or "") if before else ("", "")
        indent, language, body = match.groups()
        body = re.sub(rf"^{indent}", "", body, flags=re.MULTILINE)
        result.append(Block(path, text[: match.start()].count("\n") + 1, language, body, marker, value))
    return result


def header(path: Path) -> Block:
    """The commands in the comments that a recipe begins with, as a block of shell."""
    comments = path.read_text(encoding="utf-8").partition("\ntask:")[0].splitlines()
    lines = [re.sub(r"^# {3,}", "", line) for line in comments if re.match(r"# {3,}\S", line)]
    # what a command does stands behind it, after some space
    described = [re.sub(r"(?<=\S) {2,}(?=[^\s\\'\"-])(?!\S+=)", "  # ", line) for line in lines]
    return Block(path, 1, "bash", "\n".join(described) + "\n")


def docstring(path: Path) -> Block:
    """The commands in the docstring of a script, as a block of shell; what is in brackets is there to be typed."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    lines = [line.strip() for line in text.splitlines() if re.match(r" *python \S+\.py", line)]
    return Block(path, 1, "bash", "\n".join(lines) + "\n")


def shell_lines(block: Block) -> list[str]:
    """The lines of a block of shell that run something, without comments; a continued line is one."""
    text = block.text.replace("\\\n", " ")
    plain = (re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in text.splitlines())
    return [re.sub(r"  +", " ", line) for line in plain if line]


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block of shell, in order."""
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in END_OF_COMMAND:
                if words:
                    yield Command(block.where, tuple(words))
                words = []
            else:
                words.append(word)


def without_blocks(text: str) -> str:
    """The text with its code blocks blanked out, so that lines keep their numbers."""
    return FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)


def inline_code(path: Path) -> Iterator[tuple[str, str]]:
    """Place and text of each piece of `inline code`."""
    text = without_blocks(path.read_text(encoding="utf-8"))
    for match in re.finditer(r"(?<!`)`([^`]+)`(?!`)", text):
        yield f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}", " ".join(match[1].split())


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Place and target of each link and picture."""
    text = without_blocks(path.read_text(encoding="utf-8"))
    for match in re.finditer(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text):
        yield f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}", match[1] or match[2]


def anchors(path: Path) -> set[str]:
    """The anchors of the headings of a page, as MkDocs and GitHub make them."""
    text = without_blocks(path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", heading).replace("`", "") for heading in headings)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in plain}
