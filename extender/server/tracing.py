"""OpenTelemetry traces: a span for each call of a verb (docs/operations.md).

Importing this module loads OpenTelemetry's SDK, which the extra ``tracing`` installs. It is imported for the
setting ``tracing`` only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extender.protocol.messages import Reply
from extender.untrusted.limits import KEY, shorten

_CONTEXT = (b"traceparent", b"tracestate")
"""W3C Trace Context. kube-scheduler 1.37 sends none; a proxy in between may add it."""


class Tracing:
    """Spans, which a thread exports to an OTLP endpoint. Standard variables configure it and the sampling:
    ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER`` and so on."""

    def __init__(self, version: str, processor: SpanProcessor | None = None) -> None:
        resource = Resource.create({"service.name": "stowage", "service.version": version})
        provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
        provider.add_span_processor(processor or BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer, self._propagator = provider.get_tracer("stowage"), TraceContextTextMapPropagator()

    async def traced(
        self, verb: str, headers: Iterable[tuple[bytes, bytes]], answer: Awaitable[Reply]
    ) -> Reply:
        """The answer, in a child span of the caller's span if the headers name one."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in _CONTEXT}
        parent = self._propagator.extract(carrier)
        with self._tracer.start_as_current_span(f"stowage/{verb}", parent, SpanKind.SERVER) as span:
            reply = await answer
            if reply.status >= 400:
                span.set_status(StatusCode.ERROR)
            return reply

    def note(self, *, pod: str = "", node: str = "", **more: str | int) -> None:
        """Set attributes of the span of the present call. ``pod``: ``namespace/name``."""
        namespace, _, name = shorten(pod, KEY).partition("/")
        about = {"k8s.namespace.name": namespace, "k8s.pod.name": name, "k8s.node.name": shorten(node, KEY)}
        found: dict[str, str | int] = {f"stowage.{key}": value for key, value in more.items()}
        get_current_span().set_attributes(found | {key: value for key, value in about.items() if value})
