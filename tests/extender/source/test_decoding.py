"""Any text of a list or a watch is decoded, or what can be of each object; null is as good as absent."""

import json

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench import cluster
from extender.k8s.manifest import Unreadable
from extender.k8s.node_manifest import NodeManifest
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from extender.k8s.pod_manifest import PodManifest
from extender.source.list_watch import ListWatch, ProtocolError
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import KEY, PROBLEM
from tests.examples import examples

texts = st.sampled_from(
    [
        "",
        "a",
        "Always",
        "True",
        "1",
        "64Gi",
        "cpu",
        "nvidia.com/gpu",
        "DisruptionTarget",
        "\ud800",
        "\u0000",
        "é",
    ]
) | st.sampled_from(["x" * KEY, "x" * (KEY + 1), "2026-08-01T09:30:00Z", "Job", "pause:3.10"])
scalars = st.none() | st.booleans() | texts | st.sampled_from([0, 1, -1, 2**64, 10**30, 1.0, 1.5])
junk = st.recursive(
    scalars, lambda of: st.lists(of, max_size=3) | st.dictionaries(texts, of, max_size=3), max_leaves=5
)


def some(**fields):
    """An object with any of these fields, each as it should be, as it should not be, or unknown ones."""
    return st.fixed_dictionaries(
        {}, optional={name: value | junk for name, value in fields.items()} | {"z": junk}
    )


def many(values):
    return st.lists(values, max_size=3)


maps = st.dictionaries(texts, texts | scalars, max_size=3)
metadata = some(
    name=texts,
    generateName=texts,
    namespace=texts,
    uid=texts,
    labels=maps,
    annotations=maps,
    creationTimestamp=texts,
    deletionTimestamp=texts,
    resourceVersion=texts,
    ownerReferences=many(some(kind=texts, name=texts, uid=texts, controller=st.booleans())),
    managedFields=junk,
)
resources = some(requests=maps, limits=maps)
container = some(
    name=texts,
    image=texts,
    ports=many(some(hostPort=scalars)),
    resources=resources,
    restartPolicy=texts,
    env=junk,
)
claim = some(name=texts, resourceClaimName=texts, resourceClaimTemplateName=texts)
requirement = some(key=texts, operator=texts, values=many(texts))
term = some(matchExpressions=many(requirement), matchFields=many(requirement))
pod_spec = some(
    containers=many(container),
    initContainers=many(container),
    resources=resources,
    overhead=maps,
    nodeSelector=maps,
    resourceClaims=many(claim),
    nodeName=texts,
    schedulerName=texts,
    priority=scalars,
    priorityClassName=texts,
    preemptionPolicy=texts,
    schedulingGroup=some(podGroupName=texts),
    schedulingGates=many(some(name=texts)),
    affinity=some(
        nodeAffinity=some(requiredDuringSchedulingIgnoredDuringExecution=some(nodeSelectorTerms=many(term))),
        podAffinity=junk,
        podAntiAffinity=junk,
    ),
    tolerations=many(some(key=texts, operator=texts, value=texts, effect=texts)),
    topologySpreadConstraints=many(junk),
    volumes=many(
        some(
            persistentVolumeClaim=junk, ephemeral=junk, hostPath=some(type=texts), emptyDir=some(medium=texts)
        )
    ),
)
condition = some(type=texts, status=texts, reason=texts, lastTransitionTime=texts)
device = some(name=texts, resources=many(some(resourceID=texts)))
held = {"name": texts, "allocatedResources": maps, "resources": resources}
pod_status = some(
    phase=texts,
    conditions=many(condition),
    nominatedNodeName=texts,
    startTime=texts,
    containerStatuses=many(some(allocatedResourcesStatus=many(device), **held)),
    initContainerStatuses=many(some(**held)),
    **held,
    resourceClaimStatuses=many(claim),
)
node_spec = some(unschedulable=scalars, taints=many(some(key=texts, value=texts, effect=texts)))
node_status = some(allocatable=maps, conditions=many(condition), images=junk)
pods = some(metadata=metadata, spec=pod_spec, status=pod_status)
nodes = some(metadata=metadata, spec=node_spec, status=node_status)
objects = st.tuples(st.just("Pod"), pods) | st.tuples(st.just("Node"), nodes)


def follower(kind):
    watching = ListWatch(WATCHED_KINDS[kind])
    watching.next_request()
    watching.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
    watching.next_request()
    return watching


def change(obj, kind="ADDED"):
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


@settings(max_examples=examples(300))
@given(objects, st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "", None]))
def test_any_line_of_a_watch(found, what):
    kind, obj = found
    watching = follower(kind)
    assert all(event.kind == kind for event in watching.chunk(change(obj, what)))
    named = isinstance(obj, dict) and isinstance(obj.get("metadata"), dict) and obj["metadata"].get("name")
    # "\ud800" is not JSON.
    assert watching.watching or what == "ERROR" or "\\ud800" in json.dumps(obj) or not named


@settings(max_examples=examples(300))
@given(objects)
def test_null_is_as_good_as_absent(found):
    kind, obj = found
    assume("\\ud800" not in json.dumps(obj))  # which is not JSON
    labels = [obj.get("metadata", {}) if isinstance(obj, dict) else {}]
    for one in labels:
        if isinstance(one, dict):  # there null is an empty text
            one.pop("labels", None)
            one.pop("annotations", None)
            for name in ("name", "namespace", "uid"):  # a map is not read, but its text
                assume(not isinstance(one.get(name), dict | list))
    assert follower(kind).chunk(change(obj)) == follower(kind).chunk(change(without_nulls(obj)))


@settings(max_examples=examples(150))
@given(st.sampled_from([("Pod", pods), ("Node", nodes)]), st.data())
def test_any_page(kind_and_objects, data):
    kind, values = kind_and_objects
    items = data.draw(st.lists(values, max_size=4) | junk)
    page = data.draw(some(resourceVersion=texts, **{"continue": texts}))
    lists = ListWatch(WATCHED_KINDS[kind])
    lists.next_request()
    try:
        lists.page(json.dumps({"metadata": page, "items": items}).encode())
    except ProtocolError:
        return
    assert isinstance(items, list | None)


@pytest.mark.parametrize(("kind", "made"), [("Pod", cluster.bound_pods), ("Node", cluster.nodes)])
def test_usual_objects_are_decoded_at_once(kind, made):
    manifest = WATCHED_KINDS[kind].manifest
    for obj in made(3):
        assert msgspec.json.decode(json.dumps(obj), type=manifest) == manifest.from_value(obj)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"z": ' * 5_000 + b"1" + b"}" * 5_001,
        b'{"metadata": {"name": "' + b"x" * (KEY + 1) + b'"}}',
        b'{"metadata": {"name": "\xff"}}',
        b'{"metadata": {"labels": {"a": []}}}',
        b'{"metadata": []}',
        b'{"metadata": {"name": "\\ud800"}}',
        b"9" * 5000,
        b"null",
    ],
)
def test_what_is_not_an_object_of_its_kind(text):
    for manifest in (PodManifest, NodeManifest):
        with pytest.raises(Unreadable) as caught:
            manifest.from_json(text)
        assert 0 < len(str(caught.value)) <= PROBLEM


def test_the_last_of_two_equal_keys_counts():
    obj = b'{"metadata": {"name": "a", "name": "b", "labels": {"k": "1", "k": "2"}}}'
    (event,) = follower("Pod").chunk(b'{"type": "ADDED", "object": %b}\n' % obj)
    assert isinstance(event, Upserted)
    assert isinstance(event.obj, Pod)
    assert (event.obj.name, event.obj.labels) == ("b", {"k": "2"})


def test_a_deletion_and_a_node():
    node = next(cluster.nodes(1))
    upserted, deleted = follower("Node").chunk(change(node) + change(node, "DELETED"))
    assert isinstance(upserted, Upserted)
    assert isinstance(upserted.obj, Node)
    assert deleted == Deleted("Node", node["metadata"]["name"])
