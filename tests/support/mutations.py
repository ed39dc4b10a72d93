"""Damaged files of runs, models, checkpoints and data, and odd values: what kit has to answer with one message.

Everything is a function of its seed, so that a failure can be repeated: a `Damage` is shown as `FILE: KIND (SEED)`.
"""

import json
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from support.data_damage import DATA_FILES, ENCODINGS, Change, drop_line
from support.odd_values import ODD_VALUES


@dataclass(frozen=True)
class Damage:
    """One change to one file of a folder; the same one wherever it is applied. A file that is gone stays so."""

    file: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.file}: {self.kind} ({self.seed})"

    def apply(self, folder: Path) -> None:
        """Damage the file in a copy of the folder. Links are replaced, what they point to is not."""
        path = folder / self.file
        if not path.is_file():
            return
        chance = random.Random(f"{self.seed} {self.kind} {self.file}")
        if (change := REPLACEMENTS.get(self.kind)) is not None:
            path.unlink()
            change(path)
            return
        content = path.read_bytes()
        try:
            changed = CHANGES[self.kind](content, chance)
        except Exception:  # an earlier change has left nothing that this one could change
            changed = flip_bits(content or b"odd", chance)
        path.unlink()
        path.write_bytes(changed)


def damages(folder: Path, seed: int, count: int | None = None, pattern: str = "**/*") -> list[Damage]:
    """Every kind of damage that suits each file of a folder, or `count` of them, drawn by the seed."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file() and path.name != ".lock")
    every = [
        Damage(path.relative_to(folder).as_posix(), kind, seed)
        for path in files
        for kind in kinds_for(path.name, path.stat().st_size)
    ]
    return every if count is None else random.Random(seed).sample(every, min(count, len(every)))


def kinds_for(name: str, size: int) -> list[str]:
    """The kinds of damage that suit a file of so many bytes, by the ending of its name."""
    return [*REPLACEMENTS, *ANY_FILE, *BY_ENDING.get(Path(name).suffix, {})] if size else [*REPLACEMENTS, "garbage"]


def problem_of(result: "CompletedProcess[str]", codes: Sequence[int] = (0, 2, 3)) -> str:
    """What is wrong with how a command has ended: a traceback, a panic, a signal or no message; empty if nothing is."""
    output = result.stderr + result.stdout
    for sign in ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "Exception ignored in"):
        if sign in output:
            return f"{sign}: {output[output.index(sign) :][-2000:]}"
    if result.returncode not in codes:
        return f"exit code {result.returncode}: {output[-2000:]}"
    if result.returncode and not output.strip():  # `kit data` lists mistakes in its report
        return f"exit code {result.returncode} without a message"
    return ""


# ---- the whole file --------------------------------------------------------------------------------------------------

REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a folder": Path.mkdir,
    "a dangling link": lambda path: path.symlink_to("missing"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "a named pipe": os.mkfifo,
}


def flip_bits(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(3):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


ANY_FILE: dict[str, Change] = {
    "empty": lambda content, chance: b"",
    "truncated": lambda content, chance: content[: chance.randrange(len(content))],
    "garbage": lambda content, chance: chance.randbytes(200),
    "flipped bits": flip_bits,
    "zeros": lambda content, chance: bytes(len(content)),
    "twice": lambda content, chance: content * 2,
    "another format": lambda content, chance: chance.choice(FORMATS),
    "binary in the middle": lambda content, chance: content[: len(content) // 2] + b"\0\xff\xfe\x80" + content,
}
FORMATS = (
    b"PK\x03\x04", b"\x1f\x8b\x08\0", b"PAR1PAR1", b"ARROW1\0\0", b"\x93NUMPY\x01\0", b"\x89PNG\r\n\x1a\n", b"GIF89a",
    b"%PDF-1.7",
    b"\x80\x04]q\0.", b"<html><body>404</body></html>", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    b"#!/bin/sh\n", b"---\n...\n", b"0", b'"', b"\n", b" ", b"\xef\xbb\xbf", b"\xff\xfe", b"\0\0\xfe\xff",
)  # fmt: skip
"""The first bytes of other formats, among them those of a page that a server sent instead of a file."""


# ---- JSON ------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def parts_of(value: Any) -> list[tuple[Any, Any]]:
    """Every container in a value with each of its keys or indices."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [part for key, inner in items for part in ((value, key), *parts_of(inner))]


def change_value(content: bytes, chance: random.Random) -> bytes:
    value = json.loads(content)
    if parts := parts_of(value):
        container, key = chance.choice(parts)
        container[key] = chance.choice(ODD_VALUES)
    return to_json(value)


def drop_value(content: bytes, chance: random.Random) -> bytes:
    value = json.loads(content)
    if parts := parts_of(value):
        container, key = chance.choice(parts)
        del container[key]
    return to_json(value)


def change_key(content: bytes, chance: random.Random) -> bytes:
    """Change a value at the top, where most of what programs read is."""
    value = json.loads(content)
    if isinstance(value, dict) and value:
        value[chance.choice(sorted(value))] = chance.choice(ODD_VALUES)
    return to_json(value)


JSON_FILE: dict[str, Change] = {
    "another value": change_value,
    "another value of a key": change_key,
    "a value less": drop_value,
    "a list": lambda content, chance: b"[]",
    "a number": lambda content, chance: b"3",
    "null": lambda content, chance: b"null",
    "an empty object": lambda content, chance: b"{}",
    "deep": lambda content, chance: b"[" * 100_000,
    "a number of thousands of digits": lambda content, chance: b'{"kit_format": ' + b"9" * 5000 + b"}",
    "utf-16": lambda content, chance: content.decode().encode("utf-16"),
}


def on_a_line(change: Change) -> Change:
    """The same change of one of the JSON lines of a file."""

    def changed(content: bytes, chance: random.Random) -> bytes:
        lines = content.splitlines(keepends=True)
        number = chance.randrange(len(lines))
        lines[number] = change(lines[number], chance).rstrip() + b"\n"
        return b"".join(lines)

    return changed


JSON_LINES: dict[str, Change] = {f"a line with {kind}": on_a_line(change) for kind, change in JSON_FILE.items()}


# ---- tensors and text ------------------------------------------------------------------------------------------------


def with_header(change: Callable[[dict[str, Any], random.Random], object]) -> Change:
    """Change the header of a safetensors file."""

    def changed(content: bytes, chance: random.Random) -> bytes:
        (size,) = struct.unpack("<Q", content[:8])
        header = json.loads(content[8 : 8 + size])
        change(header, chance)
        encoded = to_json(header)
        return struct.pack("<Q", len(encoded)) + encoded + content[8 + size :]

    return changed


def a_tensor(header: dict[str, Any], chance: random.Random) -> str:
    names = sorted(header.keys() - {"__metadata__"})
    return chance.choice(names) if names else "__metadata__"


def rename(header: dict[str, Any], chance: random.Random) -> None:
    header["odd"] = header.pop(a_tensor(header, chance), {})


def reshape(header: dict[str, Any], chance: random.Random) -> None:
    tensor = header.get(a_tensor(header, chance), {})
    tensor["shape"] = [1, *tensor.get("shape", [])]


def reverse_shape(header: dict[str, Any], chance: random.Random) -> None:
    for tensor in header.values():
        if "shape" in tensor:
            tensor["shape"] = tensor["shape"][::-1]


def retype(header: dict[str, Any], chance: random.Random) -> None:
    types = {"F32": "I32", "F64": "I64", "I64": "F64", "BF16": "F16"}
    tensor = header.get(a_tensor(header, chance), {})
    tensor["dtype"] = types.get(tensor.get("dtype", ""), "F32")


def odd_tensor(header: dict[str, Any], chance: random.Random) -> None:
    tensor = header.get(a_tensor(header, chance), {})
    tensor[chance.choice(["dtype", "shape", "data_offsets"])] = chance.choice(ODD_VALUES)


def not_finite(content: bytes, chance: random.Random) -> bytes:
    (size,) = struct.unpack("<Q", content[:8])
    return content[: 8 + size] + b"\xff" * (len(content) - 8 - size)


TENSORS: dict[str, Change] = {
    "a renamed tensor": with_header(rename),
    "another shape": with_header(reshape),
    "reversed shapes": with_header(reverse_shape),
    "another type": with_header(retype),
    "an odd tensor": with_header(odd_tensor),
    "nan": not_finite,
    "a huge header": lambda content, chance: struct.pack("<Q", 2**62) + content[8:],
    "a pickle": lambda content, chance: b"\x80\x04\x95" + content,
}


def change_line(content: bytes, chance: random.Random) -> bytes:
    """Give a key of a YAML file another value."""
    lines = content.decode().splitlines()
    number = chance.choice([number for number, line in enumerate(lines) if ":" in line] or [0])
    lines[number] = f"{lines[number].partition(':')[0]}: {json.dumps(chance.choice(ODD_VALUES))}"
    return "\n".join(lines).encode()


def repeat_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(0, chance.choice(lines))
    return b"".join(lines)


YAML = (
    "&a 1", "*a", "!!python/object/apply:os.system [id]", "!!binary aGk=", "{<<: {a: 1}}", "2024-01-01", "0o17", ".nan",
    "-.inf", "1_000", "0x" + "f" * 40, "{? [a, b] : c}", "[" * 40, "|\n  text", ">-\n\n", "\t1", "'", '"\\ud800"',
    "%YAML 9.9",
)  # fmt: skip
"""What replaces a value of a YAML file, besides other values: what YAML has beyond JSON."""


def change_yaml(content: bytes, chance: random.Random) -> bytes:
    lines = content.decode().split("\n")
    number = chance.randrange(len(lines))
    lines[number] = f"{lines[number].partition(':')[0]}: {chance.choice(YAML)}"
    return "\n".join(lines).encode()


def indent_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.split(b"\n")
    number = chance.randrange(len(lines))
    lines[number] = chance.choice([b" ", b"\t", b"    ", b"- "]) + lines[number]
    return b"\n".join(lines)


YAML_FILE: dict[str, Change] = {
    "another value of a line": change_line,
    "a line less": drop_line,
    "a line twice": repeat_line,
    "yaml beyond JSON": change_yaml,
    "another indent": indent_line,
    "deep yaml": lambda content, chance: b"a:\n" + b"".join(b" " * n + b"- \n" for n in range(300)) + content,
}

BY_ENDING = {
    ".json": JSON_FILE | ENCODINGS,
    ".jsonl": JSON_LINES | ENCODINGS | DATA_FILES[".jsonl"],
    ".safetensors": TENSORS,
    ".yaml": YAML_FILE | ENCODINGS,
    ".md": {"a line less": drop_line} | ENCODINGS,
    ".py": {"a line less": drop_line},
    **{ending: kinds for ending, kinds in DATA_FILES.items() if ending != ".jsonl"},
}
CHANGES: dict[str, Change] = {
    kind: change for kinds in (ANY_FILE, *BY_ENDING.values()) for kind, change in kinds.items()
}
