"""Queries a running Stowage over HTTP: at a URL, or behind a Service, through the API server's proxy.

The path of the proxy is ``/api/v1/namespaces/{namespace}/services/{scheme}:{name}:{port}/proxy/{path}``.
RBAC checks ``services/proxy`` with the name ``{scheme}:{name}:{port}``, verb ``get`` for GET and ``create``
for POST (k8s.io/kubernetes v1.36.3, pkg/registry/core/service/storage/storage.go ``ResourceLocation``). It
connects to one of the ready endpoints, and verifies no certificate with ``https``. The API server removes
``Authorization`` from requests that it proxies.

Where Stowage requires a token, and none is given, the API server is asked for one of the service account
``VIEWER`` that is valid for ``TOKEN_SECONDS`` and for Stowage only. It stays in memory and is sent to
Stowage's Service only. Stowage never gets the user's own credentials.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote, urlencode

import urllib3

from extender.source.access_reviews import AUDIENCE
from extender.source.errors import SourceError
from extender.source.rest import NO_ANSWER, Refused, RestClient
from extender.untrusted.limits import KEY, SERVICE_ANSWER, quoted, shorten
from extender.untrusted.visible import visible

LABEL = "stowage.dev/debug"
"""With the value ``true`` on the Service (deploy/) whose first port serves ``/debug``; with TLS where its
``appProtocol`` is ``https``."""
NAMESPACE, NAME, PORT = "stowage-system", "stowage-debug", "debug"
"""The Service of deploy/, for users who may use its proxy but not list Services."""
VIEWER = "stowage-viewer"
"""The service account of deploy/rbac-kubectl.yaml, in the namespace of the Service."""
TOKEN_SECONDS = 600
"""The shortest life that an API server gives to a token."""
_TOKEN = "X-Stowage-Authorization"
_LISTED = 20
_FIND_SECONDS = 5.0
_ANSWER_SECONDS = 30.0
Query: TypeAlias = Sequence[tuple[str, str]]
Send: TypeAlias = Callable[[str, str, bytes | None], tuple[int, bytes]]
"""Sends a method, a path with its query and a body; returns status and body. Raises ``NO_ANSWER``."""


class _Found(NamedTuple):
    """A Service, its port by name or number, and its scheme."""

    namespace: str
    name: str
    port: str
    scheme: str = "http"


class NotAsked(SourceError):
    """Stowage could not be queried; the text has the reason."""


@dataclass(frozen=True, slots=True)
class StowageService:
    """A running Stowage. ``name``: its location, for messages."""

    name: str
    send: Send

    def get(self, path: str, query: Query = ()) -> Any:  # noqa: ANN401 (any JSON)
        """The answer to a GET. Raises ``NotAsked``, and ``ValueError`` if Stowage refuses the request."""
        return self._ask("GET", path, query, None)

    def post(self, path: str, body: str, query: Query = ()) -> Any:  # noqa: ANN401
        """The answer to a POST. Raises like ``get``."""
        return self._ask("POST", path, query, body.encode())

    def download(self, path: str) -> bytes:
        """The answer to a GET that is not JSON. Raises ``NotAsked``."""
        status, answer = self._answer("GET", path, None)
        if status != HTTPStatus.OK:
            hint = ": pass --token-file" if status == HTTPStatus.UNAUTHORIZED else ""
            raise NotAsked(f"{self.name} answers {status}{hint}")
        return answer

    def _ask(self, method: str, path: str, query: Query, body: bytes | None) -> Any:  # noqa: ANN401
        status, answer = self._answer(method, f"{path}?{urlencode(query)}" if query else path, body)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            raise NotAsked(f"{self.name} answers {status} without JSON") from None
        if status == HTTPStatus.OK:
            return found
        raise self._refusal(status, found if isinstance(found, dict) else {})

    def _answer(self, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
        try:
            status, answer = self.send(method, target, body)
        except NO_ANSWER as error:
            raise NotAsked(f"{self.name} does not answer: {_reason(error)}") from None
        if len(answer) > SERVICE_ANSWER:
            raise NotAsked(f"{self.name} answers with more than {SERVICE_ANSWER >> 20} MiB")
        return status, answer

    def _refusal(self, status: int, answer: Mapping[str, Any]) -> Exception:
        if isinstance(detail := answer.get("detail"), str):  # from Stowage; else from the API server
            text = visible(shorten(detail))
            if status in (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND) and detail != "Not Found":
                return ValueError(text)
            hint = ": pass --token-file" if status == HTTPStatus.UNAUTHORIZED else ""
            return NotAsked(f"{self.name} answers {status} {text}{hint}")
        message = answer.get("message")
        text = visible(shorten(message)) if isinstance(message, str) else ""
        return NotAsked(f"{self.name}: {status} {text}")


def at_url(url: str, token: str) -> StowageService:
    """A Stowage at a URL such as ``http://localhost:8081``."""
    pool, base = urllib3.PoolManager(retries=False), url.rstrip("/")
    timeout = urllib3.Timeout(connect=_FIND_SECONDS, read=_ANSWER_SECONDS)

    def send(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        response = pool.request(
            method, base + path, body=body, headers=headers, timeout=timeout, preload_content=False
        )
        try:
            return response.status, response.read(SERVICE_ANSWER + 1)
        finally:
            response.close()

    return StowageService(base, send)


def behind_service(rest: RestClient, namespace: str | None, token: str, asks_in: str = "") -> StowageService:
    """The Stowage behind the Service with ``LABEL``: in this namespace, else in any (that of deploy/ first).

    Any token is sent only to this namespace or that of deploy/, because any user can create a Service with
    the label. ``asks_in``: the namespace of the question, for users who may see only that one. Raises
    ``NotAsked``.
    """
    found = _find(rest, namespace or (NAMESPACE if token else None))
    name = f"service {found.namespace}/{found.name}"
    proxy = f"/api/v1/namespaces/{found.namespace}/services/{found.scheme}:{found.name}:{found.port}/proxy"
    may_ask = not token and found.namespace == (namespace or NAMESPACE)
    headers, prefix = {_TOKEN: f"Bearer {token}"} if token else {}, ""

    def ask(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        return rest.send(method, proxy + prefix + path, _ANSWER_SECONDS, body, headers, SERVICE_ANSWER + 1)

    def send(method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        nonlocal prefix
        status, answer = ask(method, path, body)
        if status == HTTPStatus.MISDIRECTED_REQUEST:  # the proxy passes on the name of the API server
            headers["Host"] = f"{found.name}.{found.namespace}.svc"
            status, answer = ask(method, path, body)
        if status == HTTPStatus.UNAUTHORIZED and may_ask:  # without a token, or it has expired
            created, prefix = _viewer_token(rest, found.namespace, name, asks_in)
            headers[_TOKEN] = f"Bearer {created}"
            return ask(method, path, body)
        return status, answer

    return StowageService(name, send)


def _viewer_token(rest: RestClient, namespace: str, service: str, asks_in: str) -> tuple[str, str]:
    """A token of ``VIEWER`` for Stowage, and the prefix of the paths that it opens: of the account for the
    namespace ``asks_in`` if the user may not have the other one. Raises ``NotAsked`` and ``NO_ANSWER``."""
    spec = {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS}
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    accounts, reasons = {VIEWER: ""}, list[str]()
    if asks_in:
        accounts[f"{VIEWER}-{asks_in}"] = f"/namespaces/{asks_in}"
    for account, prefix in accounts.items():
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{quote(account, safe='')}/token"
        try:
            return str(rest.exchange("POST", path, _FIND_SECONDS, request)["status"]["token"]), prefix
        except (Refused, KeyError, TypeError) as reason:
            reasons.append(visible(shorten(str(reason))))
    role = f"the Role stowage-kubectl of namespace {namespace} (viewers in the chart)"
    hint = "" if asks_in else ", -n NAMESPACE for viewers of one namespace"
    raise NotAsked(f"{service} requires a token: {reasons[0]}; needed: {role}{hint}, or --token-file")


def _find(rest: RestClient, namespace: str | None) -> _Found:
    """Users without permission to list Services can still use the one of deploy/."""
    for space in [namespace] if namespace else [None, NAMESPACE]:
        try:
            path = f"/api/v1/namespaces/{space}/services" if space else "/api/v1/services"
            query = {"labelSelector": f"{LABEL}=true", "limit": str(_LISTED)}
            answer = rest.exchange("GET", path, _FIND_SECONDS, query=query, at_most=SERVICE_ANSWER)
            found = [_service(item) for item in answer["items"] or ()]
        except Refused as refused:
            if refused.status == HTTPStatus.FORBIDDEN:
                continue
            raise NotAsked(f"Services cannot be listed: {refused}") from None
        except NO_ANSWER as error:
            raise NotAsked(f"the API server does not answer: {_reason(error)}") from None
        except (ValueError, KeyError, IndexError, TypeError):
            raise NotAsked("the API server does not answer with a list of Services") from None
        return _chosen(found, space)
    return _Found(namespace or NAMESPACE, NAME, PORT)


def _chosen(found: Sequence[_Found], space: str | None) -> _Found:
    where = f"namespace {quoted(space)}" if space else "the cluster"
    found = [service for service in found if service.namespace == NAMESPACE] or found
    if not found:
        raise NotAsked(f"no Service in {where} has the label {LABEL}=true")
    if len(found) > 1:
        names = ", ".join(shorten(f"{service.namespace}/{service.name}", KEY) for service in found[:3])
        raise NotAsked(f"several Services have the label {LABEL}=true ({names}): use --stowage-namespace")
    return found[0]


def _service(item: Mapping[str, Any]) -> _Found:
    port, metadata = item["spec"]["ports"][0], item["metadata"]
    scheme = "https" if port.get("appProtocol") == "https" else "http"
    return _Found(metadata["namespace"], metadata["name"], str(port.get("name") or port["port"]), scheme)


def _reason(error: BaseException) -> str:
    """The last part of the client's nested error texts."""
    return shorten(str(error).rsplit(": ", 1)[-1].rstrip(")'"))
