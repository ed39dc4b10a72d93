"""The table of formats: which reader belongs to which extension, and which keys of a recipe apply to it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kit.data.formats.conll import SPLIT_OF_EXTENSION, read_conll
from kit.data.formats.excel import read_excel
from kit.data.formats.layout import Layout, file_extension
from kit.data.formats.npz import read_npz
from kit.data.formats.parquet import read_arrow, read_parquet
from kit.data.formats.squad import is_squad, read_squad
from kit.data.formats.tables import FileTable
from kit.data.formats.text import Lines, RowStream, open_delimited, open_json, read_delimited, read_json_rows
from kit.errors import DataError

LineParser = Callable[[Path, Layout, Lines], RowStream]


@dataclass(frozen=True)
class Format:
    """How files of an extension are read."""

    read: Callable[[Path, Layout], FileTable]
    parse_lines: LineParser | None = None
    """Turns lines into rows, from any line on; None for a format that can only be read as a whole."""
    has_column_names: bool = False
    """Whether the file itself names its columns, so that no key about cells applies."""
    is_text: bool = True
    """Whether the file is text in an encoding of the user's choice."""


def read_json_file(path: Path, layout: Layout) -> FileTable:
    """The rows of a .json file: SQuAD's nested form, one list of objects, or JSON lines."""
    return read_squad(path, layout) if is_squad(path) else read_json_rows(path, layout, may_be_list=True)


FORMATS = {
    "tsv": Format(read_delimited, open_delimited),
    "csv": Format(read_delimited, open_delimited),
    "jsonl": Format(read_json_rows, open_json, has_column_names=True),
    "json": Format(read_json_file, open_json, has_column_names=True),
    "parquet": Format(read_parquet, has_column_names=True, is_text=False),
    "txt": Format(read_delimited, open_delimited),
    "conll": Format(read_conll),
    "npz": Format(read_npz, has_column_names=True, is_text=False),
    "arrow": Format(read_arrow, has_column_names=True, is_text=False),
    "feather": Format(read_arrow, has_column_names=True, is_text=False),
    "xlsx": Format(read_excel, is_text=False),
    **dict.fromkeys(SPLIT_OF_EXTENSION, Format(read_conll)),
}
EXTENSIONS = tuple(FORMATS)


def read_table(path: Path, layout: Layout) -> FileTable:
    """Read a file by its extension. Raises DataError, with the line if there is one, if it is not what it should be."""
    return check_extension(path, layout).read(path, layout)


def line_parser(path: Path, layout: Layout) -> LineParser:
    """What turns the lines of a text file into rows. Raises DataError for a format that can only be read as a whole."""
    parse = check_extension(path, layout).parse_lines
    if parse is None:
        raise DataError(f"{path}: {file_extension(path)} files cannot be streamed. Remove data.streaming.")
    return parse


def check_extension(path: Path, layout: Layout) -> Format:
    """The format of a file. Raises DataError if no reader knows it, or if the recipe sets a key that has no effect."""
    extension = file_extension(path)
    if extension == "xls":
        raise DataError(f"{path}: kit reads .xlsx, not the older .xls. Save it as .xlsx or csv.")
    if extension not in FORMATS:
        raise DataError(
            f"{path}: kit reads files that end in {', '.join(EXTENSIONS)} (and .gz), not in {extension or 'nothing'}."
        )
    file_format, keys = FORMATS[extension], layout.tabular_keys
    if file_format.has_column_names and keys:
        raise DataError(f"data.{keys[0]} has no effect on {path}: the file names its own columns. Remove it.")
    if not file_format.is_text and layout.encoding != "utf-8":
        raise DataError(f"data.encoding has no effect on {path}: text in {extension} files is utf-8. Remove it.")
    if extension == "txt" and layout.delimiter is None and keys:
        raise DataError(f'data.{keys[0]} has no effect on {path}: without data.delimiter it is one column, "text".')
    if file_format.read is read_excel and (keys := [key for key in keys if key != "columns"]):
        raise DataError(f"data.{keys[0]} has no effect on {path}: its cells are separate. Remove it.")
    if file_format.read is read_conll and layout.quoting is not None:
        raise DataError(f"data.quoting has no effect on {path}: there, a quotation mark is a word. Remove it.")
    return file_format
