"""Entry point of the process ``stowage``, and its exit codes.

0 without a message if the reader of its output closes the pipe; 1 with a message if its output cannot be
written; on Ctrl-C it ends by that signal, 130 in a shell, without a message.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal takes 10 ms, in which Ctrl-C prints a traceback
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default with the arguments of the process. Returns the exit code."""
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
                _end_at_ctrl_c()  # again: an event loop has replaced the handler


def _end_at_ctrl_c() -> None:
    if _signal.getsignal(_signal.SIGINT) != _signal.SIG_IGN:  # ignored for background jobs of a shell
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
