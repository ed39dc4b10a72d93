"""Guards against files that decompress to far more than they hold, such as a few megabytes of zeros."""

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

from kit.errors import DataError
from kit.system.files import open_regular

MAX_RATIO = 200
"""Text compresses to a tenth and numbers to less; only what repeats itself to no end compresses more than this."""
ALWAYS_ALLOWED = 2**28
"""Bytes that a file may decompress to whatever its ratio: so few fit into memory."""


def check_expansion(path: Path, size: int) -> None:
    """Raise DataError if a file of so many decompressed bytes is a decompression bomb."""
    stored = max(1, path.stat().st_size)
    if size > ALWAYS_ALLOWED and size > MAX_RATIO * stored:
        raise DataError(
            f"{path} decompresses to {size / 1e6:,.0f} MB or more, over {MAX_RATIO} times its {stored / 1e6:,.1f} MB. "
            "Real data does not compress that well: the file is corrupt, or made to exhaust "
            "memory. If you trust it, decompress it yourself."
        )


def check_archive(path: Path, content: BinaryIO) -> None:
    """Raise DataError if a zip archive is a decompression bomb, and BadZipFile if it is not a zip archive."""
    with zipfile.ZipFile(content) as archive:  # reading a member stops at the size that the archive states
        check_expansion(path, sum(entry.file_size for entry in archive.infolist()))
    content.seek(0)


def open_gzip(path: Path) -> io.BufferedReader:
    """Open a gzip file for reading; reading raises DataError before a decompression bomb fills the memory."""
    return io.BufferedReader(_Decompressed(path), 2**16)


class _Decompressed(io.RawIOBase):
    """The decompressed bytes of a gzip file, with a check of their total."""

    def __init__(self, path: Path):
        self._path, self._file = path, open_regular(path)
        self._stream = gzip.GzipFile(fileobj=self._file)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        check_expansion(self._path, self._stream.tell())
        return count

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self._file.close()
        super().close()
