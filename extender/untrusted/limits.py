"""Limits on untrusted input.

The author of a pod, node, claim, file or request controls every text in it. All limits are defined here. They
are enforced where the text enters: in manifests (``k8s/``), in requests (``server/port.py`` and ``body.py``),
and in the parsers of annotations (``dialects/``, ``inventory/``). An object beyond a limit counts as
unreadable, and is reported as a problem with a short text. ``docs/security.md`` lists the author of each
text, and how it is handled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

# Annotations and labels, in characters. The API server allows 256 KiB of annotations for each object.
POD_ANNOTATION = 16 << 10
"""One annotation or label of a pod. The longest known one is HAMi's, with 60 characters per device."""
POD_ANNOTATIONS = 32 << 10  # all annotations and labels of a pod that Stowage reads
NODE_ANNOTATION = 96 << 10  # one annotation of a node. HAMi's register has 2 KiB per GPU in MIG mode
NODE_ANNOTATIONS = 192 << 10  # all annotations of a node that Stowage reads
KEY = 317
"""The name of an annotation, label or resource: 253 for a domain, a slash and 63, as in the API server."""
LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
"""Regular expression of a non-empty label value."""

# Lists and counts.
WAITING_EVENTS = 1000  # of one kind; then the watch is not read until some are applied
LISTED_NAMES = 64  # GPU models or UUIDs that one annotation of a pod lists
NAME = 128  # characters of one such name. ``nvidia.com/gpu.product`` is a label, so it has at most 63
CLAIMED_DEVICES = 128  # devices that the annotations of one pod claim, over all its containers
CONTAINERS = 128  # containers of a pod, and init containers. The API server has no limit
RESOURCES = 64  # resources that one container requests, or that a node offers
POD_RESOURCES = 384
"""Resources that all containers of a pod request together. Six containers request about 20."""
REPORTED_DEVICES = 1024  # devices that kubelet reports for one pod
SELECTOR_ITEMS = 256
"""Of one pod: entries of the node selector, values in the node affinity, and tolerations. Also values in the
node selector of a ResourceSlice, a device or an allocation."""
GPUS_PER_NODE = 64  # GPUs of one node. No machine has more
DEVICES_PER_NODE = 1 << 20  # devices of one resource on one node. No machine has more
GPU_MIB = (1 << 24) - 1  # MiB of one GPU (16 TiB). Some sharing systems multiply the real memory by a factor
MIG_SLICES = 32  # memory slices of a GPU in MIG mode, and placements of one profile. NVIDIA's GPUs have 8
MIG_PROFILES = 32  # MIG profiles of one GPU, or instances of a layout on it. NVIDIA's GPUs have at most 20
MIG_CONFIG = 256 << 10  # characters of the MIG manager's ``config.yaml``. That of the GPU operator has 30,000
MIG_LAYOUTS = 256  # layouts of one ``config.yaml``. That of the GPU operator has 70
NODE_CONDITIONS = 512  # conditions of a node that are searched for those about GPUs
SCHEDULING_GATES = 32  # scheduling gates of a pod whose names are kept. Kueue writes one or two
NODE_TAINTS = 64  # taints of a node, and conditions about GPUs
NODE_LABELS = 512
"""Labels of a node that are searched for words about unhealthy GPUs. Feature discovery writes about 100."""

NUMA_ZONES, NUMA_RESOURCES = 256, 64
"""Zones of a machine's topology (kubelet's Topology Manager supports 8 NUMA nodes by default), and resources
of one of them."""

GANG_MEMBERS = 2048
"""Members of a gang, including pending ones. If there are more, each of them counts as a single pod. The same
limit applies to remembered members that have succeeded."""
GANG_TEMPLATES = 16
"""Pod templates of a job that are read. Most jobs have one to three."""
GANG_LEVELS, GANG_DOMAINS = 8, 64
"""Topology levels in which a pod of a gang requires one domain, and domains that are tried for a part of it,
those with just enough room first. KAI's and Kueue's topologies have at most 16 levels, of which a pod names
one or two."""
# PodDisruptionBudgets. The API server has no limits for selectors.
BUDGET_SELECTOR = 64  # requirements and values in the selector of a PodDisruptionBudget. Most have one or two
DISRUPTED_PODS = 2000
"""Pods in ``disruptedPods``. With more, the API server evicts none (``MaxDisruptedPodSize`` in
k8s.io/kubernetes, pkg/registry/core/pod/storage)."""
BUDGETS_PER_POD = 16
"""PodDisruptionBudgets that may select a pod, by one of its labels or by expressions only. The API server
evicts no pod with more than one."""

REFUSED_PODS = 512
"""Pods that ended because kubelet's NUMA policy rejected them, and that are remembered for explanations."""
GANG_READ, GANG_PLACED, GANG_VICTIMS, GANG_HELD = 256, 64, 256, 32
"""For a pending gang: members that are read, members that are placed in memory one by one to check whether
all fit, and pods that it may evict for that; members beyond the limits count as fitting. The last limit is on
the places that are held for members of all gangs together: the namespace with the most gives up places."""
GANG_STARTS = 8
"""Gangs of one namespace that start or wait to start, and that other gangs wait for."""

# The page at ``/``.
PAGE_PARTS = 1024
"""Fractions of GPUs of one node that the page shows. A node of eight GPUs in seven MIG instances each has
56."""
PAGE_LABELS = 12  # labels of a node or pod that the page filters by
PAGE_WAITING = 40  # pending pods that the page explains, the most urgent ones

# The evictor.
EVENTS_READ = 32  # events about one pod that are read
EVENTS_SIZE = 1 << 20  # bytes of these Events. One has about 1 KiB
RESERVED_NODES = 4096  # of all reservations for large jobs in the ConfigMap
SHIELD_SIZE = 900 << 10  # characters of the shield in its ConfigMap. The API server allows 1 MiB
SCHEDULERS = 64  # names of schedulers that the evictor remembers from filter requests

# Dynamic Resource Allocation. The API server enforces the first group (k8s.io/api ``resource/v1/types.go``,
# v0.36.3; the larger number if versions differ). A file or a newer API server may contain more.
CLAIM_REQUESTS = 32  # requests of a claim
CLAIM_ALTERNATIVES = 8  # alternatives (``firstAvailable``) of a request
CLAIM_CONSTRAINTS = 32  # constraints of a claim
CLAIM_RESULTS = 32  # devices that are allocated to one claim
CLAIM_USERS = 256  # pods that a claim is reserved for
SELECTORS = 32  # CEL selectors of a request or a device class
SELECTOR = 10 << 10  # characters of a CEL selector
DEVICE_TOLERATIONS = 16  # tolerations of a request
SLICE_DEVICES = 128  # devices of a ResourceSlice
DEVICE_ATTRIBUTES = 64  # attributes of a device, and as many capacities
DEVICE_TAINTS = 16  # taints of a device
COUNTER_SETS = 64  # counter sets of a ResourceSlice, and counter sets that one device consumes from
COUNTERS = 64  # counters of one set
POLICY_VALUES = 64  # valid values in the request policy of a capacity
OBJECT_NAME = 253  # characters of the name of a device class, driver, pool, device, request or counter
ATTRIBUTE = 64  # characters of the value of an attribute

# The API server has no limits for these, or much higher ones.
CLAIM_TEXT = 64 << 10  # all CEL selectors of a claim or class, in characters. The API server allows 1.5 MiB
POD_CLAIMS = 32  # ResourceClaims of a pod
SELECTOR_TOKENS = 480  # tokens of a CEL selector. Those in NVIDIA's documentation have up to 40
SELECTOR_DEPTH = 32  # nesting depth of a CEL selector: parentheses, calls, signs
SELECTOR_STEPS = 2000
"""Steps of one evaluation of a CEL selector: one for each evaluated part, and one for each ``STEP_TEXT``
characters or items that it reads. A normal evaluation takes less than 100."""
PATTERN_SIZE = 1024
"""Instructions of a compiled regular expression, at most, by its text. Those in documentation have 100. Each
is a step when it is compiled: less than a microsecond."""
STEP_TEXT = 16  # characters or items that count as one step
FORECAST_STEPS, NODE_STEPS, DEVICE_STEPS = 10_000, 40, 32
"""Steps of CEL and of the search for one pod's forecast, plus steps for each node and for each device there.
Steps that a node does not use are left for the next nodes; no node takes more than ``FORECAST_STEPS``, 10 ms.
A normal forecast takes a fifth of this, so the author of a claim can make it only a few times slower."""
STEPS_AT_ONCE = 10_000  # steps for one pod's forecast before other tasks run
MOST_STEPS = 1_000_000  # steps for one pod's forecast, for any number of nodes and devices: about a second

DEPTH = 64
"""Nesting depth of maps and lists from the API server, beyond which the decoder stops. A pod has 12."""

OBJECT_ENTRIES = 20_000
"""Entries of all lists and maps of a job, which counts as unreadable with more, and of an object that has an
unreadable part, whose nulls and numbers are not converted with more. A large pod has 2,000."""

# YAML of files and of requests for an explanation.
YAML_DEPTH = 64  # nesting depth of maps and lists. A pod has 12
YAML_NODES = 20_000
"""Scalars, lists and maps in one manifest of a request, or in one layout file. A large pod has 2,000."""
EXPLAIN_BODY = 1 << 20
"""Bytes of a manifest for ``POST /debug/explain``. etcd stores objects of up to about this size."""

# Requests. Anyone who can reach the port can send them.
PART_OF_MEMORY = 16
"""The memory limit of the process's cgroup, if any, divided by this is the largest body."""
LARGE_BODY = 1 << 20  # bytes from which a message is parsed in a thread, one at a time
BODIES_IN_FLIGHT = 4
"""All request bodies of one port together, in multiples of the largest body that the port accepts."""
MESSAGE_NAMES = 100_000  # nodes in one message. Kubernetes supports up to 5,000
NODE_VICTIMS, MESSAGE_VICTIMS = 4096, 1_000_000
"""Victims on one node, and in one message. kubelet runs 110 pods on a node, or a few hundred."""
MESSAGE_POD = 3 << 20  # bytes of the pod in a message: the largest object that the API server accepts
BODY_SECONDS = 10
"""Seconds for a body to arrive. By default kube-scheduler waits 5 s for the answer of an extender."""
HEADER_SECONDS = 10
"""Seconds for the head of a request to arrive, from its first byte, and for the caller to read the answer."""
HEADERS = 64 << 10  # bytes of a request's first line and headers. kube-scheduler sends 200
KNOWN_HOSTS = 64
"""Different hosts of requests that are remembered, and different rejected hosts that are logged."""
PIPELINED_REQUESTS = 16
"""Requests that one connection sends without waiting for answers. kube-scheduler always waits."""
CONNECTIONS, CONNECTIONS_OF_ADDRESS = 400, 64
"""Connections of one port, including TLS handshakes in progress: two ports and the watches remain below the
usual limit of 1,024 open files. Beyond this limit, an address with more connections than the second limit
loses one of them."""
UNREAD_ANSWERS = 32 << 20
"""Bytes of the answers of one port that their callers have not read yet. An answer with all nodes of a large
cluster has 10 MiB."""
TLS_CONNECTION_SECONDS = 600
"""Age of a TLS connection at which the next answer closes it, because certificates are only checked when it
begins."""
TLS_FILE = 1 << 20  # bytes of a certificate, key or CA file: the largest Secret

VOLCANO_NODES = 8
"""Nodes of the pods in one request of Volcano for victims, which always has the pods of one node."""

DEBUG_TOKEN = 16 << 10  # characters of a bearer token. Those of service accounts have about 1,000
DEBUG_PATH = 1024  # characters of a path under ``/debug`` for which a token is checked
REVIEWS_KEPT = 1024  # tokens whose reviews by the API server are remembered, and as many paths
REVIEWS_PENDING = 32  # requests that wait for a review at the same time
REVIEW_SECONDS = 5  # seconds for the reviews of one request
DRY_RUN_SECONDS = 10  # seconds for all dry runs of one manifest

LABEL_SELECTOR = 1024  # characters of the selector of a question
EXPLAIN_PODS = 16  # pods and pod templates in one manifest of a request
DECISIONS_LISTED = 200
"""Decisions in one answer of ``/debug/decisions``, and pending pods in one of ``/debug/overview``."""
DECISIONS_SIZE = 1 << 20  # bytes of one answer of ``/debug/decisions``. One decision has up to 5 KiB

SERVICE_ANSWER = 64 << 20
"""Bytes of the answer of a running Stowage service to a command. All nodes of a large cluster take 10 MiB."""

SNAPSHOT_OBJECT = 8 << 20
"""Characters of one object in a JSON file. The API server accepts 3 MiB, and kubectl indents them."""
SNAPSHOT_YAML = 32 << 20
"""Characters of a YAML file, which is parsed as a whole, at one megabyte per second, and bytes of all files
of ``explain -f`` together."""
SETTINGS_FILE = 8 << 20  # bytes of a file of settings, or of prices

PROBLEMS_LISTED = 1000  # problems in one answer of ``/debug/problems``
STATE_DUMP = 512 << 20
"""Bytes of a dump of the state, and of all files of ``--snapshot`` together. 5,000 nodes with 30,000 pods as
in the bundled example take 21 MiB."""

# Prometheus, which ``stowage plan slices`` queries for measured use.
METRICS_SECONDS = 30  # seconds for one answer. A maximum over a week of a thousand series takes a few
METRICS_SIZE = 32 << 20  # bytes of one answer. A series of one pod has about 300
METRICS_SERIES = 65_536  # series of one answer

# Texts that Stowage writes about untrusted input.
QUOTED = 64  # characters of untrusted text that an error or a log line quotes
ERRORS = 100
"""Invalid values in one object or request. If there are more, the error does not locate the first."""
PROBLEM = 300  # characters of one problem, error or log line about untrusted input
LOG_LEVEL = 16  # bytes of a level that a caller sets
LOG_LINES, LOG_SECONDS = 20, 10
"""Log lines of one kind within this many seconds. Further ones are only counted, because anyone who can reach
a port can cause them."""

# The demand mix.
TAUGHT_NAMES = 16
"""GPU models and UUIDs that a pod lists. A pod that lists more is placed, but does not count as demand."""
TAUGHT_LABELS = 32
"""Labels and values in the node selector and the required node affinity of a pod. A pod with more counts as
one that requires nothing."""

# Memory.
CACHE = 1 << 20
"""Characters of untrusted text that one cache keeps. An entry larger than a sixteenth of it is not kept."""
KEPT_PODS = 4 << 20
"""Approximate bytes of the pods that are kept from filter requests. One pod counts as at most a sixteenth, so
the latest pods are always kept."""
DISRUPTIONS = 2048
"""Remembered disruptions of pods, over all jobs. Even with the longest names they fit into one ConfigMap."""
TEAMS = 4096  # namespaces, by queue and GPU model, whose GPU time is counted for a day; others count as one
DECISION = 8 << 10
"""Characters for the decisions of one pod, on average over the number of pods in the settings."""

# Files of the history. Anyone who can write to their directory can add lines.
HISTORY_FILES = 64  # files that are read; older ones are removed
HISTORY_LINE = 64 << 10  # bytes of a line. A decision has up to 8 KiB
HISTORY_QUEUED = 10_000  # lines queued for writing; more would mean that the disk does not respond
HISTORY_SHOWN = 20  # decisions of one pod in one answer
HISTORY_RUNS, JOB_RUNS = 10_000, 64
"""Runs of pods that have ended and are remembered, and runs of one job in one answer."""


def shorten(text: str, limit: int = PROBLEM) -> str:
    """The text with at most ``limit`` characters. It ends with ``...`` if it was truncated."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def quoted(text: str) -> str:
    """At most ``QUOTED`` characters of an untrusted text in quotes, with control characters escaped."""
    return repr(shorten(text, QUOTED))


def validation_problem(error: ValidationError) -> str:
    """The first problem of a manifest or message and its path, in at most ``PROBLEM`` characters.

    Beyond ``ERRORS`` problems, only their number, because pydantic describes all of them to return the first.
    """
    if (count := error.error_count()) > ERRORS:
        return f"{count} values are invalid"
    first = error.errors(include_url=False, include_input=False)[0]
    text = "Input should be an object" if first["type"] in ("model_type", "dict_type") else first["msg"]
    path = ".".join(shorten(str(part), QUOTED) for part in first["loc"])
    return shorten(": ".join(filter(None, (path, text))))
