"""A policy that fails, in any method and at any time, refuses no pod and changes nothing of what fits."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from extender.cluster.factory import GuardedPolicy
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Event, Listed, Upserted
from extender.server.engine import Engine
from extender.server.metrics import Metrics
from extender.settings import Settings
from extender.verbs import evaluate as verdict_module
from packing.model.request import Request
from packing.policies.interface import Policy
from packing.policies.registry import POLICIES
from tests.examples import examples
from tests.extender.builders import GPU, make_node, make_pod, make_state
from tests.extender.dialects.test_dialect_manifests import node as node_of
from tests.extender.engines import DEVICES
from tests.extender.verbs.binding import Api


class Faulty:
    """A policy of which every call may raise, or answer what is no cost."""

    def __init__(self, policy: Policy, chance: random.Random, fault: float) -> None:
        self.name, self._policy, self._chance, self._fault = policy.name, policy, chance, fault

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: object) -> object:
            if self._chance.random() < self._fault:
                if method == "cost" and self._chance.random() < 0.5:
                    return np.full(args[0].capacity, np.nan, np.float32)
                raise self._chance.choice([OverflowError, IndexError, ZeroDivisionError])("injected")
            answer = getattr(self._policy, method)(*args)
            return self._later(answer) if callable(answer) else answer

        return call

    def _later(self, work: Callable[[], Any]) -> Callable[[], object]:
        """A part of an update."""

        def call() -> object:
            if self._chance.random() < self._fault:
                raise MemoryError("injected")
            return self._later(rest) if (rest := work()) else rest

        return call


def make_engine(policy: GuardedPolicy | None = None) -> Engine:
    engine = Engine(Api(), Settings(bind=True, shortlist=0), Metrics(list))
    if policy is not None:
        engine.state.policy, engine.state.failures = policy, policy.failures
    engine.apply(DEVICES)
    return engine


def manifest(name: str, gpus: int, compute: int) -> dict[str, Any]:
    requests = {"cpu": "1", "memory": "1Gi"} | ({GPU: str(gpus)} if gpus else {})
    annotations = {"stowage.dev/gpu-compute": f"{compute}m"} if compute and not gpus else {}
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    return {"metadata": meta, "spec": {"containers": [{"resources": {"requests": requests}}]}}


EVENTS: list[Event] = [
    Upserted(make_node("a")),
    Upserted(make_node("b", 4)),
    Upserted(node_of("stowage")),
    Upserted(make_pod("runs", 3, node_name="a")),
    Listed("Node", frozenset({"a", "b", "stowage"})),
    Listed("Pod", frozenset({"default/runs"})),
]
NAMES = ["a", "b", "stowage", "gone"]


async def answers(engine: Engine, pods: list[dict[str, Any]], after: Callable[[int], Any]) -> list[Any]:
    said = []
    for index, pod in enumerate(pods):
        body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": NAMES}).encode()
        reply = json.loads((await engine.verbs["filter"](body))[0])
        scored = json.loads((await engine.verbs["prioritize"](body))[0])
        assert all(one["Score"] in range(11) for one in scored)
        told = await engine.inspector.explain(json.dumps({"kind": "Pod", **pod}))
        uid = pod["metadata"]["uid"]
        binding = {"PodName": pod["metadata"]["name"], "PodNamespace": "default", "PodUID": uid}
        node = (reply["NodeNames"] or ["a"])[-1]
        bound = json.loads((await engine.verbs["bind"](json.dumps(binding | {"Node": node}).encode()))[0])
        said.append((reply, told.fits, sorted((one.reason, one.nodes) for one in told.refusals), bound))
        await after(index)
    return said


sizes = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 200, 600])), min_size=1, max_size=6)


@settings(max_examples=examples(40))
@given(sizes=sizes, seed=st.integers(0, 2**32), fault=st.sampled_from([0.2, 0.6, 1.0]))
def test_faults_of_the_policy_refuse_no_pod_and_change_nothing_of_what_fits(
    sizes: list[tuple[int, int]], seed: int, fault: float
) -> None:
    chance = random.Random(seed)
    broken = make_engine(
        GuardedPolicy(
            Faulty(POLICIES["inventory"](), chance, fault), Faulty(POLICIES["best-fit"](), chance, fault)
        )
    )
    sound = make_engine()
    pods = [manifest(f"p{i}", gpus, compute) for i, (gpus, compute) in enumerate(sizes)]

    async def run(engine: Engine) -> list[Any]:
        engine.apply(EVENTS)

        async def more(index: int) -> None:
            engine.apply([Upserted(make_pod(f"new{index}", 1))])
            await engine.refresher.refresh_if_due()

        return await answers(engine, pods, more)

    assert asyncio.run(run(broken)) == asyncio.run(run(sound))
    assert fault < 1 or broken.state.policy.failures.counts
    assert not sound.state.policy.failures.counts


def test_where_one_kind_fails_again_and_again_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = GuardedPolicy(*(Faulty(POLICIES["best-fit"](), random.Random(1), 1.0) for _ in range(2)))
    state, request = make_state(make_node("a")), make_request()
    for _ in range(20):
        assert policy.cost(state.fleet, request)[0] == 0
        policy.terms(state.fleet, request, 0)
    assert policy.failures.counts == {"cost": 40, "terms": 20}
    kinds = [(record.args, type(record.exc_info[1])) for record in caplog.records if record.exc_info]
    assert len(kinds) == len(set(kinds)) <= 8


def make_request() -> Request:
    return request_of(make_pod("p", 1))


def test_where_the_policy_fails_best_fit_decides() -> None:
    sound = POLICIES["best-fit"]()
    policy = GuardedPolicy(Faulty(POLICIES["inventory"](), random.Random(1), 1.0), sound)
    state, request = make_state(make_node("a"), make_node("b", 4)), make_request()
    assert policy.cost(state.fleet, request).tolist() == sound.cost(state.fleet, request).tolist()
    assert policy.failures.counts["cost"] == 1


async def test_the_metric_counts_them() -> None:
    policy = GuardedPolicy(Faulty(POLICIES["inventory"](), random.Random(1), 1.0), POLICIES["best-fit"]())
    engine = make_engine(policy)
    engine.apply(EVENTS)
    metrics = Metrics(engine.gauges.collect)
    before = cost_failures(metrics)
    await answers(engine, [manifest("p", 1, 0)], lambda _: asyncio.sleep(0))
    assert cost_failures(metrics) > before


def cost_failures(metrics: Metrics) -> float:
    (line,) = [
        one
        for one in generate_latest(metrics.registry).split(b"\n")
        if one.startswith(b'stowage_policy_failures_total{what="cost"}')
    ]
    return float(line.split()[1])


async def test_forecasts_ranks_and_explanations_that_fail_refuse_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("injected")

    engine = make_engine()
    engine.apply(EVENTS)
    no_gang = np.zeros(len(engine.state.fleet.rows) + 1, np.float32)
    monkeypatch.setattr(
        engine.state, "gang_costs", lambda *args: no_gang
    )  # so ranks are not those of the costs
    monkeypatch.setattr(verdict_module, "rank_keys", fail)
    monkeypatch.setattr("extender.server.engine.explain_evaluation", fail)
    for _ in range(3):
        ((said, *_),) = await answers(engine, [manifest("p", 5, 0)], lambda _: asyncio.sleep(0))
        assert said["NodeNames"] == ["a"]
        engine._decisions.flush()
    counts = engine.state.failures.counts
    assert counts["rank"] >= 3  # prioritize takes what filter has found
    assert counts["explain"] >= 3
    assert caplog.text.count("explain failed") == 1
