"""deploy/workloads/ and deploy/examples/: how pods get to Stowage, and what keeps others off its nodes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .rush import GPU, LABEL_SETS
from .stowage import ROOT, Stowage, applied, scheduler_configuration
from .test_waiting import why_unscheduled
from .tools import Tools, commands
from .workload import node, pod

LABEL = "stowage.dev/scheduler"
NAME, FENCE = "workloads/scheduler-name.yaml", "workloads/only-stowage.yaml"
DEFAULT: Object = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "leaderElection": {"leaderElect": False},
}
H100 = LABEL_SETS["h100-sxm-8-whole"]


def plain(name: str, resources: dict[str, int] | None = None, **metadata: object) -> Object:
    """A pod that names no scheduler."""
    one = pod(name, resources or {})
    del one["spec"]["schedulerName"]
    one["metadata"] |= metadata
    return one


def scheduler_of(api: Api, one: Object) -> str:
    return str(api.create(one, dryRun="All")["spec"]["schedulerName"])


@contextmanager
def labelled(api: Api) -> Iterator[None]:
    api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {LABEL: "stowage"}}})
    try:
        yield
    finally:
        api.patch("Namespace", NAMESPACE, {"metadata": {"labels": {LABEL: None}}})


def in_force(ready: Callable[[], bool]) -> None:
    eventually(ready, within_s=30, what="the policy is in force")


def refusal(api: Api, one: Object) -> str:
    with pytest.raises(httpx.HTTPStatusError) as problem:
        api.create(one, dryRun="All")
    return problem.value.response.text


def accepted(api: Api, one: Object) -> bool:
    try:
        api.create(one, dryRun="All")
    except httpx.HTTPStatusError:
        return False
    return True


@pytest.fixture(autouse=True)
def no_policy_is_left(api: Api) -> Iterator[None]:
    """kube-apiserver follows a policy for a moment after it is deleted."""
    yield
    labelled_pod, gpu_pod = plain("one", labels={LABEL: "stowage"}), plain("one", {GPU: 1})
    eventually(
        lambda: scheduler_of(api, labelled_pod) == "default-scheduler" and accepted(api, gpu_pod),
        within_s=30,
        what="no policy is in force any more",
    )


def test_a_label_of_the_namespace_sets_the_scheduler(api: Api) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1"}
    with applied(api, NAME), labelled(api):
        in_force(lambda: scheduler_of(api, plain("one")) == "stowage")
        assert scheduler_of(api, pod("one", {}, scheduler="kueue-scheduler")) == "kueue-scheduler"
        assert scheduler_of(api, plain("one", labels={LABEL: "default-scheduler"})) == "default-scheduler"
        assert scheduler_of(api, plain("one", ownerReferences=[owner])) == "default-scheduler"
        assert scheduler_of(api, plain("one", annotations={"a": "b"})) == "stowage"


def test_a_label_of_the_pod_sets_it_elsewhere(api: Api) -> None:
    with applied(api, NAME):
        in_force(lambda: scheduler_of(api, plain("one", labels={LABEL: "stowage"})) == "stowage")
        assert scheduler_of(api, plain("one")) == "default-scheduler"
        assert scheduler_of(api, plain("one", labels={LABEL: "another"})) == "default-scheduler"


def test_the_beta_api_of_kubernetes_1_34_takes_the_policy(tmp_path: Path) -> None:
    """As docs/workloads.md says: with sed, and v1beta1 enabled in kube-apiserver."""
    beta = "admissionregistration.k8s.io/v1beta1"
    manifest = (ROOT / "deploy" / NAME).read_text().replace("admissionregistration.k8s.io/v1", beta)
    with ControlPlane(tmp_path / "beta", runtime_config=f"{beta}=true") as plane, labelled(plane.api):
        Tools(plane).kubectl("apply", "-f-", stdin=manifest)
        in_force(lambda: scheduler_of(plane.api, plain("one")) == "stowage")


def test_the_fence_refuses_gpu_pods_of_other_schedulers(api: Api) -> None:
    with applied(api, FENCE):
        in_force(lambda: not accepted(api, plain("one", {GPU: 1})))
        assert "needs the schedulerName stowage" in refusal(api, pod("one", {GPU: 1}, scheduler="other"))
        assert "may not name its node" in refusal(api, pod("one", {GPU: 1}, on="n1"))
        assert accepted(api, pod("one", {}, scheduler="other"))
        assert accepted(api, pod("one", {GPU: 1}))
        assert accepted(api, plain("one"))
        system = pod("one", {GPU: 1}, scheduler="default-scheduler")
        system["metadata"]["namespace"] = "kube-system"
        assert accepted(api, system)
        initial = pod("one", {}, scheduler="other", prepares_with={"nvidia.com/mig-1g.5gb": 1})
        assert "needs the schedulerName" in refusal(api, initial)


def test_with_both_policies_and_a_taint_the_nodes_belong_to_stowage(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """A pod without a scheduler goes to Stowage's; others do not get onto the node at all."""
    gpus = node("n1", {GPU: 8}, labels=H100)
    gpus["spec"] = {"taints": [{"key": GPU, "effect": "NoSchedule"}]}
    api.create(gpus)
    with (
        applied(api, NAME),
        applied(api, FENCE),
        cluster.scheduler(DEFAULT, "default-scheduler"),
        cluster.scheduler(scheduler_configuration(stowage.url)),
    ):
        in_force(lambda: not accepted(api, plain("one", {GPU: 1})))
        api.create(plain("cpu"))
        assert "untolerated taint" in why_unscheduled(api, "cpu")
        with labelled(api):
            in_force(lambda: accepted(api, tolerant("one")))  # by then it is given a scheduler
            api.create(tolerant("gpu"))
            runs(api, "gpu")
    assert api.get("Pod", "gpu")["spec"]["schedulerName"] == "stowage"


def tolerant(name: str) -> Object:
    one = plain(name, {GPU: 1})
    one["spec"]["tolerations"] = [{"key": GPU, "operator": "Exists"}]
    return one


def runs(api: Api, name: str) -> None:
    eventually(lambda: api.get("Pod", name)["status"]["phase"] == "Running", within_s=60, what=f"{name} runs")


def test_pods_of_the_default_scheduler_on_the_same_node_are_counted(
    cluster: ControlPlane, api: Api, stowage: Stowage
) -> None:
    """Without a fence: Stowage sees what the default scheduler has placed, and the other way round."""
    api.create(node("n1", {GPU: 8}, labels=H100))
    with (
        cluster.scheduler(DEFAULT, "default-scheduler"),
        cluster.scheduler(scheduler_configuration(stowage.url)),
    ):
        api.create(plain("theirs", {GPU: 5}))
        runs(api, "theirs")
        stowage.flush(api)
        api.create(pod("too-large", {GPU: 4}))
        assert "0/1 nodes are available" in why_unscheduled(api, "too-large")
        api.create(pod("ours", {GPU: 3}))
        runs(api, "ours")
        api.create(plain("late", {GPU: 1}))
        assert "Insufficient nvidia.com/gpu" in why_unscheduled(api, "late")


def test_the_commands_of_the_page(api: Api, tools: Tools) -> None:
    api.create(node("n1", {GPU: 8}, labels=H100 | {"nvidia.com/gpu.present": "true"}))
    try:
        for name in ("policy", "fence"):
            for line in commands("workloads.md", name):
                tools.shell(line, ROOT)
        one = tolerant("one")
        one["metadata"]["namespace"] = "research"
        in_force(lambda: scheduler_of(api, one) == "stowage")
        in_force(lambda: not accepted(api, plain("one", {GPU: 1})))
        (taint,) = api.get("Node", "n1")["spec"]["taints"]
        assert taint == {"key": GPU, "value": "present", "effect": "NoSchedule"}
    finally:
        for file in (NAME, FENCE):
            tools.kubectl("delete", "--ignore-not-found", f"-f{ROOT / 'deploy' / file}")


def templates(part: object) -> Iterator[Object]:
    """All pod templates in a manifest: what has a spec with containers."""
    if isinstance(part, dict):
        if "containers" in part.get("spec", ()):
            yield part
        for value in part.values():
            yield from templates(value)
    elif isinstance(part, list):
        for value in part:
            yield from templates(value)


EXAMPLES = sorted((ROOT / "deploy" / "examples").glob("*.yaml"))
WITHOUT_TEMPLATE = {"trainjob", "kueue-queues"}


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_pods_of_every_example_are_valid(api: Api, file: Path) -> None:
    """For the kinds of Kubeflow and Ray there is no CRD here, but their pods are checked like all others."""
    with applied(api, "priority-classes.yaml"):
        found = [one for document in yaml.safe_load_all(file.read_text()) for one in templates(document)]
        assert bool(found) != (file.stem in WITHOUT_TEMPLATE)
        for template in found:
            metadata = template.get("metadata", {}) | {"name": "one"}
            spec = template["spec"] | {"runtimeClassName": None}  # there is no such class here
            if file.stem == "statefulset":  # its controller adds the volumes of the claims
                spec["volumes"] = [{"name": "models", "emptyDir": {}}]
            one = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            admitted = api.create(one, dryRun="All", fieldValidation="Strict")["spec"]
            gpu = any(
                name.startswith("nvidia.com/")
                for container in admitted["containers"]
                for name in container.get("resources", {}).get("limits", {})
            )
            assert admitted["schedulerName"] == "stowage" or not gpu


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_of_kubernetes_own_kinds_are_valid(tools: Tools, api: Api, file: Path) -> None:
    kinds = {one["apiVersion"] for one in yaml.safe_load_all(file.read_text())}
    if kinds <= {"v1", "apps/v1", "batch/v1"}:
        manifest = file.read_text().replace("  runtimeClassName: nvidia\n", "")  # there is no such class here
        with applied(api, "priority-classes.yaml"):
            tools.kubectl("apply", "--dry-run=server", "--validate=strict", "-f-", stdin=manifest)
    else:
        others = {"kubeflow.org/v1", "trainer.kubeflow.org/v1alpha1", "ray.io/v1", "kueue.x-k8s.io/v1beta2"}
        assert kinds <= {"batch/v1"} | others
