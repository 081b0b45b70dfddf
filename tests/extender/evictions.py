"""The part of the API server that the evictor writes to: evictions, nominations, nodes, Events and
ConfigMaps."""

from __future__ import annotations

import copy
import re
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.extender.apistore import Manifest, Store

if TYPE_CHECKING:
    from tests.extender.apiserver import ApiServer

NODES = "/api/v1/nodes/"
EVENTS = "/apis/events.k8s.io/v1/namespaces/"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2/"
Answer = tuple[int, Manifest]
BUDGET = "Cannot evict pod as it would violate the pod's disruption budget."


class Evictions:
    """``log`` has what was done, in order: ("nominate", "ml/p0", "n1"), ("dry-run", "ml/p1", None), ...

    ``faults`` say by action what happens to the next requests: a status, "hangup" (nothing is done, no
    answer), "lost" (it is done, no answer). ``disruptions`` are how many pods with a label ``app`` of this
    value may still go. ``instant``: evicted pods are gone at once.
    """

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self.log: list[tuple[str, str, object]] = []
        self.events: list[Manifest] = []
        self.told: list[str] = []
        """Names in Events that readers of their object may not know: of other pods, and other nodes."""
        self._nodes_of_evicted: dict[str, str] = {}
        self.config_maps = Store()
        self.faults: defaultdict[str, deque[str]] = defaultdict(deque)
        self.disruptions: dict[str, int] = {}
        self.several_budgets: set[str] = set()
        self.refused: dict[str, int] = {}
        """The pods that a webhook keeps, by key, and its status."""
        self.instant = False
        self.ends = "1970-01-01T00:25:00Z"
        """Of evicted pods: within ten minutes for replicas whose clock starts with 1,000 seconds."""
        self.before: Callable[[str], None] = lambda action: None

    def handles(self, path: str) -> bool:
        return (
            path.startswith((EVENTS, NODES, f"{KUEUE}namespaces/"))
            or "/configmaps/" in path
            or path.endswith(("/eviction", "/status"))
        )

    def handle(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[Answer, str]:
        """The answer, and the fault "hangup" or "lost" that replaces it."""
        action, act = self._action(method, path, query, body)
        self.before(action)
        with self._api.changed:
            fault = self.faults[action].popleft() if self.faults[action] else ""
            if fault.isdigit():
                return (int(fault), {"kind": "Status", "message": "scripted"}), ""
            if fault == "hangup":
                return (0, {}), fault
            return act(), fault

    def _action(
        self, method: str, path: str, query: dict[str, str], body: Any
    ) -> tuple[str, Callable[[], Answer]]:
        parts = path.split("/")
        if path.startswith(EVENTS):
            if method == "GET":
                return "events", lambda: self._list_events(query)
            return "event", lambda: self._create_event(parts[5], body)
        if path.startswith(NODES):
            return "layout", lambda: self._patch_node(parts[4], body)
        if path.startswith(KUEUE):
            return "boost", lambda: self._annotate_workload(f"{parts[5]}/{parts[7]}", body["metadata"])
        if "/configmaps/" in path:
            if method == "GET":
                return "read", lambda: self._read(f"{parts[4]}/{parts[6]}")
            return "write", lambda: self.config_maps.replace(body)
        key = f"{parts[4]}/{parts[6]}"
        if path.endswith("/eviction"):
            dry = query.get("dryRun") == "All"
            return "dry-run" if dry else "evict", lambda: self._evict(key, body, dry)
        clears = any(operation["op"] == "remove" for operation in body)
        return "clear" if clears else "nominate", lambda: self._patch(key, body)

    def _annotate_workload(self, key: str, changed: Manifest) -> Answer:
        """A merge patch of the metadata."""
        store = self._api.stores[f"{KUEUE}workloads"]
        if (workload := store.objects.get(key)) is None:
            return 404, {"message": "not found"}
        metadata = workload["metadata"]
        if changed.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        notes = metadata.get("annotations", {}) | changed["annotations"]
        notes = {name: text for name, text in notes.items() if text is not None}
        store.put(workload | {"metadata": metadata | {"annotations": notes}})
        self.log.append(("boost", key, notes.get("kueue.x-k8s.io/priority-boost")))
        return 200, store.objects[key]

    def _read(self, key: str) -> Answer:
        found = self.config_maps.objects.get(key)
        return (200, found) if found else (404, {"message": "not found"})

    def _list_events(self, query: dict[str, str]) -> Answer:
        field, _, uid = query["fieldSelector"].partition("=")
        assert field == "regarding.uid"
        found = [event for event in self.events if event["regarding"]["uid"] == uid]
        return 200, {"items": found[: int(query["limit"])]}

    def _create_event(self, namespace: str, event: Manifest) -> Answer:
        """With the checks of ``ValidateEventCreate`` that a client may fail."""
        regarding = event["regarding"]
        wrong = (
            event["metadata"]["namespace"] != namespace or regarding.get("namespace", "default") != namespace
        )
        needed = ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type")
        if wrong or not all(event.get(name) for name in needed) or len(event["note"]) > 1024:
            return 422, {"message": "Event is invalid"}
        self.events.append(event)
        self.told += self._told_of_others(event)
        self.log.append(("event", f"{namespace}/{regarding['name']}", event["reason"]))
        return 201, event

    def _told_of_others(self, event: Manifest) -> list[str]:
        regarding, pods = event["regarding"], self._api.pods.objects
        key = f"{regarding.get('namespace')}/{regarding['name']}"
        own = {regarding["name"], self._nodes_of_evicted.get(key)}
        nodes = [name for name in self._api.nodes.objects if name not in own]
        names = [name for name in nodes if re.search(rf"\b{name}\b", event["note"])]
        names += [other for other in pods if other != key and other in event["note"]]
        related = event.get("related") or regarding
        return names + [related["name"]] * (related.get("namespace") != regarding.get("namespace"))

    def _patch_node(self, name: str, patch: Any) -> Answer:
        """A merge patch of the metadata, or a JSON patch of it whose tests must hold."""
        node = copy.deepcopy(self._api.nodes.objects.get(name))
        if node is None:
            return 404, {"message": "not found"}
        metadata = node["metadata"]
        if isinstance(patch, dict):
            assert patch["metadata"].keys() == {"uid", "annotations"}
            if patch["metadata"]["uid"] != metadata["uid"]:
                return 422, {"message": "field is immutable"}
            metadata["annotations"] = metadata.get("annotations", {}) | patch["metadata"]["annotations"]
        for operation in patch if isinstance(patch, list) else ():
            *path, key = [
                part.replace("~1", "/").replace("~0", "~") for part in operation["path"][1:].split("/")
            ]
            assert path[0] == "metadata"
            within = metadata if len(path) == 1 else metadata.setdefault(path[1], {})
            if operation["op"] == "remove":
                del within[key]
            elif operation["op"] != "test":
                within[key] = operation["value"]
            elif within.get(key) != operation["value"]:
                return 422, {"message": "the test failed"}
        changed = {key: text for key, text in metadata.get("annotations", {}).items() if text is not None}
        node["metadata"]["annotations"] = changed
        self.log.append(("layout", name, changed.get("stowage.dev/mig-change")))
        self._api.put(node)
        return 200, node

    def _evict(self, key: str, eviction: Manifest, dry: bool) -> Answer:
        pod, options = self._api.pods.objects.get(key), eviction["deleteOptions"]
        assert (options.get("dryRun") == ["All"]) == dry
        self.log.append(("dry-run" if dry else "evict", key, options.get("gracePeriodSeconds")))
        if pod is None:
            return 404, {"message": "not found"}
        if options["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return 409, {"message": "the UID in the precondition does not match"}
        if key in self.refused:
            return self.refused[key], {"message": "a webhook keeps it"}
        if key in self.several_budgets:
            return 201, {"kind": "Status", "status": "Failure", "code": 500, "message": "more than one"}
        app = pod["metadata"].get("labels", {}).get("app", "")
        if self.disruptions.get(app, 1) <= 0:
            return 429, {"message": BUDGET}
        if not dry:
            self._nodes_of_evicted[key] = pod["spec"]["nodeName"]
            self.disruptions[app] = self.disruptions.get(app, 1 << 20) - 1
            self._terminate(key, pod)
        return 201, {"kind": "Status", "status": "Success"}

    def _terminate(self, key: str, pod: Manifest) -> None:
        if self.instant:
            return self._api.delete(key)
        condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
        metadata = pod["metadata"] | {"deletionTimestamp": self.ends}
        status = pod.get("status", {}) | {"conditions": [condition]}
        self._api.put(pod | {"metadata": metadata, "status": status})

    def _patch(self, key: str, patch: list[Manifest]) -> Answer:
        """A JSON patch of a pod's status."""
        if (known := self._api.pods.objects.get(key)) is None:
            return 404, {"message": "not found"}
        pod = copy.deepcopy(known)
        node: object = None
        for operation in patch:
            *way, last = operation["path"].strip("/").split("/")
            place = pod
            for name in way:
                place = place.setdefault(name, {})
            if operation["op"] == "test":
                if place.get(last) != operation["value"]:
                    return 422, {"message": "the server rejected our request due to an error in our request"}
            elif operation["op"] == "add":
                node = place[last] = operation["value"]
            else:
                del place[last]
        self.log.append(("nominate" if node else "clear", key, node))
        self._api.put(pod)
        return 200, pod
