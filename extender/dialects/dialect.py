"""What the module of a sharing system must offer, so that Stowage reads pods of that sharing system and
writes for its device plugin. ``pod_request.DIALECTS`` and ``pod_request.WRITERS`` list the modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from extender.dialects.claims import Claims
from extender.dialects.pod_resources import Amounts
from extender.k8s.objects import Node, Pod, PodSpec
from packing.model.node_spec import NodeSpec
from packing.model.request import Shares


class Dialect(Protocol):
    """One sharing system's way to request parts of GPUs, and to say which GPUs a pod has."""

    RESOURCE: str
    """The extended resource that counts the shares. A node shares its GPUs under this name."""
    REQUEST_ANNOTATIONS: frozenset[str]
    """Annotations of a waiting pod that change its request."""
    ASSIGNMENT_ANNOTATIONS: frozenset[str]
    """Annotations that say which GPUs a pod has been given, and when."""

    def requested_shares(
        self, spec: PodSpec, resources: Amounts, metadata: Mapping[str, str]
    ) -> Shares | None:
        """What the pod requests, None if it does not use this dialect. Raises ValueError, or RequestError.

        ``resources`` are the pod's ``effective_requests``, ``metadata`` the annotations and labels that any
        dialect reads.
        """
        ...

    def max_granted_shares(self, pod: Pod, resources: Amounts) -> Shares | None:
        """The most that a bound pod with an unreadable request can have been given, None for nothing.

        Amounts in annotations do not count, unless annotations are the only way to request. ``resources`` are
        the pod's ``effective_requests``. All quantities in its spec can be read. Never raises.
        """
        ...

    def claims(self, pod: Pod) -> Claims | None:
        """What a bound pod says it has, None if it says nothing in this dialect. Never raises."""
        ...


class AssignmentWriter(Protocol):
    """A dialect in which ``bind`` writes which GPUs a pod gets. ``Dialect.claims`` reads it back."""

    RESOURCE: str

    def assignment(
        self, pod: Pod, node_spec: NodeSpec, gpus: tuple[int, ...], now: float, taken: Mapping[int, int]
    ) -> dict[str, str]:
        """The annotations that give a pod these GPUs (indices) of a node that shares them as ``RESOURCE``.

        ``now`` is in Unix seconds. ``taken`` has the memory slices that other pods have on each of these
        GPUs, as masks. Raises RequestError if the node's device plugin could not follow such annotations.
        """
        ...

    def plugin_may_confuse(self, node: Node, others: Iterable[Pod]) -> bool:
        """Could the device plugin confuse this pod with one that is still starting?

        ``others`` are the pods on the node.
        """
        ...
