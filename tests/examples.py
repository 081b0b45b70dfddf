"""How many random examples a property test tries.

`make test` runs on every change and tries few. `make nightly` tries all of them.
"""

from __future__ import annotations

import os

NIGHTLY = os.environ.get("STOWAGE_TESTS") == "nightly"
_USUAL = 100  # where a test does not say how many
_PART = 5  # `make test` tries one of so many
_LEAST = 10


def examples(nightly: int) -> int:
    """So many in the nightly run."""
    return nightly if NIGHTLY else min(nightly, max(_LEAST, nightly // _PART))


USUAL = examples(_USUAL)
