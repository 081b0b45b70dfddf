"""Limits on foreign input: how much Stowage reads of what somebody else writes.

The author of a pod, node, claim, file or request controls every text in it. Each limit stands here, with what
it bounds, and is enforced where the text enters: where an object is read from the wire (``manifests.py``),
where a body is received (``body.py``), where an annotation is parsed (``dialects/``, ``inventory/``). What
exceeds a limit is a problem of its object, has a short text, and counts as unreadable.
``docs/security.md`` says who writes what and what happens beyond a limit.
"""

from __future__ import annotations

# Annotations and labels, in characters. The API server allows 256 KiB of annotations for each object.
POD_ANNOTATION = 16 << 10
"""One annotation or label of a pod. The longest real one is HAMi's, 60 characters for each device."""
POD_ANNOTATIONS = 32 << 10
"""All annotations and labels that are kept of a pod."""
NODE_ANNOTATION = 96 << 10
"""One annotation of a node. HAMi registers a GPU in MIG mode in 2 KiB."""
NODE_ANNOTATIONS = 192 << 10
"""All annotations that are kept of a node."""
KEY = 317
"""The name of an annotation, label or resource: a domain of 253, a slash and 63, as the API server has it."""

# Lists and counts.
LISTED_NAMES = 64
"""GPU models or UUIDs that one annotation of a pod lists."""
NAME = 128
"""Characters of one listed name. ``nvidia.com/gpu.product`` is a label, so it has 63 at most."""
CLAIMED_DEVICES = 128
"""Devices that the annotations of one pod claim, over all its containers."""
CONTAINERS = 128
"""Containers of a pod, of each kind. The API server sets no limit."""
RESOURCES = 64
"""Resources that one container requests, or a node offers."""
POD_RESOURCES = 384
"""Resources that all containers of a pod request together: half a dozen of them request 20."""
POD_CLAIMS = 64
"""ResourceClaims that a pod names."""
REPORTED_DEVICES = 1024
"""Devices of a pod that kubelet reports."""
SELECTOR_ITEMS = 256
"""Entries of a pod's node selector, values of its node affinity, and tolerations, each over the pod."""
GPUS_PER_NODE = 64
"""More GPUs on one node are a broken advertisement."""
DEVICES_PER_NODE = 1 << 20
"""More devices of one resource on one node are a broken advertisement."""
GPU_MIB = (1 << 24) - 1
"""MiB of one GPU (16 TiB), scaled as its sharing system likes."""
MIG_SLICES = 32
"""Memory slices of a GPU in MIG mode, and places of one profile. NVIDIA's GPUs have 8."""
MIG_PROFILES = 32
"""MIG profiles of one GPU, or instances that a layout makes on it. NVIDIA's GPUs have at most 20."""
MIG_CONFIG = 256 << 10
"""Characters of the MIG manager's ``config.yaml``. The one that the GPU operator ships has 30,000."""
MIG_LAYOUTS = 256
"""Layouts of one ``config.yaml``. The GPU operator ships 70."""
NODE_CONDITIONS = 512
"""Conditions of a node that are looked through for those that speak of GPUs."""
NODE_TAINTS = 64
"""Taints and conditions that are read of a node, of each kind."""
NODE_LABELS = 512
"""Labels of a node whose names are searched for words. Node Feature Discovery writes about 100."""

# Dynamic Resource Allocation. The API server enforces the first group (k8s.io/api ``resource/v1/types.go``,
# v0.36.3; where versions differ, the larger number); a file, or an API server of another version, may not.
CLAIM_REQUESTS = 32
"""Requests of a claim."""
CLAIM_ALTERNATIVES = 8
"""Alternatives (``firstAvailable``) of a request."""
CLAIM_CONSTRAINTS = 32
"""Constraints of a claim."""
CLAIM_RESULTS = 32
"""Devices that one claim has been given."""
CLAIM_USERS = 256
"""Pods that a claim is reserved for."""
SELECTORS = 32
"""CEL selectors of a request or a device class."""
SELECTOR = 10 << 10
"""Characters of a CEL selector."""
DEVICE_TOLERATIONS = 16
"""Tolerations of a request."""
SLICE_DEVICES = 128
"""Devices of a ResourceSlice."""
DEVICE_ATTRIBUTES = 64
"""Attributes of a device, and as many capacities."""
DEVICE_TAINTS = 16
"""Taints of a device."""
COUNTER_SETS = 64
"""Counter sets of a ResourceSlice, and of those that one device consumes from."""
COUNTERS = 64
"""Counters of one set."""
POLICY_VALUES = 64
"""Values that the request policy of a capacity lists."""
SELECTOR_TERMS = 16
"""Terms of a ResourceSlice's or a device's node selector, and expressions of a term."""
OBJECT_NAME = 253
"""Characters of a name in a claim, slice or class: of a class, driver, pool, device, request or counter."""
ATTRIBUTE = 64
"""Characters of an attribute's value."""

# The API server bounds none of these, or only very far away.
CLAIM_TEXT = 64 << 10
"""All CEL selectors of a claim or class, in characters. The API server lets through 1.5 MiB."""
POD_CLAIMS = 32
"""ResourceClaims of a pod."""
SELECTOR_TOKENS = 480
"""Names, literals and signs of a CEL selector. Those of NVIDIA's documentation have up to 40."""
SELECTOR_DEPTH = 32
"""Parts inside each other of a CEL selector: parentheses, calls, and operators one after the other."""
SELECTOR_STEPS = 2000
"""Steps that one evaluation of a CEL selector may take: each part of it that is evaluated is one, and each
``STEP_TEXT`` characters or items that it goes through. A normal one takes less than 100."""
STEP_TEXT = 16
"""Characters or items that are gone through in one step."""
FORECAST_STEPS, NODE_STEPS, DEVICE_STEPS = 10_000, 40, 32
"""Steps of CEL and of the search that the forecast for one pod may take, and how many more for each node that
it is about and each device there; what one node does not need is left for the next ones. A normal forecast
takes a fifth. So the author of a claim can make it a few times slower than others, and no more."""
MOST_STEPS = 1_000_000
"""Steps that the forecast for one pod may take, however many nodes and devices there are: about a second."""

# YAML of files and of requests for an explanation. Aliases are refused whatever their number.
YAML_DEPTH = 64
"""Maps and lists inside each other. A pod has 12."""
YAML_NODES = 20_000
"""Scalars, lists and maps in one manifest of a request, or in one layout file. A large pod has 2,000."""
EXPLAIN_BODY = 1 << 20
"""Bytes of a manifest for ``POST /debug/explain``: what etcd stores of an object, give or take."""

# Requests. Everybody who reaches the port can send them, and only kube-scheduler's matter.
BODIES_IN_FLIGHT = 4
"""All request bodies of one port together, in multiples of the largest body that the port takes."""
BODY_SECONDS = 10
"""Seconds for a body to arrive. kube-scheduler waits for an extender's answer for 5 s by default."""
HEADER_SECONDS = 10
"""Seconds for the head of a request to arrive, from its first byte, and for a caller to take its answer."""
HEADERS = 64 << 10
"""Bytes of a request's first line and headers. kube-scheduler sends 200."""
PIPELINED_REQUESTS = 16
"""Requests that one connection sends without waiting for answers. kube-scheduler waits."""
CONNECTIONS = 400
"""Open connections of one port; two ports and the watches stay below the usual 1,024 open files."""

# Text that Stowage writes about foreign input.
QUOTED = 64
"""Characters of foreign text that an error or a log line quotes."""
ERRORS = 100
"""Values of the wrong type in one object or request, up to which an error says where the first is."""
PROBLEM = 300
"""Characters of one problem, error or log line about foreign input."""

# What the policy learns from.
TAUGHT_NAMES = 16
"""GPU models and UUIDs that a pod lists; one that lists more is placed, but teaches the policy nothing."""

# Memory.
CACHE = 1 << 20
"""Characters of foreign text that one cache keeps alive. What is larger than a sixteenth is not kept."""
KEPT_PODS = 4 << 20
"""Characters of the pods that are remembered from filter requests. One pod counts with a sixteenth at most:
those asked about last are always remembered."""
DECISION = 8 << 10
"""Characters of each pod whose decisions are kept, on average over as many as the setting keeps."""


def shorten(text: str, limit: int = PROBLEM) -> str:
    """At most ``limit`` characters of a text; where something is left out, it ends in ``...``."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(text: str) -> str:
    """A foreign text in quotes, at most ``QUOTED`` characters of it, control characters escaped."""
    return repr(shorten(text, QUOTED))
