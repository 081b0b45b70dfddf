"""Faults of processes: Stowage, kube-apiserver, etcd and kube-scheduler."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..controlplane.process import Process
from .plan import Planned
from .replica import Keeper, Replica, memory_of
from .stack import Stack

LEADER = 0.7  # of the faults of one replica hit the leader
BEAT_S, AWAKE = 0.2, 0.2  # of a slowed process, which runs for this part of each beat
HEADROOM = 48 << 20  # bytes of memory that a limited process may still get
MONTH = 30 * 24 * 3600


def victim(stack: Stack, planned: Planned) -> int:
    """The index of the replica: the leader, or else the other one."""
    return stack.leader if planned.pick < LEADER else 1 - stack.leader


def kill(stack: Stack, planned: Planned) -> None:
    index = victim(stack, planned)
    with _may_die(stack.keepers[index]), stack.replicas[index].lock:
        stack.replicas[index].process.kill()
        _wait_for_restart(stack.replicas[index])


def stop(stack: Stack, planned: Planned) -> None:
    one = stack.replicas[victim(stack, planned)]
    with one.lock, _stopped(one.process):
        time.sleep(planned.lasts_s)


def slow(stack: Stack, planned: Planned) -> None:
    one = stack.replicas[victim(stack, planned)]
    until = time.monotonic() + planned.lasts_s
    with one.lock:
        while time.monotonic() < until:
            with _stopped(one.process):
                time.sleep(BEAT_S * (1 - AWAKE))
            time.sleep(BEAT_S * AWAKE)


def limit_memory(stack: Stack, planned: Planned) -> None:
    """Little more address space than now, as before the kernel kills it. It may die, and is restarted."""
    index = victim(stack, planned)
    one = stack.replicas[index]
    with _may_die(stack.keepers[index]), one.lock:
        with suppress(OSError):
            _limit(one.process.pid, resource.RLIMIT_AS, memory_of(one.process.pid) + HEADROOM)
        time.sleep(planned.lasts_s)
        with suppress(OSError):
            _limit(one.process.pid, resource.RLIMIT_AS, resource.RLIM_INFINITY)
        _wait_for_restart(one)


def fill_disk(stack: Stack, planned: Planned) -> None:
    """No file can grow: not its log, not its kernels."""
    one = stack.replicas[victim(stack, planned)]
    with one.lock, suppress(ProcessLookupError):
        _limit(one.process.pid, resource.RLIMIT_FSIZE, 0)
        time.sleep(planned.lasts_s)
        _limit(one.process.pid, resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


def start_on_a_full_disk(stack: Stack, planned: Planned) -> None:
    """Killed, and no file can grow until it has started again."""
    index = victim(stack, planned)
    one, command = stack.replicas[index], stack.replicas[index].process.command
    with _may_die(stack.keepers[index]), one.lock:
        one.process.command = ["prlimit", "--fsize=0:", "--", *command]
        try:
            one.process.kill()
            _wait_for_restart(one)
        finally:
            one.process.command = command
        with suppress(ProcessLookupError):
            _limit(one.process.pid, resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


def jump_clock(stack: Stack, planned: Planned) -> None:
    """Back or forth: by seconds, an hour or a month."""
    one = stack.replicas[victim(stack, planned)]
    offsets = (-MONTH, -3600, -30, 30, 3600, MONTH)
    with one.lock:
        one.set_clock(offsets[planned.number % len(offsets)])
        time.sleep(planned.lasts_s)
        one.set_clock(0)


def kill_api_server(stack: Stack, planned: Planned) -> None:
    with stack.control_plane_lock:
        stack.plane.apiserver.restart()


def stop_api_server(stack: Stack, planned: Planned) -> None:
    with stack.control_plane_lock, _stopped(stack.plane.apiserver):
        time.sleep(planned.lasts_s)


def restart_etcd(stack: Stack, planned: Planned) -> None:
    with stack.control_plane_lock:
        stack.plane.etcd.restart()


def kill_scheduler(stack: Stack, planned: Planned) -> None:
    with stack.control_plane_lock:
        stack.scheduler.restart()


@contextmanager
def _stopped(process: Process) -> Iterator[None]:
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


@contextmanager
def _may_die(keeper: Keeper) -> Iterator[None]:
    keeper.excuse += 1
    try:
        yield
    finally:
        keeper.excuse -= 1


def _limit(pid: int, what: int, soft: int) -> None:
    _, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, hard))


def _wait_for_restart(one: Replica, within_s: float = 120) -> None:
    """Until it answers again: the fault is over when kubelet has done its part."""
    until = time.monotonic() + within_s
    while time.monotonic() < until and one.status("/healthz") != 200:
        time.sleep(0.1)
