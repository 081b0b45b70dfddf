"""Pods that wait for room, and pods that have it."""

from __future__ import annotations

from typing import Any

from extender.evictor.book import SETTLE, Book
from extender.k8s.objects import Pod
from tests.extender.builders import make_pod


def waiter(name: str = "p", gpus: int = 1, **more: Any) -> Pod:
    more = {"unscheduled": "Unschedulable", "priority": 100} | more
    return make_pod(name, gpus, **more)


def victim(name: str = "v", node: str = "n1", gpus: int = 1, **more: Any) -> Pod:
    return make_pod(name, gpus, node_name=node, phase="Running", **more)


def settled(*pods: Pod) -> Book:
    """A book that has known these pods for long enough."""
    book = Book()
    book.see({pod.uid for pod in pods}, -SETTLE)
    return book
