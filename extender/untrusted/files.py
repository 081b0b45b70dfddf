"""The files that a user names: regular ones, and pipes of the shell; bounded, also when decompressed."""

from __future__ import annotations

import json
import os
import stat
import sys
from io import BytesIO
from pathlib import Path

_PASSED = "/dev/fd/", "/dev/stdin"
"""What the shell has opened for the command, as in ``--snapshot <(kubectl get nodes,pods -A -o json)``."""


class FileError(ValueError):
    """The name of a file, and why it is not read."""


class FileReader:
    """Reads files, and standard input (``-``): together at most ``most`` bytes, decompressed ones counted."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def read(self, path: Path) -> bytes:
        """The content, decompressed if it is in gzip format, and in UTF-8 without a byte order mark if it
        begins like UTF-16 or UTF-32, which PowerShell writes. Raises ``FileError``."""
        import zlib
        from gzip import GzipFile

        try:
            data = self._bytes_of(path)
            if data.startswith(b"\x1f\x8b") and len(data) <= self._left:
                data = GzipFile(fileobj=BytesIO(data)).read(self._left + 1)
            self._left -= len(data)
            if self._left < 0:
                raise FileError(f"{path}: all files together have more than {self._most >> 20} MiB")
            encoding = json.detect_encoding(data[:4])
            return data if encoding == "utf-8" else data.decode(encoding).encode()
        except UnicodeDecodeError:
            raise FileError(f"{path}: is not text") from None
        except (OSError, EOFError, zlib.error) as error:
            raise FileError(f"{path}: cannot be read: {getattr(error, 'strerror', '') or error}") from None

    def read_text(self, path: Path) -> str:
        """``read`` as text. Raises ``FileError``."""
        try:
            return self.read(path).decode()
        except UnicodeDecodeError:
            raise FileError(f"{path}: is not text") from None

    def _bytes_of(self, path: Path) -> bytes:
        if str(path) == "-":
            return sys.stdin.buffer.read(self._left + 1)
        is_passed = str(path).startswith(_PASSED)

        def without_waiting(path: str, flags: int) -> int:  # as opening a FIFO does for its writer
            return os.open(path, flags | os.O_NONBLOCK)

        with open(path, "rb", opener=None if is_passed else without_waiting) as file:
            if not is_passed and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileError(f"{path}: is not a regular file; - reads standard input")
            return file.read(self._left + 1)
