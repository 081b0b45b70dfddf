"""Budgets against a slow oracle that follows the eviction API line by line."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from extender.k8s.admission_objects import PodDisruptionBudget
from extender.k8s.affinity import NodeSelectorRequirement
from extender.k8s.objects import Deleted, Event, Listed, Pod, Upserted
from extender.queues.disruptions import DisruptionBudgets
from extender.untrusted.limits import BUDGETS_PER_POD

KIND = "PodDisruptionBudget"
APP_X = NodeSelectorRequirement("app", "In", ("x",))


def table(*budgets: PodDisruptionBudget) -> DisruptionBudgets:
    made = DisruptionBudgets()
    for budget in budgets:
        made.apply(Upserted(budget))
    return made


def budget(name: str = "b", *selector: NodeSelectorRequirement, **more: object) -> PodDisruptionBudget:
    return PodDisruptionBudget("ml", name, selector or (APP_X,), **more)


def pod(
    name: str,
    app: str = "x",
    namespace: str = "ml",
    more_labels: dict[str, str] | None = None,
    **more: object,
) -> Pod:
    return Pod(namespace, name, **{"labels": {"app": app} | (more_labels or {}), "phase": "Running"} | more)


def by_the_api(pods: Sequence[Pod], budgets: Sequence[PodDisruptionBudget]) -> tuple[bool, ...]:
    """``Create`` of the eviction subresource: each pod takes one from the number of every budget."""
    left = [one.allowed for one in budgets]
    violated = []
    for victim in pods:
        if victim.phase in ("Pending", "Succeeded", "Failed") or victim.deleting:
            violated.append(False)
            continue
        of_pod = [one for one in budgets if one.namespace == victim.namespace and one.selects(victim.labels)]
        bad = len(of_pod) > 1
        for number, one in enumerate(budgets):
            if one.namespace != victim.namespace or one.selector is None:
                continue
            if not all(requirement.matches(victim.labels) for requirement in one.selector):
                continue
            if victim.name in one.disrupted or (one.frees_unready and not victim.ready):
                continue
            left[number] -= 1
            bad = bad or left[number] < 0
        violated.append(bad)
    return tuple(violated)


keys, values = st.sampled_from(["app", "tier", ""]), st.sampled_from(["x", "y", ""])
requirements = st.one_of(
    st.builds(NodeSelectorRequirement, keys, st.just("In"), st.tuples(values) | st.tuples(values, values)),
    st.builds(NodeSelectorRequirement, keys, st.just("NotIn"), st.tuples(values)),
    st.builds(NodeSelectorRequirement, keys, st.sampled_from(["Exists", "DoesNotExist"])),
)
names = st.sampled_from("abcdef")
budgets = st.builds(
    PodDisruptionBudget,
    st.sampled_from(["ml", "other"]),
    names,
    st.none() | st.lists(requirements, max_size=3).map(tuple),
    allowed=st.integers(-1, 3),
    disrupted=st.frozensets(names, max_size=2),
    frees_unready=st.booleans(),
)
pods = st.builds(
    Pod,
    st.sampled_from(["ml", "other"]),
    names,
    labels=st.dictionaries(keys, values, max_size=2),
    phase=st.sampled_from(["Running", "Running", "Pending", "Failed"]),
    deleting=st.booleans(),
    ready=st.booleans(),
)
events = st.lists(
    st.one_of(
        budgets.map(Upserted),
        names.map(lambda name: Deleted(KIND, f"ml/{name}")),
        st.frozensets(names, min_size=2).map(lambda some: Listed(KIND, frozenset(f"ml/{n}" for n in some))),
    ),
    max_size=12,
)


@given(events, st.lists(pods, max_size=6, unique_by=lambda victim: victim.key))
def test_as_the_eviction_api_after_any_events(happened: list[Event], victims: list[Pod]) -> None:
    made, known = DisruptionBudgets(), dict[str, PodDisruptionBudget]()
    for event in happened:
        made.apply(event)
        match event:
            case Upserted(PodDisruptionBudget() as one):
                known[one.key] = one
            case Deleted(_, key):
                known.pop(key, None)
            case Listed(_, kept):
                known = {key: one for key, one in known.items() if key in kept}
    assert made.violations(victims) == by_the_api(victims, [*known.values()])


def test_a_status_counts_as_soon_as_it_is_heard() -> None:
    made = table(budget(allowed=0))
    assert made.violations([pod("a")]) == (True,)
    made.apply(Upserted(budget(allowed=1)))
    assert made.violations([pod("a")]) == (False,)
    made.apply(Upserted(budget("b", NodeSelectorRequirement("app", "In", ("y",)), allowed=0)))
    assert made.violations([pod("a"), pod("b", "y")]) == (False, True)
    made.apply(Deleted(KIND, "ml/b"))
    assert made.violations([pod("b", "y")]) == (False,)
    assert made._buckets == made._bucket_of == {}


def test_more_budgets_than_the_limit_count_as_a_violation() -> None:
    others = NodeSelectorRequirement("app", "In", ("x", "y")), NodeSelectorRequirement("tier", "Exists")
    enough = [
        budget("b", allowed=9),
        *(budget(f"b{n}", APP_X, others[1]) for n in range(BUDGETS_PER_POD - 1)),
    ]
    assert table(*enough).violations([pod("a")]) == (False,)
    too_many = table(*enough, budget("more", APP_X, others[1]))
    assert too_many.violations([pod("a"), pod("b", "y")]) == (True, False)
