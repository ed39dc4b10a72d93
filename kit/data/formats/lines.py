"""From bytes to lines of text: decompression, decoding, and the count of rows that cannot be decoded.

A byte that is invalid in the encoding becomes a lone surrogate (`errors="surrogateescape"`), a code point that valid
text never contains. So the row can still be parsed, and is then recognized, dropped and counted.
"""

import codecs
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kit.data.formats.compressed import open_gzip
from kit.errors import DataError
from kit.system.files import open_regular

SURROGATE = re.compile("[\ud800-\udfff]")
WIDE_MARKS = {  # UTF-32 first: its little-endian mark starts with that of UTF-16
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
GZIP_MARK = b"\x1f\x8b"
MIN_ROWS_TO_JUDGE = 100
"""Rows after which the encoding of a file that is still being read can be judged."""


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file for reading bytes, decompressed if its name ends in .gz. Raises DataError for a pipe or a device."""
    try:
        return open_gzip(path) if path.suffix == ".gz" else open_regular(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Context manager: an error while the bytes of a file are read becomes a DataError with its remedy."""
    try:
        yield
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"{path} is not a valid gzip file ({error}). Compress it again, or remove .gz from its name."
        ) from error
    except EOFError as error:
        raise DataError(
            f"{path} is truncated: the end of the compressed data is missing. Download or copy it again."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def encoding_error(path: Path, encoding: str, error: UnicodeError) -> DataError:
    return DataError(f"{path} is not in {encoding} ({error}). Set data.encoding to its encoding.")


def read_lines(path: Path, encoding: str) -> Iterator[str]:
    r"""Each line, including its line ending. Only "\n" ends a line: U+2028 and the like are characters of the text.

    A byte order mark is removed. Raises DataError if the file is empty, corrupt, or obviously in a wider encoding.
    """
    with open_bytes(path) as raw, reading(path):
        try:
            check_text_format(path, raw, encoding)
            with io.TextIOWrapper(raw, encoding, "surrogateescape", newline="\n") as text:
                for number, line in enumerate(text):
                    yield line.removeprefix("\ufeff") if number == 0 else line
        except UnicodeError as error:
            raise encoding_error(path, encoding, error) from error
        except LookupError as error:
            raise DataError(f'data.encoding: "{encoding}" is not a text encoding ({error}).') from error


class LineReader:
    """Iterates over the lines of a file with their numbers, like `read_lines`, from any position.

    A position is the number of lines and of bytes before the next line (for .gz, of decompressed bytes). Seeking takes
    constant time in a plain file; a .gz file is decompressed up to there.
    """

    def __init__(self, path: Path, encoding: str):
        # utf-8-sig would swallow a mark wherever decoding starts; here it is removed from the first line only.
        self.encoding = "utf-8" if codecs.lookup(encoding).name == "utf-8-sig" else encoding
        try:
            newline_is_one_byte = "\n".encode(self.encoding) == b"\n"
        except (LookupError, UnicodeError):
            newline_is_one_byte = False
        if not newline_is_one_byte:
            raise DataError(
                f"data.encoding: in {encoding} a newline is not one byte, so {path} cannot be streamed. Convert it to "
                "utf-8, or remove data.streaming."
            )
        self.path = path
        self.line = self.byte = 0
        self._raw = open_bytes(path)
        with reading(path):
            check_text_format(path, self._raw, encoding)

    @property
    def position(self) -> tuple[int, int]:
        """Lines and bytes before the next line."""
        return self.line, self.byte

    def seek(self, line: int, byte: int) -> None:
        """Continue at a position."""
        with reading(self.path):
            self._raw.seek(byte)
        self.line, self.byte = line, byte

    def __iter__(self) -> Iterator[tuple[int, str]]:
        with reading(self.path):
            for raw in self._raw:
                try:
                    text = raw.decode(self.encoding, "surrogateescape")
                except UnicodeError as error:
                    raise encoding_error(self.path, self.encoding, error) from error
                self.line += 1
                self.byte += len(raw)
                yield self.line, text.removeprefix("\ufeff") if self.line == 1 else text

    def close(self) -> None:
        self._raw.close()


def strip_line_end(line: str) -> str:
    r"""The line without "\n" or "\r\n"."""
    return line.removesuffix("\n").removesuffix("\r")


def check_text_format(path: Path, raw: io.BufferedReader, encoding: str) -> None:
    """Raise DataError for a file that is empty, is gzip without the name, or is UTF-16 or UTF-32 by mistake."""
    head = raw.peek(4096)[:4096]
    if not head:
        raise DataError(f"{path} is empty.")
    if head.startswith(GZIP_MARK):
        raise DataError(f"{path} is compressed with gzip: add .gz to its name.")
    if codecs.lookup(encoding).name.startswith(("utf-16", "utf-32")):
        return
    marked = next((name for mark, name in WIDE_MARKS.items() if head.startswith(mark)), None)
    # Without a mark, every second byte of Western text in UTF-16 is zero; valid 8-bit text has none.
    if marked or head.count(0) > len(head) // 5:
        raise DataError(
            f"{path} looks like {marked or 'utf-16'}, not {encoding}. Set data.encoding: {marked or 'utf-16'}."
        )


@dataclass
class DecodingCheck:
    """Counts the rows of one file that could not be decoded, and rejects the file if there are too many."""

    path: Path
    encoding: str
    rows: int = 0
    non_ascii: int = 0
    undecodable: int = 0
    first_undecodable: int | None = None
    advice: str = "Set data.encoding to its encoding (such as latin-1 or cp1252)."

    def count(self, text: str, line: int) -> bool:
        """Count a row; returns whether all of it could be decoded."""
        self.rows += 1
        if text.isascii():
            return True
        self.non_ascii += 1
        if SURROGATE.search(text) is None:
            return True
        self.undecodable += 1
        if self.first_undecodable is None:
            self.first_undecodable = line
        return False

    def check_so_far(self) -> None:
        """Check a file that has not been read to its end, once there are enough rows to judge."""
        if self.rows >= MIN_ROWS_TO_JUDGE:
            self.check()

    def check(self) -> None:
        """Raise DataError if the file as a whole has another encoding; a few corrupt rows are tolerated.

        The limit is a tenth of all rows, or ten rows that are the majority of those beyond ASCII: English text in the
        wrong encoding is wrong only where it has an accent.
        """
        mostly_wrong = self.undecodable >= 10 and self.undecodable * 2 > self.non_ascii
        if self.undecodable * 10 > self.rows or mostly_wrong:
            raise DataError(
                f"{self.path} is not in {self.encoding}: {self.undecodable} of {self.rows} rows cannot be decoded, the "
                f"first at line {self.first_undecodable}. {self.advice}"
            )
