"""The real API server takes what the chart and the Kustomize directories make, with strict validation."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy import render

from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .custom_kinds import serving
from .test_chart import EVERY, with_values
from .tools import Tools


@pytest.fixture(scope="module")
def monitoring(control_plane: ControlPlane) -> Iterator[None]:
    """The kinds of the Prometheus Operator, cert-manager and the Gateway API. Only their names are checked:
    their schemas are not here."""
    kinds = [("monitoring.coreos.com", kind) for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")]
    kinds += [("cert-manager.io", "Certificate"), ("cert-manager.io", "Issuer")]
    kinds += [("gateway.networking.k8s.io", "HTTPRoute")]
    with serving(control_plane.api, [kind_of(*one) for one in kinds]):
        yield


def kind_of(group: str, kind: str) -> Object:
    names = {"kind": kind, "plural": kind.lower() + "s", "singular": kind.lower(), "listKind": kind + "List"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names['plural']}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [version]},
    }


APPLY = ["apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict"]
ACCEPTED = "serverside-applied (server dry run)"


@pytest.mark.parametrize("overlay", render.BUILDS_ON)
def test_the_api_server_takes_every_overlay(
    tools: Tools, stowage_kubeconfig: Path, monitoring: None, overlay: str
) -> None:
    """As `kubectl apply -k` sends it. `stowage_kubeconfig` has created the namespace."""
    done = tools.kubectl(*APPLY, f"-k={render.KUSTOMIZE / overlay}")
    assert done.count(ACCEPTED) == len(render.rendered(overlay))


@pytest.mark.parametrize("name", EVERY)
def test_the_api_server_takes_every_value_of_the_chart(
    tools: Tools, stowage_kubeconfig: Path, monitoring: None, tmp_path: Path, name: str
) -> None:
    settings = ("bind=true", "evictor=on", "mig_manager=stowage-system/layouts")
    objects = with_values(EVERY[name], tmp_path, *(f"settings.{one}" for one in settings))
    done = tools.kubectl(*APPLY, "-f-", stdin=yaml.safe_dump_all(objects))
    assert done.count(ACCEPTED) == len(objects)
