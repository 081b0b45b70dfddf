"""Reads and writes the Lease that replicas share, in ``coordination.k8s.io/v1``."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from extender.source.interface import LeaseError
from extender.source.leader_election import LeaseRecord
from extender.source.rest import NO_ANSWER, Refused, RestClient

_SPEC_FIELDS = {
    "holder": "holderIdentity",
    "seconds": "leaseDurationSeconds",
    "acquired": "acquireTime",
    "renewed": "renewTime",
    "transitions": "leaseTransitions",
}
"""Fields of ``LeaseRecord``, and their names in the ``spec`` of a Lease."""


class KubeLease:
    """A ``Lease``. Fields that ``LeaseRecord`` does not have keep their values."""

    def __init__(self, rest: RestClient, namespace: str, name: str, timeout: float) -> None:
        """``timeout``: seconds for one request."""
        self._rest, self._namespace, self._name, self._timeout = rest, namespace, name, timeout
        self._path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._object: dict[str, Any] | None = None  # as last read or written, with its resource version

    def read(self) -> LeaseRecord:
        """See ``Lease``."""
        try:
            self._object = self._request("GET", f"/{self._name}")
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise LeaseError(str(refused)) from None
            self._object = None
            return LeaseRecord()
        spec = self._object.get("spec") or {}
        given = {key: spec.get(name) for key, name in _SPEC_FIELDS.items()}
        return LeaseRecord(**{key: value for key, value in given.items() if value is not None})

    def write(self, record: LeaseRecord) -> None:
        """See ``Lease``."""
        spec = {name: getattr(record, key) or None for key, name in _SPEC_FIELDS.items()}  # as client-go does
        try:
            if self._object is None:
                metadata = {"name": self._name, "namespace": self._namespace}
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
                self._object = self._request("POST", "", lease | {"spec": spec})
            else:  # its resource version makes the server refuse the update if somebody wrote since
                changed = self._object | {"spec": (self._object.get("spec") or {}) | spec}
                self._object = self._request("PUT", f"/{self._name}", changed)
        except Refused as refused:
            raise LeaseError(str(refused)) from None

    def _request(self, method: str, subpath: str, body: object = None) -> dict[str, Any]:
        try:
            lease = self._rest.exchange(method, self._path + subpath, self._timeout, body)
        except (*NO_ANSWER, ValueError) as error:
            raise LeaseError(f"the API server did not answer: {error}") from error
        if not isinstance(lease, dict):
            raise LeaseError("the answer is not a Lease")
        return lease
