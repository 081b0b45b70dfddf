"""`python -m tests.e2e.soak --seed 1 --faults 1000 --pods 100000`: a long soak, with a report at its end."""

import argparse
import faulthandler
import shlex
import signal
import sys
import tempfile
from pathlib import Path

from ..controlplane.build import missing
from ..controlplane.cluster import ControlPlane
from .plan import KINDS, plan
from .soak import Soak
from .stack import FLAGS


def main() -> int:
    """The exit code: 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=100_000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--calm-every", type=int, default=50, help="faults between two calms")
    parser.add_argument("--directory", type=Path, help="keeps logs and data here (a new directory)")
    given = parser.parse_args()
    faulthandler.register(signal.SIGUSR1)  # shows where each thread is
    if missing():
        sys.exit("not built yet: python -m tests.e2e.controlplane.build")
    command = shlex.join(["python", "-m", "tests.e2e.soak", *sys.argv[1:]])
    planned = plan(given.seed, given.faults, given.pods, tuple(given.kinds))
    with tempfile.TemporaryDirectory() as temporary:
        directory = given.directory or Path(temporary)
        with ControlPlane(directory, **FLAGS) as plane:
            print(f"logs: {plane.logs}", flush=True)
            ended = Soak(plane, command, given.seed, given.pods, planned, given.calm_every).run()
            print(ended, flush=True)
    return bool(ended.findings)


if __name__ == "__main__":
    sys.exit(main())
