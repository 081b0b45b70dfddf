"""deploy/volcano agrees with itself, with what Stowage serves, and with the pod beside kube-scheduler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from extender import settings_file
from extender.protocol.volcano import VOLCANO_VERBS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
VOLCANO = DEPLOY / "volcano"
PLUGIN = "extender."
VERBS = {
    "onSessionOpenVerb",
    "onSessionCloseVerb",
    "predicateVerb",
    "prioritizeVerb",
    "preemptableVerb",
    "reclaimableVerb",
    "allocateFuncVerb",
    "deallocateFuncVerb",
}
"""Verbs of Stowage in Volcano's plugin (pkg/scheduler/plugins/extender/extender.go at ed72c7c8)."""
OTHERS = {"urlPrefix", "httpTimeout", "ignorable", "managedResources"}


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text()))


def plugins() -> list[dict[str, Any]]:
    (config,) = documents(VOLCANO / "scheduler.yaml")
    (tier,) = yaml.safe_load(config["data"]["volcano-scheduler.conf"])["tiers"]  # one: see docs/volcano.md
    return list(tier["plugins"])


def arguments() -> dict[str, Any]:
    (extender,) = [plugin for plugin in plugins() if plugin["name"] == "extender"]
    return {key.removeprefix(PLUGIN): value for key, value in extender["arguments"].items()}


def sidecar() -> dict[str, Any]:
    (patch,) = documents(VOLCANO / "sidecar.yaml")
    (container,) = patch["spec"]["template"]["spec"]["initContainers"]
    return dict(container)


def test_every_argument_is_one_of_volcano_and_every_verb_is_served() -> None:
    given = arguments()
    assert given.keys() <= VERBS | OTHERS
    served = {verb.removeprefix("volcano/") for verb in VOLCANO_VERBS}
    configured = {value for key, value in given.items() if key in VERBS}
    assert configured == served - {"onSessionOpen"}  # where that call fails, there is no extender
    assert given["ignorable"] is False


def test_the_plugins_before_it_refuse_first() -> None:
    names = [plugin["name"] for plugin in plugins()]
    assert names.index("predicates") < names.index("extender")


def test_volcano_asks_the_port_of_the_sidecar() -> None:
    command = sidecar()["command"]
    url = urlsplit(arguments()["urlPrefix"])
    assert (url.hostname, url.path) == ("127.0.0.1", "/volcano")
    assert f"--port={url.port}" in command
    used = {url.port, *(port["containerPort"] for port in sidecar()["ports"])}
    assert not used & {8080, 11251}  # Volcano's own, for metrics and probes


def test_the_sidecar_is_the_one_beside_kube_scheduler() -> None:
    (deployment,) = [
        one for one in documents(DEPLOY / "beside-kube-scheduler.yaml") if one["kind"] == "Deployment"
    ]
    pod = deployment["spec"]["template"]["spec"]
    (usual,) = pod["initContainers"]
    mine = sidecar()
    same = ("name", "image", "restartPolicy", "env", "resources")
    assert [mine[key] for key in same] == [usual[key] for key in same]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        (port,) = mine["ports"]
        there = usual[probe] | {"httpGet": usual[probe]["httpGet"] | {"port": port["name"]}}
        assert mine[probe] == there
    account = {key: pod["securityContext"][key] for key in ("runAsNonRoot", "runAsUser", "runAsGroup")}
    profile = {"seccompProfile": pod["securityContext"]["seccompProfile"]}
    assert mine["securityContext"] == usual["securityContext"] | account | profile
    without_ports = [re.sub(r"\d+$", "", part) for part in mine["command"]]
    assert without_ports == [re.sub(r"\d+$", "", part) for part in usual["command"]]


def test_settings_and_rights(tmp_path: Path) -> None:
    config, *bindings = documents(VOLCANO / "stowage.yaml")
    file = tmp_path / "settings.yaml"
    file.write_text(config["data"]["settings.yaml"])
    assert settings_file.load(file, {}).volcano
    roles = {
        one["metadata"]["name"] for one in documents(DEPLOY / "rbac.yaml") if one["kind"] == "ClusterRole"
    }
    for binding in bindings:
        assert binding["roleRef"]["name"] in roles | {"system:auth-delegator"}
        (subject,) = binding["subjects"]
        assert subject["name"] == "volcano-scheduler"
        assert subject["namespace"] == config["metadata"]["namespace"]
