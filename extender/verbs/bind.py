"""bind: bind the pod to the chosen node, if binding is switched on. (The device is the kubelet's choice.)

The room is taken in the books before the API is asked, so that two binds in flight cannot both have it, and
given back when the API refuses.
"""

from __future__ import annotations

from extender.dialects import RequestError, request_of
from extender.objects import Pod
from extender.settings import Settings
from extender.source import BindError, Source
from extender.state import State
from extender.verbs.verdict import judge
from extender.wire import BindArgs
from packing.reasons import Reason


async def bind(state: State, source: Source, pod: Pod | None, args: BindArgs, settings: Settings) -> str:
    """Bind; "" is success, anything else says why not. Binding again to the same node succeeds."""
    if not settings.bind:
        return "binding is off in Stowage (setting bind): remove bindVerb from the scheduler's configuration"
    if pod is None or pod.uid != args.uid:
        return "pod is not known, or was made anew under its name"
    if pod.node_name:
        return "" if pod.node_name == args.node else "pod is bound to another node"
    refusal = _refusal(state, pod, args.node)
    if refusal:
        return refusal
    state.assume(pod, args.node)
    try:
        await source.bind(pod, args.node)
    except BindError as error:
        state.forget(pod)
        return str(error)
    return ""


def _refusal(state: State, pod: Pod, node: str) -> str:
    try:
        verdict = judge(state, pod, request_of(pod), [node])
    except RequestError as error:
        return str(error)
    code = Reason(int(verdict.codes[0]))
    return "" if code is Reason.FITS else code.text
