from __future__ import annotations

import pytest

from extender.evictor.decision import announced_at
from extender.source.evictor_api import Announcement


@pytest.mark.parametrize(
    ("reason", "note", "announces"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{gpu-pool 1->2 (max: 5)}]", True),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached", False),
        ("Nominated", "Pod should schedule on: nodeclaim/gpu-6csft", True),
        ("Nominated", "Pod should schedule on: nodeclaim/gpu-6csft, node/ip-10-0-1-7", False),
        ("Nominated", "Pod should schedule on: node/ip-10-0-1-7", False),
        ("FailedScheduling", "0/4 nodes are available", False),
        ("", "", False),
    ],
)
def test_which_events_announce_a_node(reason: str, note: str, announces: bool) -> None:
    assert announced_at([Announcement(reason, note, 7.0)]) == (7.0 if announces else None)


def test_the_first_announcement_counts() -> None:
    """Autoscalers repeat them: the wait must not start anew each time."""
    times = (30.0, 10.0, 20.0)
    assert announced_at([Announcement("TriggeredScaleUp", "", at) for at in times]) == 10.0
    assert announced_at([]) is None
