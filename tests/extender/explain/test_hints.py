"""The resources and amounts that nobody offers: named with the nearest name, within bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from extender.explain.hints import hints
from extender.k8s.objects import Container, PodSpec
from tests.extender.builders import make_node, make_pod, make_state


@pytest.mark.parametrize(
    ("name", "amount"), [("example.com/{}", "1"), ("nvidia.com/{}", "500m"), ("nvidia.com/mig-{}", "1")]
)
def test_they_are_bounded(name: str, amount: str) -> None:
    offers = {f"example.com/{'x' * 5000}{number}": "1" for number in range(300)}
    requests = tuple((name.format("y" * 5000 + str(number)), amount) for number in range(200))
    state = make_state(replace(make_node("a"), allocatable=offers))
    found = hints(state, make_pod("p", spec=PodSpec((Container("main", requests),))))
    assert 0 < len(found) <= 20
    assert sum(len(finding.text) for finding in found) < 20 * 4000
