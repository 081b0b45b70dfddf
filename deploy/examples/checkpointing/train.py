"""A small training job that survives preemption: it saves its work and goes on from there after a restart.

    python3 train.py --directory /checkpoints --steps 200000

It fits a line with stochastic gradient descent, in plain Python. What matters is the same for a large model:

- It saves every N steps and on SIGTERM: into a new file that is synced and then renamed over the old one, so
  that a crash in the middle of a write leaves the last checkpoint as it was.
- A checkpoint has all that the next step depends on, also the state of the random numbers (and that of an
  optimizer): an interrupted run ends with the same result, bit by bit, as one without interruption.
- After SIGTERM it exits with 143, not with 0: a Job would count a pod that ends with 0 as done.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import ssl
import sys
import time
import urllib.request
import zlib
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

State: TypeAlias = dict[str, Any]
TERMINATED = 128 + signal.SIGTERM
STOP = False
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = "https://kubernetes.default.svc"


def main() -> int:
    arguments = parse()
    signal.signal(signal.SIGTERM, stop)
    directory = Path(arguments.directory)
    directory.mkdir(parents=True, exist_ok=True)
    model, step = Model(), 0
    if (state := load(directory)) is not None:
        step = state["step"]
        model.restore(state["model"])
        print(f"resumed from step {step}", flush=True)
    while step < arguments.steps:
        model.train_step()
        step += 1
        if STOP or step % arguments.every == 0 or step == arguments.steps:
            save(directory, {"step": step, "model": model.state()})
            print(f"step {step}: {model.describe()}", flush=True)
            announce_checkpoint()
        if STOP:
            print(f"terminated after step {step}", flush=True)
            return TERMINATED
        if arguments.sleep:
            time.sleep(arguments.sleep)
    print(f"done: {model.describe()}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="fits a line, and saves checkpoints")
    parser.add_argument("--directory", default="checkpoints", help="where checkpoints are kept")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--every", type=int, default=10_000, help="steps between checkpoints")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds to wait after each step")
    return parser.parse_args()


def stop(signal_number: int, frame: FrameType | None) -> None:
    """Only notes the signal: the loop ends its step first, so that a checkpoint is never half a step."""
    global STOP
    STOP = True


class Model:
    """y = slope x + offset, learned from noisy points of y = 3 x - 2."""

    def __init__(self) -> None:
        self.slope, self.offset = 0.0, 0.0
        self.random = random.Random(7)

    def train_step(self) -> None:
        x = self.random.uniform(-1, 1)
        error = self.slope * x + self.offset - (3 * x - 2 + self.random.gauss(0, 0.1))
        self.slope -= 0.01 * error * x
        self.offset -= 0.01 * error

    def describe(self) -> str:
        return f"slope {self.slope!r}, offset {self.offset!r}"

    def state(self) -> State:
        return {"slope": self.slope, "offset": self.offset, "random": self.random.getstate()}

    def restore(self, state: State) -> None:
        self.slope, self.offset = state["slope"], state["offset"]
        version, numbers, gauss = state["random"]
        self.random.setstate((version, tuple(numbers), gauss))


def save(directory: Path, state: State) -> None:
    """Replace the checkpoint in one step. The directory is synced, too: else the rename may be lost."""
    body = json.dumps(state)
    temporary = directory / "checkpoint.json.new"
    with temporary.open("w") as file:
        file.write(json.dumps({"crc": zlib.crc32(body.encode()), "body": body}))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(directory / "checkpoint.json")
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load(directory: Path) -> State | None:
    """The last checkpoint, None if there is none. A damaged one ends the job: a silent restart from the
    beginning would hide it."""
    path = directory / "checkpoint.json"
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text())
        if zlib.crc32(stored["body"].encode()) == stored["crc"]:
            state: State = json.loads(stored["body"])
            return state
    except (ValueError, TypeError, KeyError):
        pass
    sys.exit(f"{path} is damaged: restore or delete it")


def announce_checkpoint() -> None:
    """With STOWAGE_ANNOTATE=1, write the time into the annotation stowage.dev/checkpointed-at of this pod, so
    that Stowage knows how little work its eviction would cost. Needs the Role in job.yaml. Its failure does
    not end the job."""
    if os.environ.get("STOWAGE_ANNOTATE") != "1":
        return
    try:
        pod = f"{(ACCOUNT / 'namespace').read_text()}/pods/{os.environ['POD_NAME']}"
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        request = urllib.request.Request(
            f"{API}/api/v1/namespaces/{pod}",
            json.dumps({"metadata": {"annotations": {"stowage.dev/checkpointed-at": now}}}).encode(),
            {
                "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
                "Content-Type": "application/merge-patch+json",
            },
            method="PATCH",
        )
        context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        urllib.request.urlopen(request, timeout=5, context=context).close()
    except (OSError, KeyError) as error:
        print(f"the checkpoint could not be announced: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
