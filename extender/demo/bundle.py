"""The bundled cluster: a file in the very form of ``kubectl get nodes,pods -A -o json``.

It is kept as a file so that it can be read, compared and passed to ``--snapshot`` like anyone's own.
``python -c 'from extender.demo import bundle; bundle.write()'`` writes it anew.
"""

from __future__ import annotations

import json

from extender.data import CLUSTER
from extender.demo.nodes import nodes
from extender.demo.pods import bundled


def text() -> str:
    """What the file holds: keys sorted and indented by four, as kubectl does."""
    items = nodes() + bundled()
    document = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


def write() -> None:
    """Write the file anew."""
    CLUSTER.write_text(text(), encoding="utf-8")
