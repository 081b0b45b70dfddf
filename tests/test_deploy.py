"""The manifests in deploy/ name only what exists, and agree with each other and with the program.

tests/e2e/test_deploy.py shows that the API server accepts them and that their rights suffice.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from deploy import render
from extender import settings, settings_file
from extender.cli import arguments as cli
from extender.dialects import pod_request
from extender.k8s.objects import Pod
from extender.k8s.pod_manifest import PodManifest
from extender.queues.disruptions import DisruptionLog
from extender.queues.gangs import GangTable
from extender.queues.queue import OTHER_QUEUE_LABELS, QUEUE_LABEL
from extender.queues.rights import EvictionRules, Rights
from extender.server.app import create_app
from extender.server.debug_auth import is_guarded
from extender.server.service import Service
from extender.source import stowage_service
from extender.source.snapshot import Snapshot, SnapshotSource
from extender.source.watched_kinds import WATCHED_KINDS
from tests.routes import routes
from tests.scheduler_config import with_tls as tls_lines

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "deploy").glob("*.yaml"))
IMAGE = ROOT / "deploy" / "image"
LAYOUTS = [ROOT / "deploy" / f"{name}.yaml" for name in ("behind-a-service", "beside-kube-scheduler")]
CERTIFICATES = ROOT / "deploy" / "tls-cert-manager.yaml"
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
    return settings_file.load(path, {})


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
    assert cli._conflict(args) == ""
    assert str(args.config) == "/etc/stowage/settings.yaml"
    settings_in(file, tmp_path)


async def test_probes_use_existing_routes() -> None:
    behind, beside = LAYOUTS
    service = Service(settings.Settings(), SnapshotSource(Snapshot(), "test"), "1.2.3")
    await service.start()
    one = stowage(behind)
    ports = {port["name"]: port["containerPort"] for port in one["ports"]}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(service)), base_url="http://s"
    ) as http:
        for probe in (one["readinessProbe"], one["livenessProbe"]):
            assert (await http.get(probe["httpGet"]["path"])).status_code == 200
            assert ports[probe["httpGet"]["port"]] == 8081  # the other one asks for a client certificate
            assert probe["httpGet"]["scheme"] == "HTTPS"
    assert one["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert stowage(beside)["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert [port["name"] for port in stowage(beside)["ports"]] == ["metrics"]


def test_beside_kube_scheduler_only_the_metrics_leave_loopback(tmp_path: Path) -> None:
    beside = LAYOUTS[1]
    program = stowage(beside)["command"]
    args = cli._parser(program[1]).parse_args(program[1:])
    metrics = stowage(beside)["ports"]
    assert (args.host, args.debug_host) == ("127.0.0.1", "0.0.0.0")
    assert [port["containerPort"] for port in metrics] == [args.debug_port]
    assert settings_in(beside, tmp_path).debug_token_review


def test_the_rights_of_readers_are_for_routes_that_exist() -> None:
    service = Service(settings.Settings(), SnapshotSource(Snapshot(), "test"), "1.2.3")
    paths = [route.path for route in routes(service)]
    files = [ROOT / "deploy" / f"{name}.yaml" for name in ("rbac-debug-auth", "rbac-kubectl")]
    for rule in (rule for role in objects(*files) if role["kind"] == "ClusterRole" for rule in role["rules"]):
        for url in rule["nonResourceURLs"]:
            assert is_guarded(url)
            assert any(path.startswith(url.rstrip("*")) for path in paths)


def test_replicas_behind_a_service_use_the_one_lease_they_may_use(tmp_path: Path) -> None:
    behind, beside = LAYOUTS
    lease = settings_in(behind, tmp_path).leader_election
    (role,) = of_kind("Role", behind)
    named, unnamed = role["rules"]
    assert lease == f"{role['metadata']['namespace']}/{named['resourceNames'][0]}"
    assert (named["verbs"], unnamed["verbs"]) == (["get", "update"], ["create"])
    assert settings_in(beside, tmp_path).leader_election is None


def test_the_service_has_the_address_that_schedulers_use() -> None:
    (service,) = [one for one in of_kind("Service", LAYOUTS[0]) if one["metadata"]["name"] == "stowage"]
    metadata, (port,) = service["metadata"], service["spec"]["ports"]
    host = f"{metadata['name']}.{metadata['namespace']}.svc"
    for extender in extenders(with_tls=True):
        name = httpx.URL(extender["urlPrefix"]).host  # an address where kube-scheduler has no cluster DNS
        assert name == host or ipaddress.ip_address(name)
        assert extender["urlPrefix"] == f"https://{name}:{port['port']}/scheduler"
        assert extender["tlsConfig"]["serverName"] == host
    (server,) = [
        one for one in of_kind("Certificate", CERTIFICATES) if host in one["spec"].get("dnsNames", ())
    ]
    (deployment,) = of_kind("Deployment", LAYOUTS[0])
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    mounted = [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]
    assert mounted == [server["spec"]["secretName"]]


def extenders(*, with_tls: bool) -> list[Object]:
    """Of all shipped configurations of kube-scheduler, as they are or with the lines for TLS."""
    found = []
    for file in sorted((ROOT / "scheduler-config").glob("*.yaml")):
        found += yaml.safe_load(tls_lines(file) if with_tls else file.read_text())["extenders"]
    for config in of_kind("ConfigMap", *FILES):
        for text in config.get("data", {}).values():
            found += (yaml.safe_load(text) or {}).get("extenders", ())
    return found


@pytest.mark.parametrize("with_tls", [False, True])
def test_no_shipped_configuration_lets_kube_scheduler_trust_anybody(with_tls: bool) -> None:
    """Without a CA it does (kubernetes, pkg/scheduler/extender.go, makeTransport; tests/e2e/test_tls.py)."""
    found = extenders(with_tls=with_tls)
    assert len(found) >= 5
    for extender in found:
        encrypted = extender["urlPrefix"].startswith("https:")
        assert extender.get("enableHTTPS", False) == encrypted == with_tls
        if encrypted:
            tls = extender["tlsConfig"]
            assert tls.get("caFile") or tls.get("caData")
            assert not tls.get("insecure")
            assert tls["certFile"]
            assert tls["keyFile"]


def test_the_certificates_are_those_of_a_server_and_a_client_of_one_ca() -> None:
    issuers = {one["metadata"]["name"]: one["spec"] for one in of_kind("Issuer", CERTIFICATES)}
    certificates = {one["spec"]["secretName"]: one["spec"] for one in of_kind("Certificate", CERTIFICATES)}
    usages = {name: spec["usages"][-1] for name, spec in certificates.items() if not spec.get("isCA")}
    assert usages == {"stowage-tls": "server auth", "stowage-scheduler-tls": "client auth"}
    for name in usages:
        signed_by = issuers[certificates[name]["issuerRef"]["name"]]["ca"]["secretName"]
        assert certificates[signed_by]["isCA"]


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
    for dialect in pod_request.DIALECTS:
        assert dialect.request_annotations <= named["requestAnnotations"] | named["assignmentAnnotations"]
        assert dialect.request_labels <= named["requestLabels"]
        assert dialect.assignment_annotations <= named["assignmentAnnotations"]
    assert render.with_names_of_dialects() == {file: file.read_text()}, "run `make manifests`"
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])


def test_the_rights_suffice_for_every_watched_kind() -> None:
    (role, *_) = of_kind("ClusterRole", ROOT / "deploy" / "rbac.yaml")
    may = {
        (group, resource)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        if {"list", "watch"} <= set(rule["verbs"])
    }
    for watched in WATCHED_KINDS.values():
        _, api, group, *_ = watched.path.split("/")
        assert (group if api == "apis" else "", watched.resource) in may


@pytest.mark.parametrize("file", LAYOUTS, ids=lambda file: file.stem)
def test_people_may_ask_the_service_for_debugging_and_reach_no_other_port(file: Path) -> None:
    (role,) = of_kind("Role", ROOT / "deploy" / "rbac-kubectl.yaml")
    (service,) = [one for one in of_kind("Service", file) if one["metadata"].get("labels")]
    assert service["metadata"]["labels"] == {stowage_service.LABEL: "true"}
    found = service["metadata"]["namespace"], service["metadata"]["name"], service["spec"]["ports"][0]["name"]
    assert found == (stowage_service.NAMESPACE, stowage_service.NAME, stowage_service.PORT)
    assert role["metadata"]["namespace"] == stowage_service.NAMESPACE
    (rule,) = [rule for rule in role["rules"] if rule["resources"] == ["services/proxy"]]
    names = [f"{scheme}:{stowage_service.NAME}:{stowage_service.PORT}" for scheme in ("http", "https")]
    assert rule["resourceNames"] == names
    (rule,) = [rule for rule in role["rules"] if rule["resources"] == ["serviceaccounts/token"]]
    assert (rule["resourceNames"], rule["verbs"]) == ([stowage_service.VIEWER], ["create"])
    (account,) = of_kind("ServiceAccount", ROOT / "deploy" / "rbac-kubectl.yaml")
    assert account["metadata"] == {"name": stowage_service.VIEWER, "namespace": stowage_service.NAMESPACE}
    ports = {port["name"]: port["containerPort"] for port in stowage(file)["ports"]}
    target = service["spec"]["ports"][0]
    assert ports[target["targetPort"]] == target["port"] == 8081
    has_tls = any(word.startswith("--tls-cert") for word in stowage(file)["command"])
    assert (target.get("appProtocol") == "https") == has_tls


def test_what_the_chart_copies_is_up_to_date() -> None:
    """The rest of what is generated takes helm: tests/e2e/test_chart.py."""
    expected = render.copies() | {render.SCHEMA: render.schema()}
    old = [str(file) for file, text in expected.items() if file.read_text() != text]
    assert not old, "run `make manifests`"


def priority_classes() -> dict[str, Object]:
    classes = of_kind("PriorityClass", ROOT / "deploy" / "priority-classes.yaml")
    return {one["metadata"]["name"]: one for one in classes}


def example(queue: str) -> Pod:
    """The pod of deploy/examples as the API server admits it: with the priority of its class."""
    (manifest,) = objects(ROOT / "deploy" / "examples" / f"queue-{queue}.yaml")
    template = manifest["spec"]["template"] if manifest["kind"] == "Job" else manifest
    admitted = priority_classes()[template["spec"]["priorityClassName"]]
    spec = template["spec"] | {
        "priority": admitted["value"],
        "preemptionPolicy": admitted["preemptionPolicy"],
    }
    metadata = {"name": queue} | (template.get("metadata") or {})
    return PodManifest.from_value({"metadata": metadata, "spec": spec}).record()


def test_the_priority_classes_are_those_of_the_default_queues() -> None:
    classes = {name for queue in settings.DEFAULT_QUEUES.values() for name in queue.priority_classes}
    assert priority_classes().keys() == classes
    assert all(one["description"] for one in priority_classes().values())


def test_every_example_tolerates_the_taint_of_gpu_nodes() -> None:
    files = [
        *(ROOT / "deploy" / "examples").glob("*.yaml"),
        *(ROOT / "deploy" / "examples").glob("check*/*.yaml"),
    ]
    asking = [
        file for file in files if re.search(r"limits:.*nvidia\.com/|nvidia\.com/gpu: ", file.read_text())
    ]
    assert len(asking) > 10
    assert not [
        file.name for file in asking if "{key: nvidia.com/gpu, operator: Exists" not in file.read_text()
    ]


def test_the_examples_show_who_may_evict_whom() -> None:
    rights, others = Rights(), (GangTable(), DisruptionLog())
    pods = {queue: example(queue) for queue in settings.DEFAULT_QUEUES}
    assert {queue: rights.queues.name_of(pod) for queue, pod in pods.items()} == {name: name for name in pods}
    allowed = {
        (one, other)
        for one in pods
        for other in pods
        if EvictionRules(rights, *others, pods[one], 1e9).why_not([pods[other]]) == [""]
    }
    assert allowed == {("interactive", "batch"), ("interactive", "backfill"), ("batch", "backfill")}


def test_the_policy_guards_all_words_that_name_a_queue() -> None:
    file = ROOT / "deploy" / "guard-queues.yaml"
    (policy,) = of_kind("ValidatingAdmissionPolicy", file)
    (binding,) = of_kind("ValidatingAdmissionPolicyBinding", file)
    lists = {one["name"]: re.findall(r"'([^']+)'", one["expression"]) for one in policy["spec"]["variables"]}
    assert lists["words"] == [QUEUE_LABEL, *OTHER_QUEUE_LABELS]
    assert lists["queues"] == list(settings.DEFAULT_QUEUES)
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    assert (policy["spec"]["failurePolicy"], binding["spec"]["validationActions"]) == ("Fail", ["Deny"])


def locked(file: Path) -> dict[str, frozenset[str]]:
    """Packages with their version, and the hashes of each. A marker depends on what else is in the lock."""
    entries = re.split(r"\n(?=\S)", file.read_text().strip())
    return {entry.split()[0]: frozenset(re.findall(r"sha256:\w+", entry)) for entry in entries}


def test_the_image_has_the_versions_that_are_tested() -> None:
    image, tested = locked(IMAGE / "requirements.txt"), locked(ROOT / "requirements.txt")
    assert image.items() <= tested.items()
    assert not {name for name in image if name.startswith(("pytest", "mypy", "matplotlib"))}


def test_the_image_has_what_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[\[>=]", one)[0] for one in project["project"]["dependencies"]}
    assert wanted <= {name.partition("==")[0] for name in locked(IMAGE / "requirements.txt")}
    assert project["build-system"]["requires"] == (IMAGE / "build-requirements.in").read_text().split()


def test_the_image_and_the_manifests_agree() -> None:
    containerfile = (IMAGE / "Containerfile").read_text()
    for file in LAYOUTS:
        (deployment,) = of_kind("Deployment", file)
        user = deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
        assert f"USER {user}:{user}\n" in containerfile
        environment = {one["name"]: one["value"] for one in stowage(file)["env"]}
        assert f"NUMBA_CACHE_DIR={environment['NUMBA_CACHE_DIR']} " in containerfile
