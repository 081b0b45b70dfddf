"""The ConfigMap that NVIDIA's MIG manager writes for each node."""

from __future__ import annotations

import pytest

from extender.inventory import InventoryError
from extender.inventory.mig_manager import most_instances

CONFIG = """
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  all-enabled:
  - devices: all
    mig-enabled: true
    mig-devices: {}
  all-1g.24gb:
  - devices: all
    mig-enabled: true
    mig-devices:
      1g.24gb: 4
  all-1g.24gb.me:
  - device-filter: ["0x2BB510DE"]
    devices: all
    mig-enabled: true
    mig-devices:
      1g.24gb+me: 1
  all-1g.10gb:
  - device-filter: ["0x233010DE"]
    devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 7}
  - device-filter: ["0x20B010DE"]
    devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 4}
  all-balanced:
  - devices: all
    mig-enabled: true
    mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
"""


def test_profiles_and_the_most_of_each():
    assert most_instances({"config.yaml": CONFIG}) == {
        "1g.24gb": 4,
        "1g.24gb.me": 1,
        "1g.10gb": 7,
        "2g.20gb": 1,
        "3g.40gb": 1,
    }


@pytest.mark.parametrize("text", ["", "[", "a: b", "mig-configs: 3", "- 1"])
def test_what_cannot_be_read_is_an_error(text):
    with pytest.raises(InventoryError):
        most_instances({"config.yaml": text})


@pytest.mark.parametrize(
    "layouts", ["{x: 3}", "{x: [3]}", "{x: [{mig-enabled: true, mig-devices: [1]}]}", "{x: null}"]
)
def test_odd_layouts_are_as_if_absent(layouts):
    assert most_instances({"config.yaml": f"mig-configs: {layouts}"}) == {}
