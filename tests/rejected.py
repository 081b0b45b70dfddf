"""Manifests that the API server rejects, with the words that name the mistake, and some that it accepts."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]
GPU = {"nvidia.com/gpu": "1"}


def container(**fields: object) -> Object:
    return {"name": "c", "image": "i", "resources": {"limits": GPU}, **fields}


def pod(name: str = "p", **spec: object) -> Object:
    made = {"containers": [container()], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": made}


def workload(kind: str, version: str = "apps/v1", *, of_pod: Object | None = None, **spec: object) -> Object:
    template = {"metadata": {"labels": {"app": "w"}}, "spec": {**pod()["spec"], **(of_pod or {})}}
    metadata = {"name": "w"}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {"template": template, **spec}}


def near(*requirements: Object) -> Object:
    terms = [{"matchExpressions": [*requirements]}] if requirements else []
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return pod(affinity={"nodeAffinity": required})


SELECTOR = {"matchLabels": {"app": "w"}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": SELECTOR}
REJECTED: list[tuple[Object, str]] = [
    # Fields
    (pod(toleration=[]), "'toleration' is no field of spec"),
    (pod(containers=[container(resource={})]), "'resource' is no field of spec.containers[0]"),
    (pod(containers=[container(resources={"limit": GPU})]), "'limit' is no field of spec.containers[0].res"),
    (pod(containers=[container(tolerations=[])]), "is no field of spec.containers[0]: it belongs to the pod"),
    (
        pod(affinity={"nodeAffinity": {"required": {}}}),
        "is no field of spec.affinity.nodeAffinity",
    ),
    (workload("Job", "batch/v1", nodeSelector={}), "no field of spec: it belongs to the pod's spec"),
    (workload("Deployment", of_pod={"nodeSelectors": {}}, selector=SELECTOR), "of spec.template.spec"),
    (workload("Deployment"), "spec.selector is missing"),
    (workload("Deployment", "extensions/v1beta1", selector=SELECTOR), "Deployment is in apps/v1, not in"),
    (pod(containers=[{"image": "i"}]), "spec.containers[0].name is missing"),
    (pod(topologySpreadConstraints=[SPREAD]), "whenUnsatisfiable is missing"),
    # Values
    (pod("vLLM_Server"), "metadata.name 'vLLM_Server' is not a name"),
    (pod(containers=[container(name="a.b")]), "spec.containers[0].name 'a.b' is not a name"),
    (pod(nodeSelector={"product": "NVIDIA L4"}), "'NVIDIA L4' cannot be the value of a label"),
    (pod(tolerations=[{"key": "k", "operator": "exists"}]), "operator 'exists' is not supported"),
    (pod(tolerations=[{"key": "k", "effect": "NoSchedul"}]), "effect 'NoSchedul' is not supported"),
    (pod(topologySpreadConstraints=[{**SPREAD, "whenUnsatisfiable": "No"}]), "whenUnsatisfiable 'No'"),
    (near({"key": "k", "operator": "in", "values": ["v"]}), "'in' is not an operator of node affinity"),
    (pod(restartPolicy="never"), "spec.restartPolicy 'never' is not supported"),
    (pod(resources={"limits": GPU}), "'nvidia.com/gpu' is not a resource of the pod as a whole"),
    (workload("Job", "batch/v1"), "restartPolicy must be OnFailure or Never"),
    (workload("StatefulSet", of_pod={"restartPolicy": "Never"}, selector=SELECTOR), "must be Always"),
    # Values that do not go together
    (
        pod(tolerations=[{"key": "k", "operator": "Exists", "value": "v"}]),
        "value must be empty with the",
    ),
    (pod(tolerations=[{"operator": "Equal", "value": "v"}]), "operator must be Exists without a key"),
    (pod(tolerations=[{"key": "k", "operator": "Gt", "value": "a"}]), "value 'a' is not an integer"),
    (
        pod(tolerations=[{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 9}]),
        "effect must be NoExecute with tolerationSeconds",
    ),
    (near(), "nodeSelectorTerms must not be empty"),
    (near({"key": "k", "operator": "Exists", "values": ["v"]}), "values must be empty with the operators"),
    (near({"key": "k", "operator": "In"}), "values must not be empty with the operators In"),
    (
        pod(containers=[container(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})]),
        "'memory' is more than its limit",
    ),
    (
        pod(containers=[container(resources={"limits": {"hugepages-2Mi": "4Mi"}})]),
        "huge pages also require cpu or memory",
    ),
    (pod(containers=[container(), container()]), "two containers have the name 'c'"),
    (
        pod(containers=[container(volumeMounts=[{"name": "data", "mountPath": "/d"}])]),
        "'data' is not among the volumes of the pod",
    ),
    (
        pod(containers=[container(resources={"claims": [{"name": "gpu"}]})]),
        "'gpu' is not among the resourceClaims of the pod",
    ),
    (pod(overhead={"cpu": "1"}), "runtimeClassName is missing"),
    (
        workload("Deployment", selector={"matchLabels": {"app": "v"}}),
        "spec.selector does not match spec.template.metadata.labels",
    ),
    (
        workload(
            "Deployment", selector=SELECTOR, strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}
        ),
        "rollingUpdate must be empty with the type Recreate",
    ),
    (
        workload(
            "Deployment",
            selector=SELECTOR,
            strategy={"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}},
        ),
        "maxUnavailable must not be 0 with a maxSurge of 0",
    ),
]
ACCEPTED: list[Object] = [
    pod(),
    pod(tolerations=[{"operator": "Exists"}]),
    pod(tolerations=[{"key": "k", "effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 0}]),
    near({"key": "k", "operator": "Gt", "values": ["80Gi"]}, {"key": "k", "operator": "DoesNotExist"}),
    pod(topologySpreadConstraints=[{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway"}]),
    pod(resources={"limits": {"cpu": "4", "hugepages-2Mi": "4Mi"}}, nodeSelector={"k": "", "l": "a_b.C"}),
    pod(
        containers=[
            container(
                resources={"limits": {**GPU, "memory": "1Gi"}, "requests": {**GPU, "memory": "1024Mi"}},
                env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
                readinessProbe={"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 5},
                volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
            )
        ],
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    ),
    workload("Deployment", selector=SELECTOR, strategy={"rollingUpdate": {"maxSurge": 0}}),
    workload(
        "StatefulSet",
        of_pod={"containers": [container(volumeMounts=[{"name": "data", "mountPath": "/d"}])]},
        selector=SELECTOR,
        serviceName="w",
        volumeClaimTemplates=[
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    ),
    workload("Job", "batch/v1", of_pod={"restartPolicy": "Never"}, completionMode="Indexed", completions=2),
    workload("DaemonSet", selector=SELECTOR, updateStrategy={"type": "OnDelete"}),
    {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "w"},
        "spec": {
            "schedule": "0 2 * * *",
            "concurrencyPolicy": "Forbid",
            "jobTemplate": {"spec": workload("Job", of_pod={"restartPolicy": "OnFailure"})["spec"]},
        },
    },
]
