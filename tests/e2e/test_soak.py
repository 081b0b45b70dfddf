"""The short form of the soak: each kind of fault once, while pods in every dialect come and go."""

from pathlib import Path

import pytest

from .controlplane.build import missing
from .controlplane.cluster import ControlPlane
from .soak.plan import KINDS, plan
from .soak.soak import Soak
from .soak.stack import FLAGS

SEED, PODS = 1, 1_000


# CPython leaves a socket open that the peer resets just before the handshake (ssl.py, SSLSocket._create), as
# an API server that is killed may do to the proxy.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
def test_stowage_survives_each_kind_of_fault(tmp_path: Path) -> None:
    """A control plane of its own: faults kill it, and no other test may find what is left."""
    if missing():
        pytest.exit("the control plane is not built: python -m tests.e2e.controlplane.build", returncode=1)
    planned = plan(SEED, len(KINDS), PODS)
    command = f"python -m tests.e2e.soak --seed {SEED} --faults {len(KINDS)} --pods {PODS}"
    with ControlPlane(tmp_path / "soak", **FLAGS) as plane:
        ended = Soak(plane, command, SEED, PODS, planned).run()
    print(ended)
    assert ended.faults.keys() == KINDS.keys()
    assert PODS * 0.98 < ended.placed <= PODS  # some are larger than any node
    assert ended.checks["calms"] == 1
    assert ended.evictions["moved, and made room"] > 0
    assert ended.findings == []
