"""Bytes to lines of text: decompression, encoding, and the count of what cannot be decoded.

A byte that is not in the encoding becomes a lone surrogate, a code point that no proper text contains, so that the
row can still be parsed, and be found again, left out and counted.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kit.errors import DataError

SURROGATE = re.compile("[\ud800-\udfff]")
WIDE_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
GZIP_MARK = b"\x1f\x8b"
ENOUGH_ROWS = 100


def open_bytes(path: Path) -> io.BufferedReader | gzip.GzipFile:
    """The bytes of a file, decompressed if its name ends in .gz."""
    try:
        return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_error(path: Path, error: Exception) -> DataError:
    """What went wrong in reading bytes, said so that the user can mend it."""
    if isinstance(error, gzip.BadGzipFile | zlib.error):
        return DataError(f"{path} is not a proper gzip file ({error}). Pack it again, or take .gz off its name.")
    if isinstance(error, EOFError):
        return DataError(f"{path} is cut off: the end of the compressed data is missing. Fetch it again.")
    return DataError(f"{path} cannot be read: {error}.")


def encoding_error(path: Path, encoding: str, error: UnicodeError) -> DataError:
    return DataError(f"{path} is not in {encoding} ({error}). Set data.encoding to what it is in.")


def read_lines(path: Path, encoding: str) -> Iterator[str]:
    """Each line with its line end. Only "\\n" ends a line: U+2028 and its like are characters of the text.

    A byte order mark is taken off. Raises DataError if the file is empty, broken, or plainly in a wider encoding.
    """
    with open_bytes(path) as raw:
        try:
            head = raw.peek(4096)[:4096]
            check_text_format(path, head, encoding)
            with io.TextIOWrapper(raw, encoding, "surrogateescape", newline="\n") as text:
                for number, line in enumerate(text):
                    yield line.removeprefix("\ufeff") if number == 0 else line
        except UnicodeError as error:
            raise encoding_error(path, encoding, error) from error
        except LookupError as error:
            raise DataError(f'data.encoding: "{encoding}" is no encoding of text ({error}).') from error
        except (OSError, EOFError, zlib.error) as error:
            raise read_error(path, error) from error


class LineReader:
    """The lines of a file, as `read_lines` gives them, with their numbers, from a place in it on.

    A place is the number of lines before it and of bytes (those of a .gz file unpacked), so that reading can go on
    there: at once in a plain file, after unpacking what lies before it in a .gz file.
    """

    def __init__(self, path: Path, encoding: str):
        # A mark in front of the text is taken off the first line, and is a character of any other.
        self.encoding = "utf-8" if codecs.lookup(encoding).name == "utf-8-sig" else encoding
        try:
            one_byte = "\n".encode(self.encoding) == b"\n"
        except (LookupError, UnicodeError):
            one_byte = False
        if not one_byte:
            raise DataError(
                f"data.encoding: in {encoding} the end of a line is not one byte, so that {path} can only be read as a "
                "whole. Write it in utf-8, or leave out data.streaming."
            )
        self.path = path
        self.line = self.byte = 0
        self._raw = open_bytes(path)
        try:
            check_text_format(path, self._raw.peek(4096)[:4096], encoding)
        except (OSError, EOFError, zlib.error) as error:
            raise read_error(path, error) from error

    @property
    def place(self) -> tuple[int, int]:
        """Where the next line begins."""
        return self.line, self.byte

    def go_to(self, line: int, byte: int) -> None:
        """Go on at a place."""
        try:
            self._raw.seek(byte)
        except (OSError, EOFError, zlib.error) as error:
            raise read_error(self.path, error) from error
        self.line, self.byte = line, byte

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return self

    def __next__(self) -> tuple[int, str]:
        try:
            raw = self._raw.readline()
            text = raw.decode(self.encoding, "surrogateescape")
        except UnicodeError as error:
            raise encoding_error(self.path, self.encoding, error) from error
        except (OSError, EOFError, zlib.error) as error:
            raise read_error(self.path, error) from error
        if not raw:
            raise StopIteration
        self.line += 1
        self.byte += len(raw)
        return self.line, text.removeprefix("\ufeff") if self.line == 1 else text

    def close(self) -> None:
        self._raw.close()


def strip_line_end(line: str) -> str:
    """The line without "\\n" or "\\r\\n"."""
    return line.removesuffix("\n").removesuffix("\r")


def check_text_format(path: Path, head: bytes, encoding: str) -> None:
    """Raise DataError for a file that is empty, compressed, or in 16 or 32 bits a character and to be read as 8."""
    if not head:
        raise DataError(f"{path} is empty.")
    if head.startswith(GZIP_MARK):
        raise DataError(f"{path} is compressed with gzip: add .gz to its name.")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return
    marked = next((name for mark, name in WIDE_MARKS.items() if head.startswith(mark)), None)
    if marked or head.count(0) > len(head) // 5:
        raise DataError(
            f"{path} looks like {marked or 'utf-16'}, not {encoding}. Set data.encoding: {marked or 'utf-16'}."
        )


@dataclass
class DecodingCheck:
    """Counts the rows of one file that could not be decoded, and refuses the file if they are too many."""

    path: Path
    encoding: str
    rows: int = 0
    beyond_ascii: int = 0
    undecodable: int = 0
    first_undecodable: int | None = None
    advice: str = "Set data.encoding to what it is in (such as latin-1, cp1252)."

    def count(self, text: str, line: int) -> bool:
        """Count a row; true if all of it could be decoded."""
        self.rows += 1
        if text.isascii():
            return True
        self.beyond_ascii += 1
        if SURROGATE.search(text) is None:
            return True
        self.undecodable += 1
        if self.first_undecodable is None:
            self.first_undecodable = line
        return False

    def check_so_far(self) -> None:
        """Check a file that has not been read to its end, as soon as there are enough rows to judge by."""
        if self.rows >= ENOUGH_ROWS:
            self.check()

    def check(self) -> None:
        """Raise DataError if the file as a whole is not in the encoding: a few broken rows are left out, not more.

        Too many are more than a tenth of all rows, or ten and more that are most of the rows beyond ASCII: in the wrong
        encoding, English text is wrong only where it has an accent.
        """
        mostly_wrong = self.undecodable >= 10 and self.undecodable * 2 > self.beyond_ascii
        if self.undecodable * 10 > self.rows or mostly_wrong:
            raise DataError(
                f"{self.path} is not in {self.encoding}: {self.undecodable} of {self.rows} rows cannot be decoded, the "
                f"first at line {self.first_undecodable}. {self.advice}"
            )
