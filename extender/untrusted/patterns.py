"""Regular expressions for names and label selectors of Kubernetes. They run in linear time."""

from __future__ import annotations

NAMESPACED = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"
"""``namespace/name``."""

_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_VALUE = rf"({_LABEL})?"
_KEY = rf"([a-z0-9][-a-z0-9.]{{0,252}}/)?{_LABEL}"
_REQUIREMENT = (
    rf"(!?{_KEY}|{_KEY} *(=|==|!=) *({_LABEL})?|{_KEY} +(in|notin) *\( *{_LABEL}( *, *{_LABEL})* *\))"
)
LABEL_SELECTOR = rf"^ *{_REQUIREMENT}( *, *{_REQUIREMENT})* *$"
"""As the API server reads it (k8s.io/apimachinery, ``pkg/labels/selector.go``), without ``<`` and ``>``, and
without empty values in lists."""

HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$"
"""A DNS name."""
