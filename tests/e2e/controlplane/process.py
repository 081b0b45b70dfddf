"""A child process with a log file, which never outlives the test run."""

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# With util-linux the kernel kills the program if pytest dies by SIGKILL.
LEASH = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class ProcessError(Exception):
    """A program that died, or was not ready in time. The message has the end of its log."""


def free_port() -> int:
    """A free loopback port below the kernel's ephemeral range.

    Inside that range a client that retries while the server is down may get the server's port as its
    source port and connect to itself. Outside, a restarted server finds its port free.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def eventually(condition: Callable[[], bool], *, within_s: float, what: str, every_s: float = 0.05) -> None:
    """Waits until `condition()` holds; raises TimeoutError with `what` if it does not hold in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)


def tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


class Process:
    """A program that can be restarted with the same arguments and the same log."""

    def __init__(
        self, name: str, command: Sequence[str | Path], *, log: Path, ready: Callable[[], bool]
    ) -> None:
        self.name = name
        self.command = [str(part) for part in command]
        self.log = log
        self.environment: Mapping[str, str] = os.environ
        self._ready = ready
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def ready(self) -> bool:
        return self.running and self._ready()

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    def start(self, *, within_s: float = 60) -> Self:
        """Starts the program and waits until it is ready. If that fails, stops it and raises ProcessError."""
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*LEASH, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                process_group=0,  # Ctrl-C reaches only pytest, which then stops the programs in order
            )
        try:
            eventually(self._dead_or_ready, within_s=within_s, what=f"{self.name} is ready")
        except BaseException as problem:
            self.kill()
            if isinstance(problem, TimeoutError):
                raise ProcessError(f"{problem}\n{tail(self.log)}") from None
            raise
        if not self.running:
            raise ProcessError(f"{self.name} ended with {self.stop()}\n{tail(self.log)}")
        return self

    def _dead_or_ready(self) -> bool:
        return not self.running or self._ready()

    def stop(self, *, within_s: float = 10) -> int:
        """Sends SIGTERM, and SIGKILL after `within_s`; returns the exit code."""
        assert self._child is not None
        if self.running:
            self._child.terminate()
            try:
                return self._child.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return self._child.returncode

    def kill(self) -> None:
        """Sends SIGKILL: the program cannot clean up."""
        assert self._child is not None
        self._child.kill()
        self._child.wait()

    def restart(self) -> None:
        """Kills the program and starts it again, as a crash would."""
        self.kill()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
