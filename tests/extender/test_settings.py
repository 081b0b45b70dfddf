from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.cluster.factory import state_of
from extender.cluster.policy_refresh import plan_now
from extender.dialects.pod_request import request_of
from extender.k8s.objects import Listed, Upserted
from extender.protocol.node_names import NodeNames
from extender.settings import DEFAULT_QUEUES, Queue, Settings, SettingsError
from extender.settings_file import load
from extender.verbs.evaluate import evaluate
from tests.extender.builders import GPU, make_node, make_pod


def write(folder: Path, text: str) -> Path:
    path = folder / "extender.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_need_neither_file_nor_environment() -> None:
    settings = load(None, {})
    assert settings == Settings()
    assert (settings.shortlist, settings.policy, settings.bind, settings.body_limit_mib) == (
        64,
        "inventory",
        False,
        64,
    )


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing yet\n"), {}) == Settings()


def test_a_file_may_say_which_api_it_has(tmp_path: Path) -> None:
    text = "apiVersion: stowage.dev/v1alpha1\nkind: StowageConfiguration\nshortlist: 8\n"
    assert load(write(tmp_path, text), {}).shortlist == 8


def test_the_file_is_read_and_the_environment_wins(tmp_path: Path) -> None:
    path = write(tmp_path, 'shortlist: 8\nbind: true\nkubernetes_version: "1.36"\n')
    settings = load(path, {"STOWAGE_SHORTLIST": "0", "HOME": "/nowhere"})
    assert (settings.shortlist, settings.bind, settings.kubernetes_version) == (0, True, "1.36")


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("STOWAGE_BIND", "true", True),
        ("STOWAGE_BODY_LIMIT_MIB", "128", 128),
        ("STOWAGE_KUBERNETES_VERSION", "1.30", "1.30"),  # not the number 1.3
        ("STOWAGE_KUBERNETES_VERSION", "v1.36.3", "v1.36.3"),
        ("STOWAGE_KUBERNETES_VERSION", "null", None),
        ("STOWAGE_LOG_LEVEL", '"debug"', "debug"),
    ],
)
def test_environment_values_are_yaml_scalars(variable: str, text: str, expected: object) -> None:
    assert getattr(load(None, {variable: text}), variable.removeprefix("STOWAGE_").lower()) == expected


@pytest.mark.parametrize("number", ["1.0e+308", "1.0e-308", "-1", "0", ".inf", ".nan"])
@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("demand: [{resources: {nvidia.com/gpu: 1}, weight: NUMBER}]", "demand.0.weight: "),
        ("gpu_values: {H100: NUMBER}", "gpu_values.H100: "),
    ],
)
def test_numbers_that_count_beside_others_are_bounded(
    tmp_path: Path, text: str, key: str, number: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(key)):
        load(write(tmp_path, text.replace("NUMBER", number)), {})


@pytest.mark.parametrize(
    "given",
    [
        {"gpu_values": {"H100": 1e-6, "T4": 1e9}},
        {"gpu_values": {"H100": 1e9, "T4": 1e-6}},
        {
            "demand": [
                {"resources": {GPU: count}, "weight": weight} for count, weight in ((1, 1e-6), (8, 1e9))
            ]
        },
        {
            "demand": [
                {"resources": {GPU: count}, "weight": weight} for count, weight in ((1, 1e9), (8, 1e-6))
            ]
        },
    ],
)
def test_costs_are_finite_within_the_bounds(given: dict[str, Any]) -> None:
    models = {"a": "NVIDIA-H100-80GB-HBM3", "b": "Tesla-T4", "c": "NVIDIA-A100-SXM4-80GB"}
    nodes = [make_node(name, 8, labels={f"{GPU}.product": model}) for name, model in models.items()]
    state = state_of(Settings.model_validate(given))
    state.apply([*map(Upserted, nodes), Listed("Node", frozenset(models)), Listed("Pod", frozenset())])
    plan_now(state)
    for pod in (make_pod("p", 1), make_pod("p", 8)):
        costs = evaluate(state, pod, request_of(pod), NodeNames.of([*models])).cost
        assert np.isfinite(costs).all()
    assert not state.failures.counts


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("shortlist: -1", ["shortlist", "-1", "whole number from 0"]),
        ("shortlist: 99999999999999999999", ["shortlist", "whole number from 0 to 1000000"]),
        ("shortlist: many", ["shortlist", "'many'", "whole number from 0"]),
        ("mig_manager: a/b/c", ["mig_manager", "'a/b/c'", "namespace/name of the MIG manager"]),
        ("shortlst: 3", ["shortlst", "unknown setting", "did you mean shortlist?"]),
        ("colour: blue", ["colour", "unknown setting"]),
        ("queues: {batch: {min_runtme: 1}}", ["queues.batch.min_runtme", "did you mean min_runtime?"]),
        ("demand: [{nodeselector: {}}]", ["demand.0.nodeselector", "did you mean nodeSelector?"]),
        ("apiVersion: stowage.dev/v2", ["apiVersion", "'stowage.dev/v2'", "expected stowage.dev/v1alpha1"]),
        ("kind: KubeSchedulerConfiguration", ["kind", "expected StowageConfiguration"]),
        ("policy: ''", ["policy", "''", "packing policy"]),
        ("kubernetes_version: 1.36", ["kubernetes_version", "1.36", "in quotes"]),
        ("body_limit_mib: 0", ["body_limit_mib", "1 to 1024"]),
        ("node_selector: 'a in b'", ["node_selector", "'a in b'", "a label selector such as pool in (a, b)"]),
        ("shard_schedulers: []", ["shard_schedulers", "a list of schedulerNames"]),
        ("log_level: loud", ["log_level", "debug, decision, info, warning or error"]),
        ("bind: [yes]", ["bind", "true or false"]),
        ("shortlist: [", ["not YAML", "line 1"]),
        ("- shortlist", ["'key: value' lines"]),
    ],
)
def test_an_error_names_the_key_the_file_and_the_expected_values(
    tmp_path: Path, text: str, parts: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    for part in [str(path), *parts]:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "stowage.dev/shard=a",
        "pool in (a, b),!excluded, zone != z1",
        "pool==a,gpu",
        "pool notin (spot)",
        "pool=",
        " a.b-c_d = x ",
    ],
)
def test_a_label_selector(text: str) -> None:
    assert Settings(node_selector=text).node_selector == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "=a",
        "pool in ()",
        "pool in (a",
        "a b",
        "pool=a,",
        "pool=a;b",
        "!",
        "pool=-a",
        "a" * 64,
        "a>1",
    ],
)
def test_no_label_selector(text: str) -> None:
    with pytest.raises(ValueError, match="node_selector"):
        Settings(node_selector=text)


def test_every_invalid_key_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "shortlist: -1\nbodylimit: 3\n")
    with pytest.raises(SettingsError) as caught:
        load(path, {"STOWAGE_BIND": "perhaps"})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any("environment variable STOWAGE_BIND" in line for line in lines)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.yaml: cannot be read: No such file"):
        load(tmp_path / "nothing.yaml", {})


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "extender.yaml"
    path.write_bytes(b"\xff\xfe\x00shortlist")
    with pytest.raises(SettingsError, match="expected 'key: value' lines"):
        load(path, {})


def test_a_misspelt_variable_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="extender"):
        load(None, {"STOWAGE_SHORTLST": "3"})
    assert "STOWAGE_SHORTLST is not a setting; did you mean STOWAGE_SHORTLIST?" in caplog.text


def test_variables_that_the_kubelet_injects_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    injected = {
        "STOWAGE_SERVICE_HOST": "10.0.0.1",
        "STOWAGE_SERVICE_PORT": "80",
        "STOWAGE_SERVICE_PORT_HTTP": "80",
        "STOWAGE_PORT": "tcp://10.0.0.1:80",
        "STOWAGE_PORT_80_TCP": "tcp://10.0.0.1:80",
        "STOWAGE_PORT_80_TCP_ADDR": "10.0.0.1",
        "STOWAGE_DEBUG_SERVICE_HOST": "10.0.0.2",
        "STOWAGE_DEBUG_PORT": "tcp://10.0.0.2:81",
    }
    assert load(None, injected) == Settings()
    assert caplog.text == ""


def test_no_setting_looks_like_an_injected_variable() -> None:
    assert not [key for key in Settings.model_fields if key.endswith(("port", "service_host"))]


def queues_of(text: str) -> dict[str, Queue]:
    return load(None, {"STOWAGE_QUEUES": text}).queues


def test_queues_are_merged_by_name_with_the_default_queues(tmp_path: Path) -> None:
    text = "queues:\n  backfill: {min_runtime: 7200}\n  a: {preempts: [b], self_protection: no}\n  b: {}\n"
    assert load(write(tmp_path, text), {}).queues == {
        **DEFAULT_QUEUES,
        "backfill": DEFAULT_QUEUES["backfill"].model_copy(update={"min_runtime": 7200}),
        "a": Queue(preempts=frozenset({"b"}), self_protection=False),
        "b": Queue(),
    }
    assert load(write(tmp_path, "queues: {}"), {}).queues == DEFAULT_QUEUES


def test_null_removes_a_queue_also_from_what_the_others_preempt(tmp_path: Path) -> None:
    queues = load(write(tmp_path, "queues: {backfill: null}"), {}).queues
    assert {name: queue.preempts for name, queue in queues.items()} == {
        "interactive": {"batch"},
        "batch": set(),
    }
    with pytest.raises(SettingsError, match=r"batch preempts 'backfill', which is not among the queues"):
        load(write(tmp_path, "queues: {backfill: null, batch: {preempts: [backfill]}}"), {})
    with pytest.raises(
        SettingsError, match=r"extender\.yaml: queues\.bakfill: null removes a queue, but no queue"
    ):
        load(write(tmp_path, "queues: {bakfill: null}"), {})


def test_the_environment_changes_the_queues_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "queues: {batch: {min_runtime: 60, grace: 30}, a: {}}")
    queues = load(path, {"STOWAGE_QUEUES": "{batch: {grace: 90}, a: null}"}).queues
    assert queues["batch"] == DEFAULT_QUEUES["batch"].model_copy(update={"min_runtime": 60, "grace": 90})
    assert queues.keys() == DEFAULT_QUEUES.keys()


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("90", 90), ("1.5", 1.5)]
)
def test_seconds_may_be_durations(tmp_path: Path, text: str, seconds: float) -> None:
    path = write(tmp_path, f"shield_seconds: {text}\nqueues: {{batch: {{min_runtime: {text}}}}}")
    settings = load(path, {"STOWAGE_SCALE_UP_WAIT_SECONDS": text})
    found = settings.shield_seconds, settings.scale_up_wait_seconds, settings.queues["batch"].min_runtime
    assert found == (seconds,) * 3


def test_whole_seconds_may_be_durations(tmp_path: Path) -> None:
    settings = load(write(tmp_path, "lease_seconds: 1m\nqueues: {batch: {grace: 90s}}"), {})
    assert (settings.lease_seconds, settings.queues["batch"].grace) == (60, 90)
    with pytest.raises(
        SettingsError, match=r"lease_seconds: invalid value '1500ms'; expected a whole number"
    ):
        load(write(tmp_path, "lease_seconds: 1500ms"), {})


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"preempts": ["1.30"], "min_runtime": 60, "max_duration": null, "grace": 30}, "1.30": {}}',
        "{a: {preempts: [1.30], min_runtime: 60, max_duration: null, grace: 30}, 1.30: {}}",
        "a: {preempts: [1.30], min_runtime: 6e1, grace: 30, restartable: false}\n1.30: {max_duration: ~}",
    ],
)
def test_queues_of_the_environment_are_yaml_or_json(text: str) -> None:
    expected = Queue(preempts=frozenset({"1.30"}), min_runtime=60, grace=30)
    assert queues_of(text) == {**DEFAULT_QUEUES, "a": expected, "1.30": Queue()}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (
            "a: {preempts: [b]}\nc: {}",
            "a preempts 'b', which is not among the queues (interactive, batch, backfill, a, c)",
        ),
        ("a: {preempts: [b]}\nb: {preempts: [a]}", "these queues may preempt each other in a cycle: "),
        ("a: {preempts: [b]}\nb: {preempts: [c]}\nc: {preempts: [a]}", "in a cycle: "),
        ("a: {priority_classes: [x]}\nb: {priority_classes: [x]}", "PriorityClass 'x' names both a and b"),
        ("a: {aliases: [x]}\nb: {aliases: [x]}", "alias 'x' names both a and b"),
        ("a: {aliases: [b]}\nb: {}", "alias 'b' names both b and a"),
        ("a: {min_runtime: 60, max_duration: 59}", "max_duration of a is shorter than its min_runtime"),
        ("a b: {}", "'a b' is not a valid label value"),
        ('"": {}', "'' is not a valid label value"),
        ("a: {min_runtime: soon}", "queues.a.min_runtime: 'soon' is not a duration such as 1h30m"),
        ("a: {colour: blue}", "queues.a.colour: unknown setting"),
        ("a: {grace: 1.5}", "queues.a.grace: Input should be a valid integer"),
        ("a: 5", "queues.a: Input should be a valid dictionary"),
        ("[a, b]", "invalid value ['a', 'b']; expected queues by name"),
    ],
)
def test_contradictory_queues_are_refused(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        queues_of(text)
    assert str(caught.value).startswith("environment variable STOWAGE_QUEUES: queues")
    assert part in str(caught.value)
    indented = "queues:\n" + "".join(f"  {line}\n" for line in text.splitlines())
    path = write(tmp_path, indented)
    with pytest.raises(SettingsError) as caught:
        load(path, {})
    assert str(caught.value).startswith(f"{path}: queues")
    assert part in str(caught.value)


def test_a_queue_may_preempt_itself_at_lower_priority() -> None:
    assert queues_of("a: {preempts: [a]}")["a"].preempts == {"a"}


@pytest.mark.parametrize(("text", "mode"), [("off", "off"), ("on", "on"), ("'on'", "on"), ("recommend",) * 2])
def test_the_mode_of_the_evictor_may_look_like_a_boolean(tmp_path: Path, text: str, mode: str) -> None:
    path = write(tmp_path, f"evictor: {text}\nevictor_lease: gpu/stowage-evictor\n")
    assert load(path, {}).evictor == mode
    assert load(None, {"STOWAGE_EVICTOR": text, "STOWAGE_LEADER_ELECTION": "gpu/stowage"}).evictor == mode


def test_reservations_need_the_config_map(tmp_path: Path) -> None:
    assert load(write(tmp_path, "reserve: off"), {}).reserve == "off"
    with pytest.raises(SettingsError, match="reserve: needs shield_configmap"):
        load(write(tmp_path, "reserve: limits\nevictor_lease: gpu/stowage-evictor\n"), {})


@pytest.mark.parametrize(
    "line",
    ["evictor: on", "evictor: recommend", "shield_configmap: gpu/shield", "kueue_priority_boost: true"],
)
def test_the_evictor_needs_a_lease(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, f"shortlist: 8\n{line}\n")
    key = line.partition(":")[0]
    with pytest.raises(SettingsError, match=rf"{key}: needs evictor_lease or leader_election") as caught:
        load(path, {})
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(SettingsError, match="evictor: invalid value 'maybe'; expected off, recommend or on"):
        load(write(tmp_path, "evictor: maybe"), {})
