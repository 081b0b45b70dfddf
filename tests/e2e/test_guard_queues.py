"""deploy/priority-classes.yaml, its examples, and deploy/guard-queues.yaml in the real API server."""

from collections.abc import Callable, Iterator

import httpx
import pytest
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.process import eventually
from .stowage import ROOT, applied
from .workload import pod

QUEUE, KAI = "stowage.dev/queue", "kai.scheduler/queue"


@pytest.fixture
def allowed(api: Api) -> Iterator[None]:
    """The namespace may use the queue batch."""
    label = "queue.stowage.dev/batch"
    api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {label: "allowed"}}})
    yield
    api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {label: None}}})


def named(name: str, **words: dict[str, str]) -> Object:
    """A pod with these labels and annotations."""
    made = pod(name, {})
    made["metadata"] |= words
    return made


def refused(action: Callable[[], object]) -> str:
    """The message of the policy. Fails if the API server accepts the request, or refuses it otherwise."""
    with pytest.raises(httpx.HTTPStatusError) as error:
        action()
    text = error.value.response.text
    assert "stowage-guard-queues" in text
    return text


def accepted(api: Api, obj: Object) -> bool:
    try:
        api.create(obj, dryRun="All")
    except httpx.HTTPStatusError:
        return False
    return True


def change(api: Api, name: str, **words: object) -> Object:
    return api.patch("Pod", name, {"metadata": words})


def test_a_namespace_uses_only_the_queues_that_its_labels_name(api: Api, allowed: None) -> None:
    interactive = {QUEUE: "interactive"}
    api.create(named("before", labels=interactive))  # the policy does not exist yet
    with applied(api, "guard-queues.yaml"):
        probe = named("probe", labels=interactive)
        eventually(lambda: not accepted(api, probe), within_s=30, what="the policy is in force")

        assert QUEUE in refused(lambda: api.create(named("one", annotations=interactive)))
        assert KAI in refused(lambda: api.create(named("one", labels={KAI: "backfill", QUEUE: "batch"})))
        api.create(named("plain"))
        api.create(named("mine", labels={QUEUE: "batch"}))
        api.create(named("other", labels={KAI: "team-a"}, annotations={QUEUE: "nothing"}))

        assert QUEUE in refused(lambda: change(api, "mine", labels=interactive))
        assert QUEUE in refused(lambda: change(api, "plain", annotations=interactive))
        change(api, "mine", labels={QUEUE: None})
        change(api, "before", labels={"a": "b"})  # a pod from before the policy can still be updated
    eventually(lambda: accepted(api, probe), within_s=30, what="the policy is no longer in force")


def test_the_classes_and_the_examples_are_valid(api: Api) -> None:
    with applied(api, "priority-classes.yaml"):
        example = yaml.safe_load((ROOT / "deploy/examples/queue-interactive.yaml").read_text())
        admitted = api.create(example, dryRun="All", fieldValidation="Strict")["spec"]
        assert (admitted["priority"], admitted["preemptionPolicy"]) == (100000, "PreemptLowerPriority")
        for queue in ("batch", "backfill"):
            job = yaml.safe_load((ROOT / f"deploy/examples/queue-{queue}.yaml").read_text())
            template = job["spec"]["template"]
            metadata = template.get("metadata", {}) | {"name": "one"}
            one = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
            policy = api.create(one, dryRun="All", fieldValidation="Strict")["spec"]["preemptionPolicy"]
            assert (policy == "Never") == (queue == "backfill")
