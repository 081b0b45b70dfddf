"""Objects of each kind as an author may write them who wants to do harm: as long as the API server accepts,
of another form than any parser expects, or more of something than Stowage reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from extender.k8s.objects import Kind
from tests.examples import some
from tests.extender.dra.cel.test_hostile_selectors import HOSTILE as SELECTORS
from tests.extender.dra.claims import request, selectors
from tests.extender.dra.nvidia import gpu
from tests.extender.dra.test_claim_costs import CLAIMS
from tests.hostile.cluster import ANNOTATIONS, GPU, HAMI, PLAIN, Manifest, usual_node, usual_pod


def words(text: str) -> list[str]:
    return text.split()


Make: TypeAlias = Callable[[], list[Manifest]]
LONG = ANNOTATIONS - 2048
"""Characters of the longest annotation, which leave room for its name and a few others."""
LABEL = "x" * 63
PARTS = {GPU: "2", "nvidia.com/gpumem": "4000"}
"""A pod's request in HAMi's dialect."""
OF_PODS = words("""
stowage.dev/gpu-compute stowage.dev/gpu-memory stowage.dev/gpus stowage.dev/gpu-indices
stowage.dev/gpu-models stowage.dev/gpu-models-not stowage.dev/min-cuda stowage.dev/nvlink gpu-fraction
gpu-memory gpu-fraction-num-devices nvidia.com/use-gpuuuid nvidia.com/nouse-gpuuuid
nvidia.com/use-gputype nvidia.com/nouse-gputype nvidia.com/vgpu-mode nvidia.com/numa-bind
nvidia.com/include-gpu-type nvidia.com/exclude-gpu-uuid nvidia.com/pre-allocated
nvidia.com/real-allocated nvidia.com/node-name nvidia.com/predicate-node hami.io/vgpu-devices-allocated
hami.io/vgpu-devices-to-allocate hami.io/vgpu-node hami.io/vgpu-mig-allocations hami.io/vgpu-time
hami.io/bind-phase hami.io/bind-time volcano.sh/vgpu-ids-new volcano.sh/vgpu-node
volcano.sh/vgpu-use-gpuuuid volcano.sh/vgpu-mode scheduling.koordinator.sh/device-allocated
ALIYUN_COM_GPU_MEM_IDX ALIYUN_COM_GPU_MEM_POD ALIYUN_COM_GPU_MEM_ASSUME_TIME
""")
"""Annotations of pods that Stowage reads."""
OF_NODES = words("""
hami.io/node-nvidia-register hami.io/node-handshake hami.io/device-cordon hami.io/mutex.lock
volcano.sh/node-vgpu-register nvidia.com/node-device-register nvidia.com/node-config-info
""")
"""Annotations of nodes that Stowage reads."""
LABELS = words("""
nvidia.com/gpu.product nvidia.com/gpu.memory nvidia.com/gpu.count nvidia.com/gpu.replicas
nvidia.com/mig.config nvidia.com/mig.config.state nvidia.com/cuda.runtime-version.major
nvidia.com/gpu.clique stowage.dev/gpu-sharing stowage.dev/replicas-per-container
cloud.google.com/gke-accelerator cloud.google.com/gke-max-shared-clients-per-gpu
node.koordinator.sh/gpu-model gpu.nvidia.com/class node.kubernetes.io/instance-type amd.com/gpu.vram
nvlink.feature.node.kubernetes.io/islands
""")
RESOURCES = [GPU, "cpu", "memory", "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/mig-1g.10gb"]
RESOURCES += [
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "koordinator.sh/gpu-core",
    "volcano.sh/vgpu-memory",
]
QUANTITIES = words("""
3000000000 1000000 1e9 1e99 1e-99 1e999999999 1E -1 -0 0.5 1m 1n +1 .5 5. 1Ei 9223372036854775807
9223372036854775808Ki 0x10 ٣ 1_000 NaN Infinity 1e e1 --1 100000000000000000m
""")
QUANTITIES += ["9" * 300, "9" * 5000, "", " ", "1 ", "\x00"]
VALUES = [
    "9" * 63,
    "-1",
    "0",
    "1e9",
    "٣" * 30,
    "a" * 63,
    "0_" * 31,
    "0.1_2.3",
    "all-" * 15,
    "1g.10gb" * 9,
    "",
]


def repeated(part: str) -> str:
    return part * (LONG // len(part.encode()))


def numbered(separator: str, form: str) -> str:
    return separator.join(form.format(n) for n in range(LONG // (len(form) + len(separator) + 4)))


TEXTS = {
    "digits": repeated("9"),
    "fraction": "0." + repeated("3"),
    "exponent": "1e" + repeated("9"),
    "zeros": repeated("0") + "1",
    "brackets": repeated("["),
    "braces": repeated('{"a":'),
    "JSON list": json.dumps([0] * (LONG // 3)),
    "JSON devices": json.dumps({"gpu": [{"minor": n, "resources": {}} for n in range(LONG // 40)]}),
    "JSON objects": json.dumps([{"index": n, "devices": []} for n in range(LONG // 40)]),
    "separators": repeated(":"),
    "semicolons": repeated(";"),
    "commas": repeated(","),
    "HAMi devices": repeated("GPU-0,NVIDIA,100,1:"),
    "HAMi containers": repeated("GPU-0,NVIDIA,100,1:;"),
    "other devices": numbered(":", "GPU-{},NVIDIA,100,1"),
    "indices": numbered(",", "{}"),
    "one index": repeated("0,"),
    "names": numbered(",", "NVIDIA-{}"),
    "words": repeated("a-"),
    "dots": repeated("1."),
    "controls": repeated("\x1b[31m\n\r\t\x7f"),
    "other digits": repeated("٣"),
    "wide": repeated("𝟗"),
    "pattern": repeated("(a+)+$|"),
    "short digits": "9" * 4400,
    "negative": "-1",
    "not a number": "NaN",
    "null": "\x00",
    "nothing": "",
}


def resources(count: int, quantity: str = "1", form: str = "example.com/r{}") -> dict[str, str]:
    return {form.format(n): quantity for n in range(count)}


def containers(count: int, **asks: str) -> list[Manifest]:
    return [{"name": f"c{n}", "resources": {"limits": asks or {GPU: "1"}}} for n in range(count)]


def required(*expressions: Manifest) -> Manifest:
    terms = [{"matchExpressions": [expression]} for expression in expressions]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def wants(key: str, *values: str) -> Manifest:
    return {"key": key, "operator": "In", "values": [*values]}


def reported(count: int) -> Manifest:
    devices = [{"resourceID": f"GPU-{n}", "health": "Healthy"} for n in range(count)]
    status = {"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": devices}]}
    return {"phase": "Running", "containerStatuses": [status]}


def with_spec(**more: Any) -> Manifest:
    pod = usual_pod("hostile")
    return pod | {"spec": pod["spec"] | more}


def pods() -> dict[str, Make]:
    def pod(asks: Manifest | None = None, **more: Any) -> Make:
        return lambda: [usual_pod("hostile", asks, **more)]

    claims = [{"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(10_000)]
    sidecars = [one | {"restartPolicy": "Always"} for one in containers(5000)]
    return {
        **{
            f"text {name}": lambda text=text: [
                usual_pod("hostile", PARTS if "/vgpu" in key else {}, annotations={key: text})
                for key in some(OF_PODS, 12)
            ]
            for name, text in TEXTS.items()
        },
        **{
            f"quantity of {resource}": lambda resource=resource: [
                usual_pod("hostile", {GPU: "1", resource: text}) for text in QUANTITIES
            ]
            for resource in RESOURCES
        },
        "containers": pod(containers=containers(7500)),
        "containers of shares": pod(containers=containers(7500, **PARTS)),
        "init containers": pod(initContainers=containers(7500)),
        "sidecars": pod(initContainers=sidecars),
        "resources": pod(resources(20_000)),
        "GPU resources": pod(resources(20_000, form="nvidia.com/mig-{}g.1gb")),
        "resources of the pod": lambda: [with_spec(resources={"requests": resources(10_000)})],
        "many in many": pod(containers=containers(500, **resources(60))),
        "overhead": pod(overhead=resources(20_000, "9" * 40)),
        "long quantities": pod(resources(300, "9" * 4000)),
        "node selector": pod(nodeSelector={f"k{n}": LABEL for n in range(10_000)}),
        "affinity": pod(affinity=required(*(wants(f"k{n}", "a", "b") for n in range(10_000)))),
        "values": pod(affinity=required(wants("k", *[LABEL] * 20_000))),
        "tolerations": pod(tolerations=[{"key": f"k{n}"} for n in range(20_000)]),
        "claims": pod(resourceClaims=claims),
        "labels": pod(labels={f"nvidia.com/l{n}": LABEL for n in range(10_000)}),
        "annotations": pod(annotations={f"gpu-{n}": "1" for n in range(15_000)}),
        "long names": lambda: [usual_pod("n" * 253, {f"nvidia.com/{'r' * 63}{n}": "1" for n in range(2000)})],
        "reported devices": lambda: [usual_pod("hostile") | {"status": reported(10_000)}],
        "claim statuses": lambda: [usual_pod("hostile") | {"status": {"resourceClaimStatuses": claims}}],
        "priority": pod(priority=2_000_000_000, schedulerName="s" * 100_000),
    }


def registered(gpus: int, /, **fields: Any) -> str:
    """HAMi's register of GPUs with these fields."""
    usual = {"count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA-A100", "health": True}
    return json.dumps([{"id": f"GPU-{n}", "index": n} | usual | fields for n in range(gpus)])


def profile(number: int) -> Manifest:
    places = [{"start": k, "size": 1} for k in range(32)]
    return {"name": f"1g.{number}gb", "memoryMB": 1, "core": 1, "sliceCount": 1, "placements": places}


REGISTERS = {
    "GPUs": registered(1600),
    "shares": registered(4, count=10**9),
    "memory": registered(4, devmem=10**15),
    "negative": registered(4, devmem=-1, count=-1),
    "index": registered(4, index=10**9),
    "one index": registered(4, index=0, id="GPU-0"),
    "digits": '[{"id": "GPU-0", "count": %s}]' % ("9" * 4400),
    "type": registered(4, type="A" * 40_000),
    "wrong types": registered(4, count=[[]], devmem={}, type=[], index="x", health=7),
    "profiles": registered(2, mode="mig", migProfiles=[profile(n) for n in range(50)]),
    "old form": "GPU-0,10,40960,100,NVIDIA,0,true:" * 6000,
    "old form, many fields": "," * 250_000,
}


def node(asks: dict[str, str] | None = None, **more: Any) -> Manifest:
    labels, annotations = more.pop("labels", {}), more.pop("annotations", {})
    made = usual_node("hostile", {GPU: "8"} if asks is None else asks, labels, annotations)
    return made | {"spec": more.pop("spec", {})} | more


def nodes() -> dict[str, Make]:
    conditions = {"allocatable": {GPU: "8"}, "conditions": [{"type": f"c{n}"} for n in range(20_000)]}
    return {
        **{
            f"text {name}": lambda text=text: [node({GPU: "40"}, annotations={key: text}) for key in OF_NODES]
            for name, text in TEXTS.items()
        },
        **{
            f"register {name}": lambda text=text: [node({GPU: "40"}, annotations={OF_NODES[0]: text})]
            for name, text in REGISTERS.items()
        },
        "values": lambda: [node(labels={key: value}) for key in LABELS for value in VALUES[::3]],
        "quantities": lambda: [node({name: text}) for name in RESOURCES[:6:2] for text in QUANTITIES],
        "labels": lambda: [node(labels={f"nvidia.com/l{n}": LABEL for n in range(15_000)})],
        "resources": lambda: [node(resources(20_000, "7", "nvidia.com/mig-{}g.1gb"))],
        "taints": lambda: [node(spec={"taints": [{"key": f"k{n}"} for n in range(20_000)]})],
        "conditions": lambda: [node(status=conditions)],
    }


def koordinator() -> dict[str, Make]:
    def device(*gpus: Manifest) -> Make:
        usual = {"type": "gpu", "minor": 0, "health": True}
        return lambda: [{"metadata": {"name": "hostile"}, "spec": {"devices": [usual | one for one in gpus]}}]

    return {
        "many": device(*({"minor": n, "id": f"GPU-{n}"} for n in range(15_000))),
        "one number": device(*({"id": f"GPU-{n}"} for n in range(15_000))),
        "large number": device({"minor": 1 << 60}),
        "negative": device({"minor": -1}),
        "resources": device({"resources": resources(9000, "9" * 99, "koordinator.sh/r{}")}),
        "id": device({"id": "G" * 1_000_000}),
        "quantities": device(*({"resources": {"koordinator.sh/gpu-memory": text}} for text in QUANTITIES)),
    }


def claim(name: str, devices: Any) -> Manifest:
    meta = {"name": name, "namespace": "d", "uid": f"uid-{name}"}
    return {"metadata": meta, "spec": {"devices": devices}}


def claims() -> dict[str, Make]:
    """Those of ``test_claim_costs.py``, and more of everything than the API server accepts."""
    capacity = {"requests": {f"c{n}": "9" * 99 for n in range(5000)}}
    more = {
        "capacity": [request(capacity=capacity)],
        "requests": [request() | {"name": f"r{n}"} for n in range(10_000)],
        "count": [request(count=1 << 60)],
    }
    return {
        **{f"like {name}": lambda few=few: [claim("hostile", few[0])] for name, few in CLAIMS.items()},
        **{name: lambda few=few: [claim("hostile", {"requests": few})] for name, few in more.items()},
    }


def device_slice(node: str, **more: Any) -> Manifest:
    """Eight GPUs of a node, or what is said instead."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    usual = {
        "driver": "gpu.nvidia.com",
        "nodeName": node,
        "pool": pool,
        "devices": [gpu(n) for n in range(8)],
    }
    return {"metadata": {"name": f"slice-{node}"}, "spec": usual | more}


def slices() -> dict[str, Make]:
    def device(**more: Any) -> Make:
        return lambda: [device_slice("hostile", devices=[{"name": "g", **more}])]

    counters = {f"c{k}": {"value": "1"} for k in range(32)}
    sets = [{"name": f"s{n}", "counters": counters} for n in range(300)]
    return {
        "devices": lambda: [device_slice("hostile", devices=[gpu(n) for n in range(6000)])],
        "attributes": device(attributes={f"a{n}": {"string": "x" * 64} for n in range(10_000)}),
        "versions": device(attributes={"v": {"version": "9" * 100_000}}),
        "capacities": device(capacity={f"c{n}": {"value": "9" * 99} for n in range(5000)}),
        "counters": lambda: [device_slice("hostile", sharedCounters=sets)],
        "generation": lambda: [device_slice("hostile", pool={"name": PLAIN, "generation": 1 << 70})],
        "nothing": lambda: [{"metadata": {"name": "hostile"}, "spec": None}],
        "a list": lambda: [{"metadata": {"name": "hostile"}, "spec": [[]] * 1000}],
    }


def classes() -> dict[str, Make]:
    def made(text: str) -> Make:
        spec = selectors(text) | {"extendedResourceName": "example.com/gpu"}
        return lambda: [{"metadata": {"name": "hostile"}, "spec": spec}]

    return {name: made(text) for name, text in SELECTORS.items()}


def budget(selector: Any, name: str = "b", **status: Any) -> Manifest:
    return {
        "metadata": {"namespace": "d", "name": name, "generation": 1},
        "spec": {"selector": selector},
        "status": {"observedGeneration": 1, "disruptionsAllowed": 5} | status,
    }


def exists(key: str) -> Manifest:
    return {"key": key, "operator": "Exists"}


def budgets() -> dict[str, Make]:
    def selecting(**selector: Any) -> Make:
        return lambda: [budget(selector)]

    names = [f"{n:020}" for n in range(50_000)]
    no_in = {"key": "a", "operator": "NotIn", "values": names[:1000]}
    return {
        "labels": selecting(matchLabels=dict.fromkeys(names[:40_000], "x")),
        "expressions": selecting(matchExpressions=[exists("a")] * 20_000),
        "values": selecting(matchExpressions=[wants("a", *names)]),
        "lists of values": selecting(matchExpressions=[no_in] * 50),
        "a long key": selecting(matchLabels={"k" * 1_000_000: "x"}),
        "a long value": selecting(matchLabels={"k": "x" * 1_000_000}),
        "a long operator": selecting(matchExpressions=[{"key": "k", "operator": "I" * 1_000_000}]),
        "numbers": selecting(matchLabels={"k": 7}),
        "nothing": selecting(matchExpressions=[{}] * 64),
        "disrupted pods": lambda: [budget({}, disruptedPods=dict.fromkeys(names, ""))],
        "status": lambda: [
            budget({}, **status)
            for status in ({"disruptionsAllowed": "5"}, {"disruptionsAllowed": 10**30}, {"disruptedPods": []})
        ],
    }


def priority_classes() -> dict[str, Make]:
    toleration = "preemption-toleration.scheduling.x-k8s.io"
    keys = (
        "stowage.dev/queue",
        f"{toleration}/toleration-seconds",
        f"{toleration}/minimum-preemptable-priority",
    )
    texts = {"digits": "9" * LONG, "days": "1h" * 8000, "nothing": "", "controls": TEXTS["controls"]}

    def made(value: Any = 5, **annotations: str) -> Manifest:
        return {"metadata": {"name": "c", "annotations": annotations}, "value": value}

    return {
        **{name: lambda text=text: [made(**{key: text}) for key in keys] for name, text in texts.items()},
        "value": lambda: [made(value) for value in (None, "x", 10**30, -(10**30), 1.5)],
    }


TABLES: dict[Kind, dict[str, Make]] = {
    "Pod": pods(),
    "Node": nodes(),
    "Device": koordinator(),
    "ResourceClaim": claims(),
    "ResourceSlice": slices(),
    "DeviceClass": classes(),
    "PodDisruptionBudget": budgets(),
    "PriorityClass": priority_classes(),
}


def usual() -> Iterator[tuple[Kind, Manifest]]:
    """A normal object of each of these kinds but pods and nodes. Claims get devices on two nodes."""
    yield "DeviceClass", {"metadata": {"name": "gpu.nvidia.com"}, "spec": {}}
    for name in (PLAIN, HAMI):
        yield "ResourceSlice", device_slice(name)
    yield "ResourceClaim", claim("usual", {"requests": [request()]})
    yield "PodDisruptionBudget", budget({"matchLabels": {"app": "x"}}, "usual")
    yield "PriorityClass", {"metadata": {"name": "usual"}, "value": 5}
