"""docs/install.md, "Behind a Service, with mutual TLS": its commands, in an empty cluster."""

import re
import shutil
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually
from .installed import running
from .rush import GPU, LABEL_SETS
from .tools import NAMESPACE, ROOT, Tools, commands
from .workload import node


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        yield stack.enter_context(ControlPlane(tmp_path_factory.mktemp("install-tls")))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_commands_with_tls_place_a_first_pod(plane: ControlPlane, tmp_path: Path) -> None:
    """The certificates are those of docs/tls.md, and kube-scheduler has the file that the page makes."""
    api, tools = plane.api, Tools(plane)
    api.create(node("gpu-1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    for name in ("deploy", "scheduler-config"):
        (tmp_path / name).symlink_to(ROOT / name)
    (recipe,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs/tls.md").read_text(), re.MULTILINE | re.DOTALL)
    lines = [recipe, *commands("install.md", "separate")]
    started = time.monotonic()
    for line in lines:
        tools.shell(line, tmp_path)
    for name, data in tools.get("secret", "stowage-scheduler-tls", f"-n={NAMESPACE}")["data"].items():
        (tmp_path / name).write_bytes(b64decode(data))
    text = (tmp_path / "config.yaml").read_text().replace("/etc/stowage/tls", str(tmp_path))
    with running(plane, tools, "stowage") as stowage:
        configuration = yaml.safe_load(text)
        (extender,) = configuration["extenders"]
        assert extender["urlPrefix"] == f"https://stowage.{NAMESPACE}.svc:8080/scheduler"
        extender["urlPrefix"] = f"{stowage.verbs}/scheduler"
        with plane.scheduler(configuration, "of-the-page"):
            eventually(
                lambda: api.get("Pod", "first")["status"]["phase"] == "Running",
                within_s=60,
                what="first runs",
            )
        print(f"{len(lines)} commands, {time.monotonic() - started:.1f} s until the first pod is placed")
        assert "<title>" in stowage.get("/").text
        assert stowage.get("/debug/fleet").status_code == 401
    assert len(lines) < 10
    assert api.get("Pod", "first")["spec"]["nodeName"] == "gpu-1"
