"""The process ``stowage``, and how it ends.

A reader of its output who has seen enough: 0, without a word. Output that cannot be written: 1, and a line
that says so. Ctrl-C: that signal ends it, 130 in a shell, without a word.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal takes 10 ms, in which Ctrl-C prints a traceback
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default that of the process. Returns the exit code."""
    if argv is None:
        _end_at_ctrl_c()  # before the imports, which take a second
    from extender.cli import arguments
    from extender.untrusted.terminal import OutputLost, abandon_output, shown

    with shown():
        try:
            try:
                return arguments.run(argv)
            finally:
                sys.stdout.flush()
        except OutputLost as lost:
            abandon_output()
            if not lost.unread:
                print(f"stowage: standard output: {lost}", file=sys.stderr)
            return int(not lost.unread)
        except KeyboardInterrupt:
            return 130
        finally:
            if argv is None:
                _end_at_ctrl_c()  # again: an event loop had its own handler


def _end_at_ctrl_c() -> None:
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:  # as of what a shell starts in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
