"""The manifests in deploy/ name only what exists, and agree with each other and with the program.

tests/e2e/test_deploy.py shows that the API server accepts them and that their rights suffice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from extender import settings
from extender.cli import main as cli
from extender.dialects import pod_request
from extender.server.app import create_app
from extender.server.service import Service
from extender.source.snapshot import Snapshot, SnapshotSource

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "deploy").glob("*.yaml"))
LAYOUTS = [ROOT / "deploy" / f"{name}.yaml" for name in ("behind-a-service", "beside-kube-scheduler")]
Object = dict[str, Any]


def objects(*files: Path) -> list[Object]:
    return [one for file in files for one in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str, *files: Path) -> list[Object]:
    return [one for one in objects(*files) if one["kind"] == kind]


def containers(file: Path) -> Iterator[Object]:
    for deployment in of_kind("Deployment", file):
        pod = deployment["spec"]["template"]["spec"]
        yield from [*pod.get("initContainers", ()), *pod["containers"]]


def stowage(file: Path) -> Object:
    return next(one for one in containers(file) if one["name"] == "stowage")


def settings_in(file: Path, directory: Path) -> settings.Settings:
    (config,) = of_kind("ConfigMap", file)
    path = directory / "settings.yaml"
    path.write_text(config["data"]["settings.yaml"])
    return settings.load(path, {})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_everything_named_exists(file: Path) -> None:
    existing = {(one["kind"], one["metadata"]["name"]) for one in objects(*FILES)}
    for binding in [*of_kind("RoleBinding", file), *of_kind("ClusterRoleBinding", file)]:
        role = binding["roleRef"]
        own = not role["name"].startswith(("system:", "extension-apiserver-"))
        assert not own or (role["kind"], role["name"]) in existing
        assert all((subject["kind"], subject["name"]) in existing for subject in binding["subjects"])
    for deployment in of_kind("Deployment", file):
        pod = deployment["spec"]["template"]["spec"]
        assert ("ServiceAccount", pod["serviceAccountName"]) in existing
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        maps = {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume}
        assert {("ConfigMap", name) for name in maps - {"stowage-scheduler"}} <= existing
        mounted = {mount["name"] for one in containers(file) for mount in one["volumeMounts"]}
        assert mounted == set(volumes)


def test_the_config_map_made_by_hand_is_documented() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    assert "create configmap stowage-scheduler" in page
    assert "config.yaml" in page


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_labels_select_their_pods(file: Path) -> None:
    (deployment,) = of_kind("Deployment", file)
    labels = deployment["spec"]["template"]["metadata"]["labels"].items()
    selectors = [deployment["spec"]["selector"]["matchLabels"]]
    selectors += [service["spec"]["selector"] for service in of_kind("Service", file)]
    assert all(selector.items() <= labels for selector in selectors)


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_the_program_accepts_its_arguments_and_settings(file: Path, tmp_path: Path) -> None:
    program, *arguments = stowage(file)["command"]
    assert program == "stowage"
    args = cli._parser(arguments[0]).parse_args(arguments)
    assert args.port == 8080
    assert str(args.config) == "/etc/stowage/settings.yaml"
    settings_in(file, tmp_path)


def test_probes_use_existing_routes(tmp_path: Path) -> None:
    behind, beside = LAYOUTS
    app = create_app(Service(settings.Settings(), SnapshotSource(Snapshot(), "test"), "1.2.3"))
    routes = {getattr(route, "path", "") for route in app.routes}
    one = stowage(behind)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    for probe in (one["readinessProbe"], one["livenessProbe"]):
        assert probe["httpGet"]["path"] in routes
        assert ports[probe["httpGet"]["port"]] == 8080
    assert one["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert "http://127.0.0.1:8080/readyz" in stowage(beside)["startupProbe"]["exec"]["command"][-1]


def test_replicas_behind_a_service_use_the_one_lease_they_may_use(tmp_path: Path) -> None:
    behind, beside = LAYOUTS
    lease = settings_in(behind, tmp_path).leader_election
    (role,) = of_kind("Role", behind)
    named, unnamed = role["rules"]
    assert lease == f"{role['metadata']['namespace']}/{named['resourceNames'][0]}"
    assert (named["verbs"], unnamed["verbs"]) == (["get", "update"], ["create"])
    assert settings_in(beside, tmp_path).leader_election is None


def test_the_service_has_the_address_that_schedulers_use() -> None:
    (service,) = of_kind("Service", LAYOUTS[0])
    metadata, (port,) = service["metadata"], service["spec"]["ports"]
    url = f"http://{metadata['name']}.{metadata['namespace']}.svc:{port['port']}/scheduler"
    configuration = yaml.safe_load((ROOT / "scheduler-config" / "second-scheduler.yaml").read_text())
    assert configuration["extenders"][0]["urlPrefix"] == url


def test_the_scheduler_in_the_same_pod_may_use_its_lease() -> None:
    configuration = yaml.safe_load((ROOT / "scheduler-config" / "second-scheduler.yaml").read_text())
    election = configuration["leaderElection"]
    (role,) = of_kind("Role", LAYOUTS[1])
    assert role["metadata"]["namespace"] == election["resourceNamespace"]
    assert role["rules"][0]["resourceNames"] == [election["resourceName"]]


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_containers_are_restricted(file: Path) -> None:
    """By the "restricted" profile of the Pod Security Standards."""
    for one in containers(file):
        context = one["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
    (deployment,) = of_kind("Deployment", file)
    pod = deployment["spec"]["template"]["spec"]["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_policy_freezes_all_annotations_that_stowage_reads() -> None:
    file = ROOT / "deploy" / "keep-assignments.yaml"
    (policy,) = of_kind("ValidatingAdmissionPolicy", file)
    (binding,) = of_kind("ValidatingAdmissionPolicyBinding", file)
    lists = {one["name"]: one["expression"] for one in policy["spec"]["variables"]}
    named = {name: set(re.findall(r"'([^']+)'", expression)) for name, expression in lists.items()}
    assert named["requestAnnotations"] == pod_request.REQUEST_ANNOTATIONS
    assert named["requestLabels"] == pod_request.REQUEST_LABELS
    assert named["assignmentAnnotations"] == pod_request.ASSIGNMENT_ANNOTATIONS
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])
