"""`stowage audit` with the rights of its user, at the real API server."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .controlplane.api import NAMESPACE, Api, Object
from .controlplane.cluster import ControlPlane
from .rush import GPU
from .stowage import PROGRAM
from .workload import node, pod

RBAC = "rbac.authorization.k8s.io"
RIGHTS = {"nobody": ["nodes"], "viewer": ["nodes", "pods"]}


@pytest.fixture
def users(cluster: ControlPlane, api: Api, stowage_kubeconfig: Path) -> Iterator[dict[str, Path]]:
    """The kubeconfigs of an administrator, and of service accounts that may list only these resources."""
    found = {"admin": cluster.kubeconfig}
    for name, resources in RIGHTS.items():
        account = {"name": name, "namespace": "stowage-system"}
        rule = {"apiGroups": [""], "resources": resources, "verbs": ["list"]}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        subjects = [{"kind": "ServiceAccount", **account}]
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        head = {"apiVersion": f"{RBAC}/v1", "metadata": {"name": name}}
        api.create(head | {"kind": "ClusterRole", "rules": [rule]})
        api.create(head | {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects})
        found[name] = cluster.kubeconfig_for(name, api.token(name))
    yield found
    for name in RIGHTS:
        for kind in ("ClusterRoleBinding", "ClusterRole", "ServiceAccount"):
            api.delete(kind, name)


def audited(kubeconfig: Path) -> tuple[dict[str, float], list[str]]:
    """GPUs by step, which add up to the installed ones, and the notes."""
    words = [str(PROGRAM), "audit", "--kubeconfig", str(kubeconfig), "-o", "json"]
    found = json.loads(subprocess.run(words, check=True, capture_output=True, timeout=120).stdout)
    steps = {step["step"]: step["gpus"] for step in found["steps"] if step["gpus"]}
    assert sum(steps.values()) == found["installed"] == 16
    return steps, found["notes"]


def test_what_a_user_may_not_list_is_never_idle(api: Api, users: dict[str, Path]) -> None:
    template: Object = {"spec": pod("", {GPU: 8})["spec"] | {"restartPolicy": "Never"}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": NAMESPACE}}
    api.create_all([node("a", {GPU: 8}), node("b", {GPU: 8}), pod("runs", {GPU: 3}, on="a")])
    api.create(job | {"spec": {"suspend": True, "template": template}})
    assert audited(users["admin"]) == ({"idle": 5, "gated": 8, "notMeasured": 3}, [])
    steps, notes = audited(users["viewer"])
    assert steps == {"idle": 13, "notMeasured": 3}
    assert {note.split(" ")[0] for note in notes} == {"jobs.batch", "replicasets.apps", "resourcequotas"}
    steps, notes = audited(users["nobody"])
    assert steps == {"notReadable": 16}
    assert any(note.startswith("pods cannot be listed (403") for note in notes)
