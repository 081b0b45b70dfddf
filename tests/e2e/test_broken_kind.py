"""A CustomResourceDefinition that the API server can no longer list, because the webhook that converts its
objects is gone, keeps no pod pending."""

from pathlib import Path

import httpx
import pytest

from tests.job_kinds import JOBS

from .controlplane.api import COLLECTIONS, NAMESPACE, Api
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .custom_kinds import serving
from .rush import GPU
from .stowage import Stowage, scheduler_configuration
from .test_job_kinds import definition
from .workload import node, pod

NAME, OLD, NEW = "jobsets.jobset.x-k8s.io", "jobset.x-k8s.io/v1alpha1", "jobset.x-k8s.io/v1alpha2"
GONE = {
    "strategy": "Webhook",
    "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/convert"}},
}


def test_stowage_starts_without_a_broken_kind_and_takes_it_in_once_it_is_mended(
    cluster: ControlPlane, api: Api, stowage_kubeconfig: Path
) -> None:
    kind = definition("jobset.x-k8s.io", "JobSet", "jobsets", ["v1alpha1", "v1alpha2"])
    kind["spec"]["conversion"] = GONE
    with serving(api, [kind]):
        path = "/apis/{}/namespaces/" + f"{NAMESPACE}/jobsets"
        COLLECTIONS["JobSet"] = path.format(OLD)
        api.create(JOBS["JobSet"]("train").object | {"apiVersion": OLD})
        COLLECTIONS["JobSet"] = path.format(NEW)
        with pytest.raises(httpx.HTTPStatusError, match="500 Internal Server Error"):
            api.list("JobSet")
        api.create(node("n", {GPU: 8}))
        with Stowage(cluster, stowage_kubeconfig, name="stowage-broken-kind") as stowage:
            assert f"\n{NAME} cannot be listed (500 " in stowage.text("/readyz")
            problems = {one["about"]: one for one in stowage.json("/debug/problems")["problems"]}
            assert problems[NAME]["text"].startswith("500 ")
            assert stowage.metric(f'stowage_synced{{resource="{NAME}"}}') == 0
            with cluster.scheduler(scheduler_configuration(stowage.url)):
                api.create(pod("p", {GPU: 1}))
                eventually(
                    lambda: api.get("Pod", "p")["spec"].get("nodeName") == "n",
                    within_s=60,
                    what="the pod has a node",
                )
            explained = stowage.json(f"/debug/pods/{NAMESPACE}/p?explained=true")
            assert any(
                hint.startswith(f"{NAME} cannot be listed (500 ") for hint in explained["now"]["hints"]
            )
            api.patch(
                "CustomResourceDefinition",
                NAME,
                {"spec": {"conversion": {"strategy": "None", "webhook": None}}},
            )
            eventually(lambda: stowage.text("/readyz") == "ok", within_s=120, what="it is listed")
            assert stowage.metric(f'stowage_synced{{resource="{NAME}"}}') == 1
            assert '{"kind":"JobSet","record":{' in stowage.text("/debug/state")
