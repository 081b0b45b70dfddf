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
SELECTOR_ITEMS = 256
"""Entries of a pod's node selector, values of its node affinity, and tolerations, each over the pod."""
GPUS_PER_NODE = 64
"""More GPUs on one node are a broken advertisement."""
DEVICES_PER_NODE = 1 << 20
"""More devices of one resource on one node are a broken advertisement."""
NODE_TAINTS = 64
"""Taints and conditions that are read of a node, of each kind."""

# YAML of files and of requests for an explanation. Aliases are refused whatever their number.
YAML_DEPTH = 64
"""Maps and lists inside each other. A pod has 12."""
EXPLAIN_BODY = 1 << 20
"""Bytes of a manifest for ``POST /debug/explain``: what etcd stores of an object, give or take."""

# Text that Stowage writes about foreign input.
QUOTED = 64
"""Characters of foreign text that an error or a log line quotes."""
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
