"""Configuration, the server's version and binds, against a real HTTP server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException

from extender.cli.cluster_args import source_of as source_of_arguments
from extender.k8s.objects import Pod
from extender.source.apiserver import KubeSource, from_kubeconfig
from extender.source.errors import BindConflict, BindError, PodNotFound, Unavailable, Unreachable
from extender.source.rest import RestClient
from tests.extender.apiserver import PATIENT, ApiServer, pod, source_of


async def test_bind_sets_node_and_annotations_of_the_pod(api: ApiServer, tmp_path: Path) -> None:
    api.put(pod("p0"))
    source = source_of(api, tmp_path)
    await source.bind(Pod("ml", "p0", "u-p0"), "n1", {"stowage.dev/gpu": "3"})
    bound = api.pods.objects["ml/p0"]
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"stowage.dev/gpu": "3"}
    with pytest.raises(BindConflict, match="already assigned"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n2")


async def test_bind_refused(api: ApiServer, tmp_path: Path) -> None:
    api.put(pod("p0"))
    source = source_of(api, tmp_path)
    with pytest.raises(BindConflict, match="UID in precondition"):
        await source.bind(Pod("ml", "p0", "another"), "n1")
    with pytest.raises(PodNotFound, match='pods "p1" not found'):
        await source.bind(Pod("ml", "p1", "u-p1"), "n1")
    api.refusal = (403, "pods/binding is forbidden")
    with pytest.raises(BindError, match="forbidden") as caught:
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")
    assert not isinstance(caught.value, BindConflict | PodNotFound | Unreachable)
    api.refusal = (503, "etcd is unavailable")
    with pytest.raises(Unreachable, match="etcd is unavailable"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")


async def test_look_up_returns_the_current_pod(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    assert await source.look_up(Pod("ml", "p0", "u-p0")) is None
    api.put(pod("p0"))
    await source.bind(Pod("ml", "p0", "u-p0"), "n1", {"stowage.dev/gpu-indices": "3"})
    found = await source.look_up(Pod("ml", "p0", "u-p0"))
    assert found is not None
    assert (found.uid, found.node_name) == ("u-p0", "n1")
    assert found.annotations == {"stowage.dev/gpu-indices": "3"}
    api.stop()
    with pytest.raises(Unreachable, match="did not answer"):
        await source.look_up(Pod("ml", "p0", "u-p0"))
    api.start()


async def test_pods_on_returns_the_current_pods_of_a_node(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    for name, node in (("p0", "n1"), ("p1", "n2"), ("p2", "n1"), ("p3", "n1"), ("p4", "")):
        api.put(pod(name, node))
    assert [one.name for one in await source.pods_on("n1")] == ["p0", "p2", "p3"]
    assert api.requests == [("/api/v1/pods", {"fieldSelector": "spec.nodeName=n1"})]
    for fault in ("500", "hangup", "garbage", "silent"):
        api.script["/api/v1/pods"].append(fault)
        with pytest.raises(Unreachable, match="cannot be read"):
            await source.pods_on("n1")


async def test_a_binding_is_not_sent_after_its_deadline(api: ApiServer, tmp_path: Path) -> None:
    """All threads are busy: the caller has given up, and may be asking another replica."""
    api.put(pod("p0"))
    source = source_of(api, tmp_path, timeouts=replace(PATIENT, bind=0.2))
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        pool.submit(time.sleep, 0.5)
        with pytest.raises(BindError, match="was not sent") as caught:
            await source.bind(Pod("ml", "p0", "u-p0"), "n1")
    assert not isinstance(caught.value, Unreachable)
    assert api.requests == []
    assert not api.pods.objects["ml/p0"]["spec"]["nodeName"]


async def test_bind_without_a_server(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    api.stop()
    with pytest.raises(Unreachable, match="did not answer"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")
    api.start()


async def test_binds_share_a_connection(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    for number in range(5):
        api.put(pod(f"p{number}"))
        await source.bind(Pod("ml", f"p{number}", f"u-p{number}"), "n1")
    assert api.connections == 1


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        ({"major": "1", "minor": "36+"}, "1.36"),
        ({"major": "1", "minor": "9"}, "1.9"),
        ({}, ""),
        ({"major": 1, "minor": None}, ""),
    ],
)
def test_the_version_of_the_server(
    api: ApiServer, tmp_path: Path, answer: dict[str, Any], version: str
) -> None:
    api.version = answer
    assert source_of(api, tmp_path).server_version() == version


def test_the_version_of_an_unreachable_server(api: ApiServer, tmp_path: Path) -> None:
    source = source_of(api, tmp_path)
    api.stop()
    assert source.server_version() == ""
    api.start()


def test_an_exec_plugin_may_supply_the_token(api: ApiServer, tmp_path: Path) -> None:
    credential = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
    text = json.dumps(credential | {"status": {"token": "from-a-plugin"}})
    command = {"command": sys.executable, "args": ["-c", f"print({text!r})"]}
    plugin = {"apiVersion": credential["apiVersion"], "interactiveMode": "Never", **command}
    assert source_of(api, tmp_path, {"exec": plugin}).server_version() == "1.36"
    assert api.tokens == {"Bearer from-a-plugin"}


async def test_a_token_that_cannot_be_renewed_counts_as_no_answer(api: ApiServer) -> None:
    def renew(_: object) -> None:
        raise ConfigException("Token file exists but empty.")

    configuration = Configuration(host=api.url, api_key={"BearerToken": "old"})
    configuration.refresh_api_key_hook = renew  # type: ignore[assignment]
    source = KubeSource(RestClient(ApiClient(configuration)), "test")
    assert source.server_version() == ""
    with pytest.raises(Unreachable, match="Token file exists but empty"):
        await source.bind(Pod("ml", "p0", "u-p0"), "n1")


@pytest.mark.parametrize("content", ["", "a: [", "just words", "kind: Config", "current-context: nowhere"])
def test_an_invalid_kubeconfig(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(content)
    with pytest.raises(Unavailable, match=f"kubeconfig {path}: "):
        from_kubeconfig(path)


def test_a_missing_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"kubeconfig .*missing: "):
        from_kubeconfig(tmp_path / "missing")


def test_which_cluster_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    args = Namespace(snapshot=None, kubeconfig=None, context=None, example=False)
    with pytest.raises(Unavailable, match="no cluster: pass --kubeconfig FILE, --snapshot FILE"):
        source_of_arguments(args)
    example = Namespace(snapshot=None, kubeconfig=None, context=None, example=True)
    assert source_of_arguments(example).describe().startswith("the bundled example")
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(CONFIG % "default")
    assert source_of_arguments(args).describe().endswith("/.kube/config at https://default:6443")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(Unavailable, match="service account of the pod: "):
        source_of_arguments(args)
    (tmp_path / "mine").write_text(CONFIG % "mine")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{tmp_path / 'mine'}")
    assert source_of_arguments(args).describe().endswith(" at https://mine:6443")


CONFIG = """
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
users: [{name: u, user: {token: t}}]
clusters: [{name: k, cluster: {server: "https://%s:6443"}}]
"""
