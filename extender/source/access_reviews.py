"""Authenticates a token at the API server (TokenReview), and authorizes its user (SubjectAccessReview).

The same two requests that kube-rbac-proxy and controller-runtime's metrics filter send
(kubernetes-sigs/controller-runtime, pkg/metrics/filters/filters.go): the path as a non-resource URL, and the
HTTP method in lower case as the verb.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from extender.source.errors import ReviewError
from extender.source.rest import NO_ANSWER, Refused, RestClient
from extender.untrusted.limits import REVIEW_SECONDS

_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
AUDIENCE = "stowage"
"""The audience of tokens that only Stowage accepts: the API server refuses requests with them."""
_USER_FIELDS = {"username": "user", "uid": "uid", "groups": "groups", "extra": "extra"}
"""Fields of the user in a TokenReview, and their names in a SubjectAccessReview."""


class AccessReviews:
    """Reviews of tokens and access by the API server. Both calls block for at most a few seconds, and raise
    ``ReviewError``."""

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    def authenticate(self, token: str) -> tuple[Mapping[str, object], bool] | None:
        """The user of this token, in the form ``allows`` expects, and whether it may be used for everything:
        not if a service account has it for the API server instead of ``AUDIENCE``. None if it is invalid."""
        if user := self._user({"token": token, "audiences": [AUDIENCE]}):
            return user, True
        user = self._user({"token": token})
        return (user, not str(user["user"]).startswith("system:serviceaccount:")) if user else None

    def _user(self, spec: Mapping[str, object]) -> Mapping[str, object] | None:
        status = self._review(_TOKENS, "authentication.k8s.io/v1", "TokenReview", spec)
        user = status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict) or not user.get("username"):
            return None
        if "audiences" in spec and AUDIENCE not in (status.get("audiences") or ()):
            return None  # a webhook that does not know about audiences
        return {name: user[field] for field, name in _USER_FIELDS.items() if user.get(field)}

    def allows(self, user: Mapping[str, object], verb: str, path: str) -> bool:
        """Whether RBAC allows the user this verb ("get") on this path (a ``nonResourceURL``)."""
        spec = {**user, "nonResourceAttributes": {"verb": verb, "path": path}}
        status = self._review(_ACCESS, "authorization.k8s.io/v1", "SubjectAccessReview", spec)
        return status.get("allowed") is True and status.get("denied") is not True

    def _review(self, path: str, version: str, kind: str, spec: Mapping[str, object]) -> dict[str, Any]:
        body = {"apiVersion": version, "kind": kind, "spec": spec}
        try:
            status = self._rest.exchange("POST", path, REVIEW_SECONDS / 2, body).get("status")
        except Refused as refused:
            raise ReviewError(f"{kind}: {refused}") from None
        except NO_ANSWER:  # whose text might quote the body
            raise ReviewError(f"{kind}: the API server did not answer") from None
        if not isinstance(status, dict):
            raise ReviewError(f"{kind}: the answer has no status")
        return status
