"""The bundled cluster as a file in the format of ``kubectl get nodes,pods -A -o json``.

As a file it can be read, compared and passed to ``--snapshot`` like any other cluster.
``python -c 'from extender.demo import bundle; bundle.write()'`` writes it again.
"""

from __future__ import annotations

import json
from pathlib import Path

from extender.demo.nodes import nodes
from extender.demo.pods import bundled

CLUSTER = Path(__file__).parents[1] / "data" / "demo-cluster.json"


def text() -> str:
    """The content of the file, with sorted keys and an indent of four, as kubectl prints it."""
    items = nodes() + bundled()
    document = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


def write() -> None:
    """Write the file."""
    CLUSTER.write_text(text(), encoding="utf-8")
