"""The real API server accepts the labeller of NVLink islands."""

from .controlplane.api import Api
from .stowage import ROOT, manifests
from .tools import Tools


def test_the_api_server_accepts_the_labeller(api: Api, tools: Tools) -> None:
    """Its namespace stays: nothing here can delete one."""
    namespace, _, daemonset = manifests("nvlink-labeller/daemonset.yaml")
    api.create(namespace)
    built = tools.kubectl("kustomize", str(ROOT / "deploy/nvlink-labeller"))
    tools.kubectl("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f-", stdin=built)
    accepted = api.create(daemonset, fieldValidation="Strict", dryRun="All")
    assert accepted["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
