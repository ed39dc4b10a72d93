"""YAML in recipes: YAML 1.2 scalars, line numbers, rejected input, overrides, and round trips."""

import math

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from kit.errors import RecipeError
from kit.recipe.document import parse_override, read_text, read_yaml, write_override, write_yaml

SCALARS = [
    ("1e-3", 1e-3),
    ("1e3", 1000.0),
    ("1E+3", 1000.0),
    (".5", 0.5),
    ("-.5e1", -5.0),
    ("5.", 5.0),
    ("+7", 7),
    ("-0", 0),
    ("010", 10),  # YAML 1.1 reads eight
    ("0o10", 8),
    ("0x1F", 31),
    ("12:30:45", "12:30:45"),  # YAML 1.1 reads seconds
    ("190:20", "190:20"),
    ("2024-01-02", "2024-01-02"),
    ("1_000", "1_000"),
    ("0b11", "0b11"),
    ("true", True),
    ("False", False),
    ("no", "no"),
    ("yes", "yes"),
    ("on", "on"),
    ("off", "off"),
    ("y", "y"),
    ("null", None),
    ("~", None),
    ("", None),
    ("none", "none"),
    ("=", "="),
    ("1e", "1e"),
    ("e3", "e3"),
    (".", "."),
    (".inf", math.inf),
    ("-.INF", -math.inf),
    ("inf", "inf"),
]

plain_text = st.text(st.characters(exclude_categories=["Cs"]))
tricky_text = st.sampled_from(
    [text for text, _ in SCALARS] + ["<<", "a: b", "# c", " x ", "- a", "'", '"', "a\nb\n", "\t", "9" * 80]
)
numbers = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | plain_text | tricky_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text | tricky_text, inner, max_size=4),
    max_leaves=12,
)


def same(first: object, second: object) -> bool:
    """Equal in value and in type, which distinguishes 1, 1.0 and true."""
    return repr(first) == repr(second)


@pytest.mark.parametrize(("text", "expected"), SCALARS)
def test_scalars_follow_yaml_1_2_in_files_and_on_the_command_line(text, expected):
    assert same(read_yaml(f"key: {text}", "f").value, {"key": expected})
    assert same(parse_override(f"a.key={text}"), ("a.key", expected))
    assert same(read_yaml(f"key: '{text}'", "f").value, {"key": text})


def test_every_key_and_item_has_its_line():
    text = "# title\ntask: x\n\ntrain:\n  max_steps: 5\n  lists: [a,\n    {b: c}]\n"
    lines = read_yaml(text, "f").lines
    assert lines == {
        "task": 2,
        "train": 4,
        "train.max_steps": 5,
        "train.lists": 6,
        "train.lists.0": 6,
        "train.lists.1": 7,
        "train.lists.1.b": 7,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  a: 1\n  b: 2\n  a: 3\n", "r.yaml, line 4: train.a is set twice, first on line 2"),
        ("a: {b: 1, 'b': 2}", "r.yaml, line 1: a.b is set twice, first on line 1"),
        ("a: &x 1\nb: *x\n", "r.yaml, line 1: anchors"),
        ("x: 1\n<<: *y\n", "r.yaml, line 2: anchors"),
        ("a: !!python/object/apply:os.system [ls]", "r.yaml, line 1: tags such as"),
        ("a: !!str 5", "r.yaml, line 1: tags such as"),
        ("a: 1\nb: [1, 2\nc: 3\n", "r.yaml, line 3: this is not valid YAML"),
        ("a: 1\n\tb: 2", "r.yaml, line 2: this is not valid YAML: a value begins with a tab"),
        ("a: b: c", 'r.yaml, line 1: this is not valid YAML: a second ": "'),
        ("a: 1\n---\nb: 2", "r.yaml, line 2: this is not valid YAML: a second document"),
        ("a: 1\n? [b]\n: c\n", "r.yaml, line 2: a key must be a word"),
        ("a: 1\nb: \x07", "r.yaml, line 2: the character U+0007"),
        ("a: 99999999999999999999", "r.yaml, line 1: a: the number 99999999999999999999 does not fit"),
        ("a: " + "9" * 5000, "does not fit"),
        ('a: "\\ud800"', "r.yaml, line 1: an escape stands for half a character"),
        ('a: "\\UFFFFFFFF"', "r.yaml, line 1: this is not valid YAML"),
        ("a: " + "[" * 5000, "r.yaml, line 1: nested deeper"),
        ("a: " + "{b: " * 5000, "r.yaml, line 1: nested deeper"),
    ],
)
def test_rejected_yaml_is_reported_with_file_and_line(text, message):
    with pytest.raises(RecipeError) as error:
        read_yaml(text, "r.yaml")
    assert message in str(error.value)


@given(st.text() | st.text("abc:-[]{}&*!|>'\"#%@`,?\n\t \\0x1.~<\ufeff\x85"))
def test_any_text_is_a_document_or_a_recipe_error(text):
    message = None
    try:
        read_yaml(text, "r.yaml")
    except RecipeError as error:
        message = str(error)
    assert message is None or message.startswith("r.yaml, line ")


@given(values)
def test_written_yaml_reads_back_equal(value):
    assert same(read_yaml(write_yaml({"key": value}), "f").value, {"key": value})


@given(values)
def test_written_yaml_means_the_same_in_yaml_1_1(value):
    assert same(yaml.safe_load(write_yaml({"key": value})), {"key": value})


@given(values)
def test_a_value_written_as_an_argument_is_read_as_the_same_value(value):
    argument = write_override("a.key", value)
    assert same(parse_override(argument), ("a.key", value))
    assert "\n" not in argument


def test_plain_values_are_written_without_quotes():
    written = [write_override("k", value) for value in ("data/x.gz", "builtin:dates", None, ["a", "b"], 3, "\t")]
    assert written == ["k=data/x.gz", "k=builtin:dates", "k=null", "k=[a, b]", "k=3", 'k="\\t"']


@given(plain_text.filter(lambda text: text.lstrip()[:1] not in ("[", "{", "'", '"')))
def test_an_unquoted_override_is_text_or_a_number(text):
    assume(not text.strip("+-").isdecimal() or len(text) < 18)
    key, value = parse_override(f"key={text}")
    assert key == "key"
    assert value == text or not isinstance(value, str)


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("a.b=[x, 1, no]", ("a.b", ["x", 1, "no"])),
        ("a={b: {c: 1e-3}}", ("a", {"b": {"c": 1e-3}})),
        ("a='5'", ("a", "5")),
        ('a="\\t"', ("a", "\t")),
        ("a=|", ("a", "|")),
        ("a=x=y # z", ("a", "x=y # z")),
        ("a=\t", ("a", "\t")),
    ],
)
def test_override_values(argument, expected):
    assert same(parse_override(argument), expected)


@pytest.mark.parametrize("argument", ["", "a", "=5", "a..b=5", ".a=5", "a b=5", "a=[1", "a={x: 1, x: 2}", "a=\udcff"])
def test_broken_overrides_are_recipe_errors_that_can_be_printed(argument):
    with pytest.raises(RecipeError) as error:
        parse_override(argument)
    assert "on the command line" in str(error.value)
    str(error.value).encode("utf-8")


def test_overrides_win_and_keep_their_origin():
    document = read_yaml("a:\n  b: 1\n  c: {d: 2}\nempty:\n", "f")
    document.override("a.c={e: 3}")
    document.override("a.new.deep=4")
    document.override("empty.x=5")
    document.override("empty.x=6")
    assert document.value == {"a": {"b": 1, "c": {"e": 3}, "new": {"deep": 4}}, "empty": {"x": 6}}
    assert document.where(("a", "b")) == "f, line 2"
    assert document.where(("a", "missing")) == "f, line 1"
    assert document.where(("a", "c", "d")) == "on the command line (a.c={e: 3})"
    assert document.where(("a", "new")) == "on the command line (a.new.deep=4)"
    assert document.where(("empty", "x")) == "on the command line (empty.x=6)"
    assert document.where(()) == "f"
    with pytest.raises(RecipeError, match=r"a\.b is not a section"):
        document.override("a.b.c=1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\nb: \xff\n", "line 2: byte 0xff is not UTF-8"),
        (b"a: 1\n\0", "line 2: the file contains a NUL byte"),
        ("a: 1".encode("utf-16"), "NUL|UTF-8"),
        (b"#" * 2_000_000, "2,000,000 bytes: it is too large to be a recipe"),
    ],
)
def test_binary_files_are_rejected(tmp_path, content, message):
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=message):
        read_text(path)


def test_a_byte_order_mark_is_not_part_of_the_first_key():
    assert read_yaml("\ufeffa: 1", "f").value == {"a": 1}
