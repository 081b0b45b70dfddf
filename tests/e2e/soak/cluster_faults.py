"""Faults of the network, of nodes and of certificates, and harmful callers."""

import random
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial

import httpx

from .. import hostile
from ..controlplane.api import Api, Object
from ..rush import GPU, LARGE
from . import fleet
from .plan import Planned
from .process_faults import victim
from .proxy import Proxy
from .replica import Replica
from .stack import CA, NAME, Stack
from .watch import Watch

Change = Callable[[Object], None]
CUT_TWICE = 0.25  # of the cuts hit both replicas


def cut_watches(stack: Stack, planned: Planned) -> None:
    for one in stack.replicas if planned.pick < CUT_TWICE else [stack.replicas[victim(stack, planned)]]:
        one.proxy.cut_watches()


def expire_watches(stack: Stack, planned: Planned) -> None:
    for one in stack.replicas if planned.pick < CUT_TWICE else [stack.replicas[victim(stack, planned)]]:
        one.proxy.expire_watches()


def network_fault(begin: Callable[[Proxy], AbstractContextManager[None]]) -> Callable[[Stack, Planned], None]:
    """A fault of the network of one replica, for as long as it lasts."""

    def make(stack: Stack, planned: Planned) -> None:
        one = stack.replicas[victim(stack, planned)]
        with one.network, begin(one.proxy):
            time.sleep(planned.lasts_s)

    return make


def fail_bindings(stack: Stack, planned: Planned) -> None:
    one = stack.replicas[stack.leader]
    with one.network, one.proxy.failing_bindings():
        time.sleep(planned.lasts_s)


def rotate_certificates(stack: Stack, planned: Planned) -> None:
    stack.server.certify(CA.server(NAME), CA.pem)
    stack.client.certify(CA.client("system:kube-scheduler"), CA.pem)


class NodeFaults:
    """Changes of nodes. The watch is told, so that it knows what each node has had."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def cordon(self, stack: Stack, planned: Planned) -> None:
        name = fleet.one_of(draw_kind(planned), planned.pick)
        self._change(stack.api, name, lambda node: node["spec"].update(unschedulable=True))
        time.sleep(planned.lasts_s)
        self._change(stack.api, name, lambda node: node["spec"].pop("unschedulable", None))

    def taint(self, stack: Stack, planned: Planned) -> None:
        """As the node lifecycle controller does when a kubelet is silent."""
        name = fleet.one_of(draw_kind(planned), planned.pick)
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        ready = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        self._change(stack.api, name, lambda node: node["spec"].update(taints=[taint]))
        persist(
            lambda: stack.api.patch("Node", name, {"status": {"conditions": [ready]}}, subresource="status")
        )
        time.sleep(planned.lasts_s)
        self._change(stack.api, name, lambda node: node["spec"].pop("taints", None))

    def delete(self, stack: Stack, planned: Planned) -> None:
        """The machine is gone, its pods are collected, and it comes back under the same name."""
        name = fleet.one_of(draw_kind(planned), planned.pick)
        with self._watch.lock:
            self._watch.ledger.remove_node(name)
        persist(lambda: stack.api.delete("Node", name))
        self._delete_pods(stack.api, name)
        time.sleep(planned.lasts_s)
        self._delete_pods(stack.api, name)  # that came meanwhile
        new = next(one for one in fleet.nodes() if one["metadata"]["name"] == name)
        persist(lambda: stack.api.create(new))
        self._changed(stack.api, name)

    def repartition(self, stack: Stack, planned: Planned) -> None:
        """As NVIDIA's MIG manager does: pods go, the state is pending, and then there are other instances."""
        name = fleet.one_of("mixed", planned.pick)
        state = "nvidia.com/mig.config.state"
        node = self._change(
            stack.api, name, lambda node: node["metadata"]["labels"].update({state: "pending"})
        )
        is_first = node["status"]["allocatable"][LARGE] == str(fleet.LAYOUTS[0][LARGE])
        layout = fleet.LAYOUTS[is_first]
        self._delete_pods(stack.api, name)
        time.sleep(planned.lasts_s)
        self._delete_pods(stack.api, name)
        self._resize(stack.api, name, {resource: str(count) for resource, count in layout.items()})
        counts = {f"{resource}.count": str(count) for resource, count in layout.items()} | {state: "success"}
        self._label(stack.api, name, counts)

    def shrink(self, stack: Stack, planned: Planned) -> None:
        """Some GPUs fall out, and come back."""
        if planned.number % 2:
            name, label = fleet.one_of("own", planned.pick), f"{GPU}.count"
            for count in ("6", "8"):
                self._label(stack.api, name, {label: count})
                time.sleep(planned.lasts_s if count == "6" else 0)
            return
        name = fleet.one_of("whole", planned.pick)
        self._resize(stack.api, name, {GPU: str(3 + planned.number % 4)})
        time.sleep(planned.lasts_s)
        self._resize(stack.api, name, {GPU: "8"})

    def _label(self, api: Api, name: str, labels: dict[str, str]) -> Object:
        return self._change(api, name, lambda node: node["metadata"]["labels"].update(labels))

    def _resize(self, api: Api, name: str, resources: dict[str, str]) -> None:
        status = {"status": {"allocatable": resources, "capacity": resources}}
        persist(lambda: api.patch("Node", name, status, subresource="status"))
        self._changed(api, name)

    def _change(self, api: Api, name: str, change: Change) -> Object:
        def once() -> Object:
            node = api.get("Node", name)
            change(node)
            return api.replace(node)

        persist(once)
        return self._changed(api, name)

    def _changed(self, api: Api, name: str) -> Object:
        node: Object = persist(lambda: api.get("Node", name))
        with self._watch.lock:
            self._watch.ledger.put_node(node)
        return node

    def _delete_pods(self, api: Api, name: str) -> None:
        def once() -> Object:
            selector = httpx.QueryParams(
                {"fieldSelector": f"spec.nodeName={name}", "gracePeriodSeconds": "0"}
            )
            return api.request("DELETE", f"/api/v1/namespaces/default/pods?{selector}")

        persist(once)


def draw_kind(planned: Planned) -> str:
    """A kind of node for this fault."""
    return random.Random(planned.number).choice(
        ("whole", "own", "hami", "mixed", "replicas", "gpushare", "pieces")
    )


def persist(call: Callable[[], Object | None], within_s: float = 60) -> Object:
    """Repeats a call until the API server has answered it. What is there, or gone, already is as wanted."""
    until = time.monotonic() + within_s
    while True:
        try:
            return call() or {}
        except httpx.HTTPStatusError as problem:
            if _is_as_wanted(problem):
                return {}
            if time.monotonic() > until:
                raise
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _is_as_wanted(problem: httpx.HTTPStatusError) -> bool:
    missing = problem.response.status_code == httpx.codes.NOT_FOUND
    return "AlreadyExists" in problem.response.text or (missing and problem.request.method == "DELETE")


def send_hostile_pods(stack: Stack, planned: Planned) -> None:
    """Pods built to cost time, and pods without a GPU whose annotations cannot be read."""
    node = fleet.one_of("own", planned.pick)
    pods = [*hostile.waiting_pods(), *hostile.intruders(node)]
    for one in pods:
        one["metadata"]["name"] = f"hostile-{planned.number}-{one['metadata']['name']}"[:250]
        persist(partial(stack.api.create, one))
    time.sleep(planned.lasts_s)
    for one in pods:
        persist(partial(stack.api.delete, "Pod", one["metadata"]["name"]))


def send_hostile_requests(stack: Stack, planned: Planned) -> None:
    """Random bytes, half requests and invalid bodies: with and without a certificate, on both ports."""
    draw, until = random.Random(planned.number), time.monotonic() + planned.lasts_s
    context = ssl.create_default_context(cadata=CA.pem.decode())
    context.load_cert_chain(stack.client.path("tls_crt"), stack.client.path("tls_key"))
    while time.monotonic() < until:
        one = draw.choice(stack.replicas)
        with suppress(httpx.HTTPError, OSError):
            _send_one(one, draw, context)


JSON = {"content-type": "application/json"}
BODIES = (
    b"", b"{", b"null", b"[]", b'{"Pod":null}', b'{"Pod":{"metadata":{"name":1}}}', b"[" * 100_000,
    b'{"Pod":{},"NodeNames":["' + b"a" * 100_000 + b'"]}', b'{"PodName":"x","Node":"y"}', b"\xff" * 1000,
    b'{"Pod":{"spec":{"containers":[{"resources":{"requests":{"nvidia.com/gpu":"1e99"}}}]}},"NodeNames":[]}',
)  # fmt: skip


def _send_one(one: Replica, draw: random.Random, context: ssl.SSLContext) -> None:
    if draw.random() < 0.4:
        verb = draw.choice(("filter", "prioritize", "preempt", "bind", "nothing"))
        with httpx.Client(verify=context, trust_env=False, timeout=2) as client:
            client.post(f"{one.verbs_url}/scheduler/{verb}", content=draw.choice(BODIES), headers=JSON)
        return
    url = draw.choice((one.verbs_url, one.url))
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=1) as plain:
        plain.sendall(draw.choice((draw.randbytes(2000), b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n")))
        plain.settimeout(0.2)
        plain.recv(100)
