"""A Lease as the API server has it: the record that replicas share, in ``coordination.k8s.io/v1``."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, TypeAlias

from extender.source.interface import LeaseError
from extender.source.leader_election import Record
from extender.source.reflector import NO_ANSWER, Refused

Exchange: TypeAlias = Callable[[str, str, float, object], object]
"""Method, path, seconds that it may take and body (or None) to the answer; raises ``Refused``, ``NO_ANSWER``
and ``ValueError``."""

_RECORD = {
    "holder": "holderIdentity",
    "seconds": "leaseDurationSeconds",
    "acquired": "acquireTime",
    "renewed": "renewTime",
    "transitions": "leaseTransitions",
}
"""By name in a ``Record``, the name in the ``spec`` of a Lease."""


class KubeLease:
    """A Lease of ``coordination.k8s.io/v1``. What it holds besides our record stays as it is."""

    def __init__(self, exchange: Exchange, namespace: str, name: str, within: float) -> None:
        """``within``: seconds for one request."""
        self._send, self._name, self._within = exchange, name, within
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._known: dict[str, Any] | None = None  # the object with its version

    def read(self) -> Record:
        """See ``Lease``."""
        try:
            self._known = self._exchange("GET", f"/{self._name}")
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise LeaseError(str(refused)) from None
            self._known = None
            return Record()
        spec = self._known.get("spec") or {}
        return Record(**{key: spec[name] for key, name in _RECORD.items() if spec.get(name) is not None})

    def write(self, record: Record) -> None:
        """See ``Lease``."""
        spec = {name: getattr(record, key) or None for key, name in _RECORD.items()}  # as client-go does
        try:
            if self._known is None:
                metadata = {"name": self._name, "namespace": self._namespace}
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
                self._known = self._exchange("POST", "", lease | {"spec": spec})
            else:  # with the version of what is known: the server refuses it if another one wrote since
                changed = self._known | {"spec": (self._known.get("spec") or {}) | spec}
                self._known = self._exchange("PUT", f"/{self._name}", changed)
        except Refused as refused:
            raise LeaseError(str(refused)) from None

    def _exchange(self, method: str, rest: str, body: object = None) -> dict[str, Any]:
        try:
            lease = self._send(method, self._path + rest, self._within, body)
        except (*NO_ANSWER, ValueError) as error:
            raise LeaseError(f"the API server did not answer: {error}") from error
        if not isinstance(lease, dict):
            raise LeaseError("the answer is no Lease")
        return lease
