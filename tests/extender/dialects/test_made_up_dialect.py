"""A dialect is one file in ``extender/dialects``, listed in ``DIALECTS``: a made-up one works everywhere.

It has names of containers in its annotations, a writer, a condition of nodes, and lists of permitted GPUs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MADE_UP = Path(__file__).parent / "made_up"
_RUN = """import sys
sys.path.insert(0, sys.argv.pop(1))
import extender, pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_a_made_up_dialect_takes_one_file_and_one_line(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "extender", tmp_path / "extender")  # with what Python has compiled
    shutil.copy(MADE_UP / "fence.py", tmp_path / "extender/dialects")
    listed = tmp_path / "extender/dialects/pod_request.py"
    text = listed.read_text().replace("    hami.DIALECT,\n", "    fence.DIALECT,\n    hami.DIALECT,\n")
    listed.write_text(re.sub(r"(?m)^from extender\.dialects import ", r"\g<0>fence, ", text, count=1))
    words = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), str(MADE_UP / "checks.py")]
    run = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path), *words],
        cwd=ROOT,
        env=os.environ | {"COPY": str(tmp_path), "NUMBA_DISABLE_JIT": "1"},  # compiling takes longer
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
