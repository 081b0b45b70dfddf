"""The shipped configurations of kube-scheduler with their lines for TLS, as docs/tls.md uncomments them."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def with_tls(file: Path) -> str:
    """The text of this file after the command in docs/tls.md."""
    page = (ROOT / "docs" / "tls.md").read_text()
    found = re.search(
        r"^(sed .*) scheduler-config/second-scheduler\.yaml > config\.yaml$", page, re.MULTILINE
    )
    assert found is not None
    command = f'{found[1]} "$0"'
    return subprocess.run(["sh", "-c", command, file], check=True, capture_output=True, text=True).stdout
