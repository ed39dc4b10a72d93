"""Damaged run, model and checkpoint folders, and odd values of recipe keys: what kit has to answer with one message.

Everything is a function of its seed, so that a failure can be repeated: a `Damage` is shown as `FILE: KIND (SEED)`.
"""

import json
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from kit.recipe.base import Recipe

ODD_VALUES: tuple[Any, ...] = (
    None, True, "", "odd", "\0", "\ud800", "../../odd", -1, 0, 7, 2**31, 2**63, 10**30, -0.5, 1e308, float("nan"),
    [], [None], ["odd"], [[7]], {}, {"odd": 7},
)  # fmt: skip
"""What replaces a value of a JSON file."""

ODD_NUMBERS = (
    "-1", "0", "1", "-0.5", "0.5", "1e-300", "1e9", "1e308", "1000000", "100000000", "2147483648",
    "9223372036854775807", "9223372036854775808", "100000000000000000000000000000000",
)  # fmt: skip
"""What replaces a number of a recipe."""

ODD_SETTINGS: dict[str, tuple[str, ...]] = {
    "translation": (
        "model.use_cache=false", "model.hidden_size=1000000", "model.encoder_layers=100000000",
        "model.encoder_layers=9223372036854775808", "model.decoder_layers=100000000", "model.num_attention_heads=-1",
        "model.embedding_size=1000000000000", "tokenizer.vocab_size=9223372036854775808",
        "tokenizer.min_frequency=9223372036854775808", "eval.length_penalty=1e9", "eval.length_penalty=-1e9",
        "eval.num_beams=9223372036854775808", "eval.max_new_tokens=9223372036854775808",
        "train.tokens_per_batch=9223372036854775808", "train.micro_batches=9223372036854775808",
    ),
    "masked_lm": (
        "model.hidden_act=geluu", "model.hidden_size=1000000", "model.num_attention_heads=-1", "model.hidden_size=-16",
        "model.type_vocab_size=0", "model.type_vocab_size=9223372036854775808", "model.num_hidden_layers=100000000",
        "model.intermediate_size=9223372036854775808", "model.max_position_embeddings=100000000000",
        "model.layer_norm_eps=-1e9", "model.initializer_range=1e308",
    ),
    "causal_lm": (
        "model.use_cache=false", "model.activation_function=geluu", "model.n_embd=1000000", "model.n_layer=100000000",
        "model.n_head=0", "model.n_head=-1", "model.n_positions=9223372036854775808", "data.block_size=1000000000000",
    ),
    "classification": ("model.hidden_act=geluu", "model.type_vocab_size=0", "data.max_length=9223372036854775808"),
    "tagging": ("model.num_attention_heads=0", "model.num_hidden_layers=-1"),
    "question_answering": ("model.type_vocab_size=1", "data.doc_stride=9223372036854775808"),
    "instruction_tuning": ("model.use_cache=false", "model.n_layer=0", "eval.max_new_tokens=1000000000"),
    "captioning": (
        "model.use_cache=false", "model.cnn_blocks=9223372036854775808", "model.cnn_blocks=100000000",
        "model.image_size=1000000", "model.image_size=1", "model.cnn_channels=[9223372036854775808]",
        "model.num_channels=2",
    ),
    "dialogue": ("model.use_cache=false", "model.context_layers=100000000", "model.utterance_hidden_size=1000000"),
    "forecasting": (
        "model.hidden_size=1000000", "model.encoder_layers=100000000", "model.min_scale=1e308",
        "data.history=9223372036854775808", "data.horizon=1000000000000",
    ),
}  # fmt: skip
"""Values of the tiny recipes of `support.recipes` that were answered with a traceback, a panic or silence, and their
like."""


@dataclass(frozen=True)
class Damage:
    """One change to one file of a folder; the same one wherever it is applied."""

    file: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.file}: {self.kind} ({self.seed})"

    def apply(self, folder: Path) -> None:
        """Damage the file in a copy of the folder. Links are replaced, what they point to is not."""
        path = folder / self.file
        chance = random.Random(f"{self.seed} {self.kind} {self.file}")
        if (change := REPLACEMENTS.get(self.kind)) is not None:
            path.unlink()
            change(path)
            return
        content = CHANGES[self.kind](path.read_bytes(), chance)
        path.unlink()
        path.write_bytes(content)


def damages(folder: Path, seed: int, count: int | None = None, pattern: str = "**/*") -> list[Damage]:
    """Every kind of damage that suits each file of a folder, or `count` of them, drawn by the seed."""
    files = sorted(path for path in folder.glob(pattern) if path.is_file() and path.name != ".lock")
    every = [Damage(path.relative_to(folder).as_posix(), kind, seed) for path in files for kind in kinds_for(path)]
    return every if count is None else random.Random(seed).sample(every, min(count, len(every)))


def kinds_for(path: Path) -> list[str]:
    """The kinds of damage that suit a file, by its ending."""
    kinds = [*REPLACEMENTS, *ANY_FILE, *BY_ENDING.get(path.suffix, {})]
    return kinds if path.stat().st_size else [*REPLACEMENTS, "garbage"]


def odd_overrides(recipe: Recipe, fields: dict[str, Any] | None = None) -> Iterator[str]:
    """Overrides that give every number of a recipe, and of the `fields` of its model, each of the odd numbers."""
    values = recipe.flat() | {f"model.{name}": value for name, value in (fields or {}).items()}
    for key, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield from (f"{key}={number}" for number in ODD_NUMBERS)


def problem_of(result: "CompletedProcess[str]", codes: Sequence[int] = (0, 2, 3)) -> str:
    """What is wrong with how a command has ended: a traceback, a panic, a signal or no message; empty if nothing is."""
    output = result.stderr + result.stdout
    for sign in ("Traceback (most recent call last)", "panicked at", "Fatal Python error", "Exception ignored in"):
        if sign in output:
            return f"{sign}: {output[output.index(sign) :][-2000:]}"
    if result.returncode not in codes:
        return f"exit code {result.returncode}: {output[-2000:]}"
    if result.returncode and not result.stderr.strip():
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
Change = Callable[[bytes, random.Random], bytes]


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
}


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


def drop_line(content: bytes, chance: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


TEXT: dict[str, Change] = {"another value of a line": change_line, "a line less": drop_line}

BY_ENDING = {
    ".json": JSON_FILE, ".jsonl": JSON_LINES, ".safetensors": TENSORS, ".yaml": TEXT, ".md": {"a line less": drop_line},
}  # fmt: skip
CHANGES: dict[str, Change] = {**ANY_FILE, **JSON_FILE, **JSON_LINES, **TENSORS, **TEXT}
