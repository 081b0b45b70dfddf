"""The narrow decoder gives the records of the full parser, or leaves the text to it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import cluster
from extender.k8s.node_manifest import NarrowNode
from extender.k8s.objects import Deleted, Node, Pod, Upserted
from extender.k8s.pod_manifest import NarrowPod
from extender.source.list_watch import ListWatch, ProtocolError
from extender.source.narrow import decoder_of
from extender.source.watched_kinds import WATCHED_KINDS
from extender.untrusted.limits import KEY
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
scalars = st.none() | st.booleans() | texts | st.sampled_from([0, 1, -1, 2**64, 10**30, 1.0, 1.5, 1e400])
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
    volumes=many(some(persistentVolumeClaim=junk, ephemeral=junk, hostPath=some(type=texts))),
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


def followers(kind):
    """Two that watch: as it is, and with the full parser alone."""
    watched = WATCHED_KINDS[kind]
    both = ListWatch(watched), ListWatch(replace(watched, narrow=None))
    for one in both:
        one.next_request()
        one.page(b'{"metadata": {"resourceVersion": "1"}, "items": []}')
        one.next_request()
    return both


def versioned(event):
    return event, getattr(getattr(event, "obj", None), "version", "")


@settings(max_examples=examples(300))
@given(objects, st.sampled_from(["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "", None]))
def test_a_line_of_a_watch(found, change):
    kind, obj = found
    narrow, full = followers(kind)
    line = json.dumps({"type": change, "object": obj}).encode() + b"\n"
    assert [*map(versioned, narrow.chunk(line))] == [*map(versioned, full.chunk(line))]
    assert narrow.watching == full.watching
    if narrow.watching:
        assert narrow.next_request() == full.next_request()


@settings(max_examples=examples(150))
@given(st.sampled_from([("Pod", pods), ("Node", nodes)]), st.data())
def test_a_page(kind_and_objects, data):
    kind, values = kind_and_objects
    items = data.draw(st.lists(values, max_size=4) | junk)
    page = data.draw(some(resourceVersion=texts, **{"continue": texts}))
    body = json.dumps({"metadata": page, "items": items}).encode()
    answers = []
    for watched in (WATCHED_KINDS[kind], replace(WATCHED_KINDS[kind], narrow=None)):
        lists = ListWatch(watched)
        lists.next_request()
        try:
            answers.append(([*map(versioned, lists.page(body))], lists.next_request()))
        except ProtocolError as error:
            answers.append(str(error))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("kind", "made"), [("Pod", cluster.bound_pods), ("Node", cluster.nodes)])
def test_usual_objects_need_no_other_parser(kind, made):
    watched = WATCHED_KINDS[kind]
    decoder = decoder_of(watched.narrow)
    for obj in made(3):
        line = json.dumps({"type": "MODIFIED", "object": obj}).encode()
        assert decoder.change(line).object.record() == watched.manifest.model_validate(obj).record()
        assert decoder.page(
            b'{"metadata": {"resourceVersion": "1"}, "items": [' + json.dumps(obj).encode() + b"]}"
        )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b'{"type": "ADDED", "object": ' + b'{"z": ' * 5_000 + b"1" + b"}" * 5_001,
        b'{"type": "ADDED", "object": {"metadata": {"name": "' + b"x" * (KEY + 1) + b'"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "\xff"}}}',
        b'{"type": "ADDED", "object": {"metadata": {"labels": {"a": 1}}}}',
        b'{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "7"}}}',
    ],
)
def test_what_is_not_as_the_types_say_is_left_to_pydantic(line):
    assert decoder_of(NarrowPod).change(line) is None
    assert decoder_of(NarrowNode).change(line) is None


def test_the_last_of_two_equal_keys_counts():
    narrow, full = followers("Pod")
    obj = b'{"metadata": {"name": "a", "name": "b", "labels": {"k": "1", "k": "2"}}}'
    line = b'{"type": "ADDED", "object": %b}\n' % obj
    events = narrow.chunk(line)
    assert events == full.chunk(line)
    assert isinstance(events[0], Upserted)
    assert events[0].obj.name == "b"
    assert isinstance(events[0].obj, Pod)


def test_a_deletion_and_a_node():
    narrow, _ = followers("Node")
    node = next(cluster.nodes(1))
    added = json.dumps({"type": "ADDED", "object": node}).encode() + b"\n"
    gone = json.dumps({"type": "DELETED", "object": node}).encode() + b"\n"
    upserted, deleted = narrow.chunk(added + gone)
    assert isinstance(upserted, Upserted)
    assert isinstance(upserted.obj, Node)
    assert deleted == Deleted("Node", node["metadata"]["name"])
