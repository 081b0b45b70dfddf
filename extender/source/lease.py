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


class Lease:
    """One Lease of the API server. Fields that ``LeaseRecord`` does not have keep their values. Both calls
    block, for at most ``timeout`` seconds a request."""

    def __init__(self, rest: RestClient, namespace: str, name: str, timeout: float) -> None:
        self._rest, self._timeout = rest, timeout
        self._metadata = {"name": name, "namespace": namespace}
        self._object: dict[str, Any] | None = None  # as last read or written, with its resource version

    def read(self) -> LeaseRecord:
        """The record in the Lease, an empty one if there is no Lease. Raises ``LeaseError``."""
        try:
            self._object = self._request("GET", self._metadata["name"])
        except Refused as refused:
            if refused.status != HTTPStatus.NOT_FOUND:
                raise LeaseError(str(refused)) from None
            self._object = None
            return LeaseRecord()
        spec = self._object.get("spec") or {}
        given = {key: spec.get(name) for key, name in _SPEC_FIELDS.items()}
        return LeaseRecord(**{key: value for key, value in given.items() if value is not None})

    def write(self, record: LeaseRecord) -> None:
        """Update or create the Lease, provided that nobody changed it since we last read or wrote it.

        Raises ``LeaseError``.
        """
        spec = {name: getattr(record, key) or None for key, name in _SPEC_FIELDS.items()}  # as client-go does
        try:
            if self._object is None:
                lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": self._metadata}
                self._object = self._request("POST", "", lease | {"spec": spec})
            else:  # its resource version makes the server refuse the update if somebody wrote since
                changed = self._object | {"spec": (self._object.get("spec") or {}) | spec}
                self._object = self._request("PUT", self._metadata["name"], changed)
        except Refused as refused:
            raise LeaseError(str(refused)) from None

    def _request(self, method: str, name: str, body: object = None) -> dict[str, Any]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self._metadata['namespace']}/leases"
        try:
            return self._rest.exchange(method, f"{path}/{name}" if name else path, self._timeout, body)
        except NO_ANSWER as error:
            raise LeaseError(f"the API server did not answer: {error}") from error
