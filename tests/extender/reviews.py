"""TokenReviews and SubjectAccessReviews of the API server for tests."""

from __future__ import annotations

import threading
from typing import Any

Manifest = dict[str, Any]
TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Reviews:
    """``users`` by token, and ``rights`` as (user, verb, path). ``requests``: the spec of each review.

    Tokens are for the API server, except those in ``audiences``. ``status`` answers all reviews instead, if
    it is not 0. Reviews wait while ``open`` is not set.
    """

    def __init__(self) -> None:
        self.users: dict[str, Manifest] = {}
        self.audiences: dict[str, str] = {}
        self.rights: set[tuple[str, str, str]] = set()
        self.requests: list[Manifest] = []
        self.status = 0
        self.open = threading.Event()
        self.open.set()

    def handles(self, path: str) -> bool:
        return path in (TOKENS, ACCESS)

    def handle(self, path: str, body: Manifest) -> tuple[int, Manifest]:
        spec = body["spec"]
        self.requests.append(spec)
        self.open.wait(30)
        if self.status:
            return self.status, {"kind": "Status", "message": f"scripted for {spec.get('token')}"}
        if path == TOKENS:
            assert (body["apiVersion"], body["kind"]) == ("authentication.k8s.io/v1", "TokenReview")
            user, audience = self.users.get(spec["token"]), self.audiences.get(spec["token"], "kubernetes")
            if user is None or audience not in spec.get("audiences", ["kubernetes"]):
                return 201, {"status": {"error": "unknown"}}
            return 201, {"status": {"authenticated": True, "user": user, "audiences": [audience]}}
        assert (body["apiVersion"], body["kind"]) == ("authorization.k8s.io/v1", "SubjectAccessReview")
        asked = spec["nonResourceAttributes"]
        allowed = (spec["user"], asked["verb"], asked["path"]) in self.rights
        return 201, {"status": {"allowed": allowed}}
