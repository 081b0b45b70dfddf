"""Each kind is watched by a thread of its own, and all begin at once."""

from __future__ import annotations

import subprocess
import sys

from tests.examples import examples

PROGRAM = """
import sys, threading
from extender.source.list_watch import ListWatch
from extender.source.watched_kinds import WATCHED_KINDS

sys.setswitchinterval(1e-6)
PAGE = b'{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}]}'
together = threading.Barrier(len(WATCHED_KINDS))

def read(watched):
    together.wait()
    ListWatch(watched).page(PAGE)

threads = [threading.Thread(target=read, args=(watched,)) for watched in WATCHED_KINDS.values()]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_lists_of_all_kinds_may_be_decoded_at_once() -> None:
    """msgspec crashed in one start of ten."""
    for _ in range(examples(50, least=3)):
        ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stderr) == (0, "")
