"""Random requests to every route: every answer can be parsed, and none is a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.protocol.messages import VERBS, Verb
from extender.server.app import create_app
from extender.server.service import Service
from extender.settings import Settings
from extender.source.snapshot import Snapshot, SnapshotSource
from tests.contract.conftest import GPU, manifest
from tests.examples import examples
from tests.extender.builders import make_node, make_pod

Strategy = st.SearchStrategy[Any]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


def mostly(good: Strategy, bad: Strategy = ANYTHING) -> Strategy:
    """Mostly valid: a message with many errors would be refused for the first one."""
    return st.integers(0, 7).flatmap(lambda n: good if n else bad)


def bent(value: Any) -> Strategy:
    """The value, or with one of its parts replaced."""
    if isinstance(value, dict):
        return mostly(st.fixed_dictionaries({key: bent(inner) for key, inner in value.items()}))
    if isinstance(value, list):
        return mostly(st.tuples(*map(bent, value)).map(list))
    return mostly(st.just(value))


QUANTITY = mostly(
    st.sampled_from(["1", "2", "8"]), st.sampled_from(["0", "-1", "9" * 60, "0.5", "1Ki", "x", "", 7])
)
RESOURCES = st.dictionaries(
    st.sampled_from([GPU, "cpu", "memory", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "x/y"]),
    QUANTITY,
)
CONTAINERS = mostly(
    st.lists(st.fixed_dictionaries({"resources": st.fixed_dictionaries({"limits": RESOURCES})}))
)
POD = mostly(
    st.builds(
        lambda name, containers, init: manifest(
            name, spec={"containers": containers, "initContainers": init}
        ),
        st.sampled_from(["new", "holds", "waits"]),
        CONTAINERS,
        st.none() | CONTAINERS,
    ),
    bent(manifest()),
)
NODE_NAME = mostly(st.sampled_from(["a", "b"]), st.sampled_from(["gone", "", "a" * 300]))
NODES = st.lists(st.fixed_dictionaries({"metadata": st.fixed_dictionaries({"name": NODE_NAME})}), max_size=4)
ASKED = {
    "Pod": POD,
    "Nodes": st.none() | mostly(st.fixed_dictionaries({"items": NODES})),
    "NodeNames": mostly(st.none() | st.lists(NODE_NAME, max_size=5)),
}
UID = mostly(st.just("uid-holds"), st.just("uid-waits"))


def victims(pod: Strategy) -> Strategy:
    """Candidates for preemption, or none."""
    one = st.fixed_dictionaries({"Pods": mostly(st.lists(pod)), "NumPDBViolations": mostly(st.integers())})
    return st.none() | mostly(st.dictionaries(NODE_NAME, mostly(one)))


MEMBERS: dict[Verb, dict[str, Strategy]] = {
    "filter": ASKED,
    "prioritize": ASKED,
    "preempt": {
        "Pod": POD,
        "NodeNameToVictims": victims(bent({"metadata": {"uid": "uid-holds"}})),
        "NodeNameToMetaVictims": victims(mostly(st.fixed_dictionaries({"UID": UID}))),
    },
    "bind": {
        "PodName": mostly(st.just("waits")),
        "PodNamespace": mostly(st.just("default")),
        "PodUID": mostly(st.sampled_from(["uid-waits", "uid-new", "uid-holds"])),
        "Node": mostly(NODE_NAME),
    },
}


@st.composite
def messages(draw: st.DrawFn, verb: Verb) -> Any:
    """A message of a verb, in some spelling, perhaps with a missing field or an odd value."""
    if draw(st.integers(0, 15)) == 0:
        return draw(ANYTHING)
    spell = draw(st.sampled_from([str, str.lower, str.upper, str.swapcase]))
    missing = draw(mostly(st.none(), st.sampled_from(sorted(MEMBERS[verb]))))
    return {spell(name): draw(member) for name, member in MEMBERS[verb].items() if name != missing}


class Caller:
    """One service for all examples, so that damage by one request shows in the next."""

    def __init__(self, runner: asyncio.Runner) -> None:
        pods = [make_pod("holds", 6, node_name="b"), make_pod("waits", 2)]
        snapshot = Snapshot({name: make_node(name) for name in "ab"}, {pod.key: pod for pod in pods})
        service = Service(Settings(bind=True), SnapshotSource(snapshot, "fuzz"), "0")
        runner.run(service.start())
        transport = httpx.ASGITransport(create_app(service))
        self._runner, self._client = runner, httpx.AsyncClient(transport=transport, base_url="http://s")

    def post(self, verb: Verb, message: object) -> httpx.Response:
        headers = {"content-type": "application/json"}
        return self.send("POST", f"/scheduler/{verb}", json.dumps(message).encode(), headers)

    def send(
        self, method: str, path: str, content: bytes, headers: Mapping[str, Any] | None = None
    ) -> httpx.Response:
        return self._runner.run(self._client.request(method, path, content=content, headers=headers))


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with asyncio.Runner() as runner:
        yield Caller(runner)


@pytest.mark.parametrize("verb", VERBS)
@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_answer_can_be_parsed(caller: Caller, verb: Verb, data: st.DataObject) -> None:
    response = caller.post(verb, data.draw(messages(verb)))
    assert "internal error" not in response.text
    if response.status_code != 200:
        assert verb in ("prioritize", "preempt")
        assert response.status_code == 400
        return
    reply = json.loads(response.content, parse_constant=pytest.fail)
    CHECKS[verb](reply)


def check_filter(reply: Any) -> None:
    assert list(reply) == ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    assert isinstance(reply["Error"], str)
    assert not (reply["Nodes"] and reply["NodeNames"])


def check_priorities(reply: Any) -> None:
    assert all(list(one) == ["Host", "Score"] for one in reply)
    assert all(type(one["Score"]) is int and 0 <= one["Score"] <= 10 for one in reply)


def check_preempt(reply: Any) -> None:
    assert list(reply) == ["NodeNameToMetaVictims"]
    assert all(isinstance(victims["Pods"], list) for victims in reply["NodeNameToMetaVictims"].values())


def check_bind(reply: Any) -> None:
    assert list(reply) == ["Error"]
    assert isinstance(reply["Error"], str)


CHECKS = dict(zip(VERBS, (check_filter, check_priorities, check_preempt, check_bind), strict=True))


ROUTES = [
    *(f"/scheduler/{verb}" for verb in VERBS),
    *("/healthz", "/readyz", "/version", "/metrics", "/debug/nodes", "/debug/nodes/a", "/debug/nodes/{}"),
    *("/debug/pods/default/waits", "/debug/pods/default/{}", "/debug/pods/{}/{}", "/debug/explain"),
    *("/", "/scheduler", "/scheduler/{}", "/debug", "/debug/{}", "/{}", "/{}/{}", "/docs", "/openapi.json"),
    *("/healthz/", "/debug/nodes/", "/debug/pods/default/../{}", "//healthz", "/metrics/{}", "*"),
]
"""All routes and others, with placeholders for any text."""
PLACES = st.text(max_size=30) | st.sampled_from(["n" * 5000, "\x00", "..", "%", "é" * 300, "\r\nX: y"])
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "CONNECT", "BREW"]
BODIES = (
    st.binary(max_size=64)
    | ANYTHING.map(lambda value: json.dumps(value).encode())
    | bent({**manifest(), "kind": "Pod"}).map(lambda pod: json.dumps(pod).encode())
    | st.sampled_from(["kind: Pod", "a: &a [*a]", "- {", "!!x y", "---\n---\n", "a: b: c", "\ufeff{}"]).map(
        str.encode
    )
)
HEADERS = st.dictionaries(
    st.sampled_from(
        ["content-type", "content-length", "accept", "accept-encoding", "transfer-encoding", "x"]
    ),
    st.sampled_from([b"", b"0", b"-1", b"9" * 30, b"application/json", b"text/yaml; charset=x", b"\xe9" * 9]),
    max_size=2,
)
TEXT = 700
"""The most characters of an error."""


@st.composite
def paths(draw: st.DrawFn) -> str:
    """A route with any text in its placeholders."""
    route = draw(st.sampled_from(ROUTES))
    while "{}" in route:
        route = route.replace("{}", quote(draw(PLACES), safe=draw(st.sampled_from(["", "/"]))), 1)
    return f"{route}?{quote(draw(PLACES))}" if draw(st.integers(0, 3)) == 0 else route


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.too_slow])
@given(method=st.sampled_from(METHODS), path=paths(), body=BODIES, headers=HEADERS)
def test_every_route_answers_any_request(
    caller: Caller, method: str, path: str, body: bytes, headers: dict[str, bytes]
) -> None:
    response = caller.send(method, path, body, headers)
    assert response.status_code in (200, 307, 400, 404, 405, 413)
    assert "internal error" not in response.text
    if response.status_code != 200:
        assert len(response.text) <= TEXT
    if response.headers.get("content-type", "").startswith("application/json") and method != "HEAD":
        json.loads(response.content, parse_constant=pytest.fail)
    assert caller.send("GET", "/healthz", b"").text == "ok"
