"""The Helm chart and the Kustomize directories: rendered, refused, accepted by the API server."""

import copy
import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from deploy import render

from .controlplane.api import Object
from .tools import CHART, NAMESPACE, program

SHAPES = ["shape=beside", "shape=separate"]
RIGHTS = {
    "settings.bind=true": {"ClusterRole/stowage-bind", "ClusterRoleBinding/stowage-bind"},
    "settings.evictor=on": {
        "ClusterRole/stowage-evictor",
        "ClusterRoleBinding/stowage-evictor",
        "Role/stowage-evictor",
        "RoleBinding/stowage-evictor",
    },
    "settings.reserve=limits": {"Role/stowage-evictor", "RoleBinding/stowage-evictor"},
    "settings.mig_manager=gpu-operator/layouts": {
        "Role/stowage-mig-manager",
        "RoleBinding/stowage-mig-manager",
    },
}
REFUSED = {
    "shape=both": "/shape",
    "replicas=0": "/replicas",
    "settings.shortlist=-1": "/settings/shortlist",
    "settings.shortlst=64": "shortlst",
    "settings.evictor=maybe": "/settings/evictor",
    "settings.leader_election=a/b": "leader_election is set by the chart",
    "scheduler.name=default-scheduler": "/scheduler/name",
    "scheduler.configuration=own-control-plane": "/scheduler/configuration",
    "image.digest=abc": "/image/digest",
    "imge.tag=1": "imge",
    "podLabels.team=1": "/podLabels/team",
    "metrics.serviceMonitor.interval=often": "/metrics/serviceMonitor/interval",
    "metrics.podMonitor.enabled=true,metrics.serviceMonitor.enabled=true": "enable one of them",
    "settings.node_selector=pool": "node_selector is set by the chart",
    "shard.name=a": "shard.name and shard.nodes need each other",
    "shard.name=A,shard.nodes.pool=a": "/shard/name",
    "settings.mig_manager=a/b/c": "/settings/mig_manager",
    "shape=separate,tls.secretName=": "/tls/secretName",
    "image.repository=": "image.repository is empty: build and push an image",
    "nameOverride=Gpu_1": "/nameOverride",
    "viewers[0].kind=Robot,viewers[0].name=x": "/viewers/0/kind",
    "namespaceViewers.Team[0].kind=User,namespaceViewers.Team[0].name=x": "Team",
    "ingress.enabled=true": "ingress.host is empty",
    "httpRoute.enabled=true": "httpRoute.parentRefs is empty",
    "ingress.enabled=true,ingress.host=a.b,httpRoute.enabled=true": "both lead to the page",
    "scheduler.ownConfiguration.kind=KubeSchedulerConfiguration": "no extender with the urlPrefix",
    "shape=separate,tls.clientCAKey=,tls.clientNames={b}": "clientNames needs tls.clientCAKey",
}


HISTORY = {"persistentVolumeClaim": {"claimName": "stowage-history"}}
VOLUME = {"name": "ca", "configMap": {"name": "my-ca"}}
MOUNT = {"name": "ca", "mountPath": "/etc/ca", "readOnly": True}
ZONES = {"topologyKey": "zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
OF_PEOPLE: Object = {
    "nameOverride": "gpu-scheduler",
    "commonLabels": {"team": "ml", "app.kubernetes.io/name": "other"},
    "serviceAccount": {"name": "packer", "annotations": {"iam.example.com/role": "reader"}},
    "extraArgs": ["--log-format=json"],
    "extraEnv": [{"name": "TZ", "value": "UTC"}],
    "extraVolumes": [VOLUME],
    "historyVolume": HISTORY,
    "extraVolumeMounts": [MOUNT],
    "scheduler": {
        "extraArgs": ["--v=3"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "extraVolumeMounts": [MOUNT],
    },
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [ZONES],
    "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    "securityContext": {"privileged": False},
    "viewers": [{"kind": "Group", "name": "ml", "apiGroup": "rbac.authorization.k8s.io"}],
    "namespaceViewers": {"team-a": [{"kind": "Group", "name": "a", "apiGroup": "rbac.authorization.k8s.io"}]},
}
"""What platform teams set, other than in the defaults."""
INGRESS: Object = {"enabled": True, "className": "nginx", "host": "stowage.example.com", "tls": [{}]}
ROUTE: Object = {"enabled": True, "parentRefs": [{"name": "web"}], "hostnames": ["stowage.example.com"]}
NOTE = {"example.com/note": "x"}
SHOWN: Object = {"enabled": True, "labels": {"release": "prom"}}
SCRAPED = SHOWN | {"interval": "30s"}
OFF: Object = {"enabled": False}
RESOURCES: Object = {"requests": {"cpu": "2", "memory": "2Gi"}}
EVERY: dict[str, Object] = {
    "beside": OF_PEOPLE
    | {
        "shard": {"name": "a", "nodes": {"pool": "a"}},
        "replicas": 3,
        "image": {"digest": f"sha256:{'0' * 64}", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "pull"}],
        "settings": {"evictor": "on"},
        "scheduler": {
            **OF_PEOPLE["scheduler"],
            "name": "gpu",
            "image": {"repository": "example.org/kube-scheduler", "tag": "v1.37.0"},
            "managedResources": ["amd.com/gpu"],
            "resources": RESOURCES,
        },
        "resources": RESOURCES | {"limits": {"memory": "3Gi"}},
        "priorityClassName": "system-node-critical",
        "criticalPodsQuota": False,
        "podLabels": {"cost": "ml"},
        "podAnnotations": NOTE,
        "nodeSelector": {"pool": "control"},
        "tolerations": [{"key": "control", "operator": "Exists"}],
        "networkPolicy": {"metricsFrom": [{"namespaceSelector": {}}]},
        "ingress": INGRESS | {"annotations": NOTE},
        "metrics": {"podMonitor": SCRAPED, "prometheusRule": SHOWN, "dashboard": SHOWN},
        "priorityClasses": True,
        "createNamespace": True,
    },
    "separate": {
        "shape": "separate",
        "image": {"tag": "1.0"},
        "tls": {"secretName": "pair", "clientCAKey": "issuer.crt", "clientNames": ["kube-scheduler"]},
        "networkPolicy": {"schedulerFrom": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        "httpRoute": ROUTE | {"annotations": NOTE},
        "metrics": {"serviceMonitor": SCRAPED},
    },
    "cert-manager": {"shape": "separate", "tls": {"certManager": True}},
    "without": {
        "serviceAccount": {"create": False},
        "scheduler": {"configuration": "every-pod"},
        "podDisruptionBudget": False,
        "networkPolicy": OFF,
        "withoutJobKinds": ["workloads"],
    },
    "without-tls": {"shape": "separate", "tls": OFF},
}
"""Each value of the chart, in one of them at least, other than its default."""


def with_values(values: Object, directory: Path, *more: str) -> list[Object]:
    file = directory / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    return render.template(f"--values={file}", *arguments(*more))


def arguments(*values: str) -> list[str]:
    return [f"--set={value}" for value in values]


def names(objects: list[Object]) -> set[str]:
    return {f"{one['kind']}/{one['metadata']['name']}" for one in objects}


def rights(objects: list[Object]) -> set[str]:
    return {name for name in names(objects) if name.split("/")[0].endswith(("Role", "RoleBinding"))}


def of(objects: list[Object], name: str) -> Object:
    (found,) = [one for one in objects if f"{one['kind']}/{one['metadata']['name']}" == name]
    return found


def test_what_is_generated_is_up_to_date() -> None:
    old = [str(file) for file, text in render.generated().items() if file.read_text() != text]
    assert not old, "run `make manifests`"


@pytest.mark.parametrize("shape", SHAPES)
def test_helm_finds_no_mistake(shape: str) -> None:
    render.helm("lint", "--strict", str(CHART), f"--set={shape},settings.bind=true,settings.evictor=on")


@pytest.mark.parametrize("value", REFUSED)
def test_wrong_values_are_refused(value: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as problem:
        render.template(*arguments(value))
    assert REFUSED[value] in problem.value.stderr.replace("'", "").replace("at ", "")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("value", RIGHTS)
def test_a_right_comes_with_its_setting_only(shape: str, value: str) -> None:
    plain, more = render.template(*arguments(shape)), render.template(*arguments(shape, value))
    assert rights(more) - rights(plain) == RIGHTS[value]
    assert rights(plain) <= rights(more)


def test_recommendations_need_no_right_to_evict() -> None:
    rules = {
        mode: {
            (resource, verb)
            for rule in of(
                render.template(*arguments(f"settings.evictor={mode}")), "ClusterRole/stowage-evictor"
            )["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for mode in ("on", "recommend")
    }
    assert rules["recommend"] == {("events", "create"), ("events", "list")}
    assert rules["on"] - rules["recommend"] == {("pods/eviction", "create"), ("pods/status", "patch")}


@pytest.mark.parametrize("shape", SHAPES)
def test_boosts_for_kueue_need_workloads_and_a_lease_only(shape: str) -> None:
    setting = "settings.kueue_priority_boost=true"
    plain, more = render.template(*arguments(shape)), render.template(*arguments(shape, setting))
    named = {"ClusterRole/stowage-kueue-boost", "ClusterRoleBinding/stowage-kueue-boost"}
    lease = {"Role/stowage-evictor", "RoleBinding/stowage-evictor"} if shape == "shape=beside" else set()
    assert rights(more) - rights(plain) == named | lease
    rules = [rule for name in (named | lease) for rule in of(more, name).get("rules", [])]
    asked = {(resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    of_lease = {("leases", verb) for verb in ("get", "update", "create")} if lease else set()
    assert asked == {("workloads", "patch"), ("workloadpriorityclasses", "list")} | of_lease
    name = "stowage-scheduler-settings" if lease else "stowage-settings"
    settings = yaml.safe_load(of(more, f"ConfigMap/{name}")["data"]["settings.yaml"])
    assert (settings.get("evictor_lease") or settings["leader_election"]).startswith(f"{NAMESPACE}/")


def test_the_right_to_each_kind_of_jobs_can_be_left_out() -> None:
    every, some = (
        {
            resource
            for rule in of(render.template(*arguments(*values)), "ClusterRole/stowage")["rules"]
            for resource in rule["resources"]
        }
        for values in ((), ("withoutJobKinds={workloads,rayclusters}",))
    )
    assert every - some == {"workloads", "rayclusters"}


def test_the_right_to_layouts_is_for_one_configmap_or_one_namespace() -> None:
    one = of(render.template(*arguments("settings.mig_manager=operator/layouts")), "Role/stowage-mig-manager")
    assert one["metadata"]["namespace"] == "operator"
    assert one["rules"][0]["resourceNames"] == ["layouts"]
    all_of_them = of(render.template(*arguments("settings.mig_manager=operator")), "Role/stowage-mig-manager")
    assert "resourceNames" not in all_of_them["rules"][0]


@pytest.mark.parametrize("more", ["shape=beside", "shape=separate,settings.bind=true,settings.evictor=on"])
def test_two_shards_have_no_object_in_common(more: str) -> None:
    """Each in a namespace of its own. What a shard's objects outside of it refer to are its own objects."""
    known: set[tuple[str, str, str]] = set()
    for name in ("a", "b"):
        values = render.ROOT / "deploy" / "examples" / "shards" / f"{name}.yaml"
        more_values = f"--set={more},settings.mig_manager=operator/layouts"
        objects = render.template(f"--values={values}", f"--namespace=stowage-{name}", more_values)
        keys = {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects}
        assert not keys & known
        known |= keys
        for one in objects:
            if one["kind"].endswith("Binding") and one["roleRef"]["name"].startswith("stowage"):
                space = one["metadata"].get("namespace") if one["roleRef"]["kind"] == "Role" else None
                assert (one["roleRef"]["kind"], space, one["roleRef"]["name"]) in keys
    if more == "shape=beside":
        lease = of(objects, "Role/stowage-scheduler-lease-b")["rules"][0]["resourceNames"]
        configuration = yaml.safe_load(of(objects, "ConfigMap/stowage-scheduler")["data"]["config.yaml"])
        assert [configuration["leaderElection"]["resourceName"]] == lease == ["stowage-scheduler-b"]


@pytest.mark.parametrize(
    ("shape", "file"),
    [("shape=beside", "beside-kube-scheduler.yaml"), ("shape=separate", "behind-a-service.yaml")],
)
def test_the_deployment_is_that_of_the_plain_manifest(shape: str, file: str) -> None:
    plain = {one["kind"]: one for one in yaml.safe_load_all((render.ROOT / "deploy" / file).read_text())}
    (mine,) = [one for one in render.template(*arguments(shape)) if one["kind"] == "Deployment"]
    annotations = mine["spec"]["template"]["metadata"]["annotations"]
    for checksum in [key for key in annotations if key.startswith("checksum/")]:
        del annotations[checksum]
    pod = mine["spec"]["template"]["spec"]
    for container in [*pod.get("initContainers", ()), *pod["containers"]]:
        container.pop("imagePullPolicy", None)
    assert mine["spec"] == plain["Deployment"]["spec"]
    assert mine["metadata"]["name"] == plain["Deployment"]["metadata"]["name"]


@pytest.mark.parametrize(
    ("shape", "file"),
    [("shape=beside", "beside-kube-scheduler.yaml"), ("shape=separate", "behind-a-service.yaml")],
)
def test_the_services_are_those_of_the_plain_manifest(shape: str, file: str) -> None:
    plain = yaml.safe_load_all((render.ROOT / "deploy" / file).read_text())
    services = {one["metadata"]["name"]: one for one in plain if one["kind"] == "Service"}
    mine = {
        one["metadata"]["name"]: one for one in render.template(*arguments(shape)) if one["kind"] == "Service"
    }
    assert mine.keys() == services.keys()
    for name, service in services.items():
        assert mine[name]["spec"] == service["spec"]
        assert service["metadata"].get("labels", {}).items() <= mine[name]["metadata"]["labels"].items()


@pytest.mark.parametrize("shape", SHAPES)
def test_names_and_labels_go_together(tmp_path: Path, shape: str) -> None:
    objects = with_values(OF_PEOPLE, tmp_path, shape, "settings.bind=true", "settings.evictor=on")
    pod = of(objects, "Deployment/gpu-scheduler")["spec"]["template"]
    labels = pod["metadata"]["labels"].items()
    assert {("app.kubernetes.io/name", "gpu-scheduler"), ("team", "ml")} <= labels
    for one in objects:
        assert one["metadata"]["labels"]["team"] == "ml"
        spec = one.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector") or {}
        assert selector.get("matchLabels", selector).items() <= labels
    account = of(objects, "ServiceAccount/packer")
    assert account["metadata"]["annotations"] == {"iam.example.com/role": "reader"}
    assert pod["spec"]["serviceAccountName"] == "packer"
    subjects = [subject for one in objects for subject in one.get("subjects", ())]
    accounts = {one["name"] for one in subjects if one["kind"] == "ServiceAccount"}
    assert accounts == {"packer", "stowage-viewer", "stowage-viewer-team-a"}
    own = [*with_values(OF_PEOPLE, tmp_path, shape, "serviceAccount.create=false")]
    assert "ServiceAccount/packer" not in names(own)


OF_KUBERNETES = ("resources", "podSecurityContext", "securityContext", "labels")


def paths(values: Object, defaults: Object, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where these values are among those of the chart; an object of Kubernetes is one value."""
    for key, value in values.items():
        known = defaults.get(key)
        if isinstance(value, dict) and known and key not in OF_KUBERNETES:
            yield from paths(value, known, (*before, key))
        else:
            yield (*before, key)


def test_every_value_is_among_those_that_are_applied() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    tried = {path for values in EVERY.values() for path in paths(values, defaults)}
    elsewhere = {("scheduler", "ownConfiguration"), ("image", "repository")}  # in tests of this file
    assert set(paths(defaults, defaults)) == tried | elsewhere


@pytest.mark.parametrize("name", EVERY)
def test_every_value_changes_something(name: str, tmp_path: Path) -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    everything = with_values(EVERY[name], tmp_path)
    for path in paths(EVERY[name], defaults):
        values = copy.deepcopy(EVERY[name])
        inner = values
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        with suppress(subprocess.CalledProcessError):  # another value needs it
            assert with_values(values, tmp_path) != everything, path


def test_pods_are_as_the_platform_wants_them(tmp_path: Path) -> None:
    pod = of(with_values(OF_PEOPLE, tmp_path), "Deployment/gpu-scheduler")["spec"]["template"]["spec"]
    (stowage,), (scheduler,) = pod["initContainers"], pod["containers"]
    assert stowage["command"][-1] == "--log-format=json"
    assert scheduler["command"][-1] == "--v=3"
    for one in (stowage, scheduler):
        assert {"name": "TZ", "value": "UTC"} in one["env"]
        assert one["volumeMounts"][-1] == MOUNT
        assert one["securityContext"]["privileged"] is False
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["volumes"][-2:] == [{"name": "history"} | HISTORY, VOLUME]
    assert {"name": "history", "mountPath": "/var/lib/stowage"} in stowage["volumeMounts"]
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert pod["topologySpreadConstraints"] == [ZONES]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_viewers_may_use_kubectl_stowage_and_the_page(tmp_path: Path) -> None:
    objects = with_values(OF_PEOPLE | {"ingress": INGRESS}, tmp_path)
    bindings = [of(objects, f"{kind}/stowage-viewers") for kind in ("RoleBinding", "ClusterRoleBinding")]
    roles = [f"{one['roleRef']['kind']}/{one['roleRef']['name']}" for one in bindings]
    assert roles == ["Role/stowage-kubectl", "ClusterRole/stowage-viewer"]
    assert {*roles} <= names(objects)
    assert [one["subjects"] for one in bindings] == [OF_PEOPLE["viewers"]] * 2
    assert (
        of(objects, "RoleBinding/stowage-viewers-team-a")["subjects"]
        == OF_PEOPLE["namespaceViewers"]["team-a"]
    )
    role = of(objects, "RoleBinding/stowage-viewers-team-a")["roleRef"]["name"]
    tokens = [
        rule["resourceNames"] for rule in of(objects, f"Role/{role}")["rules"] if "create" in rule["verbs"]
    ]
    assert tokens[-1] == [account := "stowage-viewer-team-a"]
    assert f"ServiceAccount/{account}" in names(objects)
    binding = of(objects, "ClusterRoleBinding/stowage-namespace-team-a")
    assert [subject["name"] for subject in binding["subjects"]] == [account]
    paths = of(objects, f"ClusterRole/{binding['roleRef']['name']}")["rules"][0]["nonResourceURLs"]
    assert paths == ["/namespaces/team-a/debug/*"]
    without = with_values({"serviceAccount": {"create": False}}, tmp_path)
    assert "ServiceAccount/stowage-viewer" in names(without)  # tokens of which are created
    assert not [name for name in names(without) if name.endswith("/stowage-viewers")]
    (rule,) = of(objects, "Ingress/stowage-page")["spec"]["rules"]
    service = of(objects, "Service/stowage-debug")
    backend = rule["http"]["paths"][0]["backend"]["service"]
    assert backend == {
        "name": service["metadata"]["name"],
        "port": {"name": service["spec"]["ports"][0]["name"]},
    }
    route = of(with_values({"httpRoute": ROUTE}, tmp_path), "HTTPRoute/stowage-page")["spec"]
    assert route["rules"] == [{"backendRefs": [{"name": "stowage-debug", "port": 8081}]}]


def test_a_configuration_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    mine = yaml.safe_load((render.ROOT / "scheduler-config" / "every-pod.yaml").read_text())
    mine["extenders"][0]["urlPrefix"] = "http://127.0.0.1:8080/scheduler"
    mine["parallelism"] = 7
    objects = with_values({"scheduler": {"ownConfiguration": mine}}, tmp_path)
    assert yaml.safe_load(of(objects, "ConfigMap/stowage-scheduler")["data"]["config.yaml"]) == mine


def test_pods_restart_when_a_setting_changes() -> None:
    def annotations(*values: str) -> Object:
        deployment = of(render.template(*arguments(*values)), "Deployment/stowage-scheduler")
        found: Object = deployment["spec"]["template"]["metadata"]["annotations"]
        return found

    plain = annotations()
    assert annotations("settings.shortlist=0")["checksum/settings"] != plain["checksum/settings"]
    assert annotations("scheduler.name=gpu")["checksum/scheduler"] != plain["checksum/scheduler"]
    assert annotations("replicas=3") == plain


@pytest.mark.parametrize("overlay", render.BUILDS_ON)
def test_kustomize_makes_what_helm_makes(overlay: str) -> None:
    built = subprocess.run(
        [program("kubectl"), "kustomize", render.KUSTOMIZE / overlay],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    objects = {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): one
        for one in yaml.safe_load_all(built)
    }
    assert objects == render.rendered(overlay)


@pytest.mark.parametrize(
    ("values", "has_one"),
    [
        (["shape=beside"], True),
        (["shape=beside", "replicas=1"], False),
        (["shape=beside", "podDisruptionBudget=false"], False),
        (["shape=separate"], False),
    ],
)
def test_there_is_a_budget_only_where_it_locks_nothing(values: list[str], has_one: bool) -> None:
    """With one replica, or where only the leader is ready, it would block every drain."""
    kinds = {one["kind"] for one in render.template(*arguments(*values))}
    assert ("PodDisruptionBudget" in kinds) == has_one


@pytest.mark.parametrize("shape", SHAPES)
def test_the_network_policy_opens_only_the_ports_that_are_used(shape: str) -> None:
    objects = render.template(*arguments(shape))
    (policy,) = [one for one in objects if one["kind"] == "NetworkPolicy"]
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    every = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    named = {port["name"] for one in every for port in one.get("ports", ())}
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == named


def test_more_labels_do_not_replace_those_that_are_selected() -> None:
    pod = of(
        render.template(*arguments(r"podLabels.app\.kubernetes\.io/name=other", "podLabels.team=ml")),
        "Deployment/stowage-scheduler",
    )["spec"]["template"]
    assert pod["metadata"]["labels"] == {"app.kubernetes.io/name": "stowage-scheduler", "team": "ml"}


@pytest.mark.parametrize("value", ["on", "true"])
def test_yaml_may_make_a_truth_of_on(value: str) -> None:
    objects = render.template(
        "--set-json", f'settings={{"evictor": {value if value == "true" else json.dumps(value)}}}'
    )
    text = of(objects, "ConfigMap/stowage-scheduler-settings")["data"]["settings.yaml"]
    assert "evictor_lease: stowage-system/stowage-evictor" in text
    assert "ClusterRole/stowage-evictor" in names(objects)
    assert "ClusterRole/stowage-evictor" not in names(
        render.template("--set-json", 'settings={"evictor": false}')
    )


def test_the_podmonitor_names_what_exists() -> None:
    objects, monitor = monitored("PodMonitor")
    pod = of(objects, "Deployment/stowage-scheduler")["spec"]["template"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = [port["name"] for one in pod["spec"]["initContainers"] for port in one["ports"]]
    assert endpoint["port"] in ports
    check_the_token(objects, endpoint)


def test_the_servicemonitor_names_what_exists() -> None:
    objects, monitor = monitored("ServiceMonitor")
    service = of(objects, "Service/stowage-debug")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [port["name"] for port in service["spec"]["ports"]] == [endpoint["port"]]
    assert not [one for one in objects if one["kind"] == "PodMonitor"]
    check_the_token(objects, endpoint)


def monitored(kind: str) -> tuple[list[Object], Object]:
    value = "metrics." + kind[0].lower() + kind[1:]
    assert kind not in {one["kind"] for one in render.template()}
    objects = render.template(*arguments(f"{value}.enabled=true", f"{value}.labels.release=prom"))
    monitor = of(objects, f"{kind}/stowage")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    return objects, monitor


def check_the_token(objects: list[Object], endpoint: Object) -> None:
    secret = of(objects, "Secret/stowage-metrics")
    assert endpoint["authorization"]["credentials"] == {"name": secret["metadata"]["name"], "key": "token"}
    account = secret["metadata"]["annotations"]["kubernetes.io/service-account.name"]
    (subject,) = of(objects, "ClusterRoleBinding/stowage-metrics")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}


def test_alerts_and_dashboard_are_those_of_monitoring() -> None:
    values = arguments("metrics.prometheusRule.enabled=true", "metrics.dashboard.enabled=true")
    objects, directory = render.template(*values), render.ROOT / "deploy" / "monitoring"
    rule, dashboard = of(objects, "PrometheusRule/stowage"), of(objects, "ConfigMap/stowage-dashboard")
    assert rule["spec"] == yaml.safe_load((directory / "prometheus-rule.yaml").read_text())["spec"]
    shown = json.loads(dashboard["data"]["stowage.json"])
    assert shown == json.loads((directory / "dashboard.json").read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
