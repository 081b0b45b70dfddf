"""Standard output and standard error of a command.

Hidden characters are escaped here, whatever code prints them. Output that cannot be written ends the command;
messages that cannot be written are dropped.
"""

from __future__ import annotations

import codecs
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO, cast

from extender.untrusted.visible import visible, visible_lines

_BAR = 30  # characters
_VISIBLY = "stowage.visibly"
"""The name under which ``_unencodable`` is registered."""


class OutputLost(Exception):
    """Standard output cannot be written; the text is the reason. ``unread``: the reader has closed the
    pipe."""

    def __init__(self, error: Exception) -> None:
        super().__init__(getattr(error, "strerror", None) or str(error))
        self.unread = isinstance(error, BrokenPipeError)


class _Shown:
    """A stream for people. Raises ``OutputLost`` if it cannot be written, unless it is for errors."""

    def __init__(self, stream: TextIO, *, errors: bool) -> None:
        self._stream, self._errors = stream, errors
        if reconfigure := getattr(stream, "reconfigure", None):  # or an ASCII terminal ends the command
            reconfigure(errors=_VISIBLY)

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self.control(visible_lines(text))

    def control(self, text: str) -> int:
        """Write a text that contains our control sequences."""
        with self._lost():
            return self._stream.write(text)
        return 0

    def flush(self) -> None:
        with self._lost():
            self._stream.flush()

    @contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            if not self._errors:
                raise OutputLost(error) from None


@contextmanager
def shown() -> Iterator[None]:
    """Pass all output of the block through here."""
    before = _opened("stdin"), _opened("stdout"), _opened("stderr")
    codecs.register_error(_VISIBLY, _unencodable)
    sys.stdout = cast(TextIO, _Shown(before[1], errors=False))
    sys.stderr = cast(TextIO, _Shown(before[2], errors=True))
    try:
        yield
    finally:
        _, sys.stdout, sys.stderr = before


def abandon_output() -> None:
    """Redirect the rest of standard output to the null device; otherwise the flush at exit fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block, Ctrl-C raises ``KeyboardInterrupt`` where it would end the process."""
    ends = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    try:
        if ends:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def show_line(text: str) -> None:
    """Replace the current line of a terminal on standard error; "" clears it. The next output overwrites
    it."""
    if sys.stderr.isatty():
        _control(sys.stderr, f"\r\033[K{visible(text)}\r")


def show_step(text: str) -> None:
    """Show the next step of a command, so that the user sees progress: by ``show_line``, or as a line if
    standard error is not a terminal."""
    if sys.stderr.isatty():
        show_line(f"{text} ...")
    else:
        print(text, file=sys.stderr, flush=True)


def show_progress(what: str, part: float) -> None:
    """Replace that line by a progress bar that is filled to ``part`` (0 to 1); 1 clears it."""
    filled = "#" * round(_BAR * part)
    show_line(f"{what:32.32} [{filled:.<{_BAR}}] {part:4.0%}" if part < 1 else "")


def line_width(*, wide: bool = False) -> int:
    """Width of a line on standard output in characters: ``COLUMNS``, or the width of the terminal; 0
    (unlimited) without both, or if ``wide``."""
    bounded = not wide and (sys.stdout.isatty() or os.environ.get("COLUMNS"))
    return shutil.get_terminal_size().columns if bounded else 0


def clear_screen() -> None:
    """Clear the screen if standard output is a terminal."""
    if sys.stdout.isatty():
        _control(sys.stdout, "\033[H\033[2J")


def _control(stream: TextIO, text: str) -> None:
    getattr(stream, "control", stream.write)(text)
    stream.flush()


def _opened(name: str) -> TextIO:
    """The stream, or the null device for one that the caller has closed (``>&-``): otherwise the next opened
    file would get its descriptor."""
    if getattr(sys, name) is None:
        setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w"))  # noqa: SIM115
    return cast(TextIO, getattr(sys, name))


def _unencodable(error: UnicodeError) -> tuple[str, int]:
    """Escape sequence for characters that the encoding of the stream lacks."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
