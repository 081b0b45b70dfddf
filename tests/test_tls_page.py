"""The commands of docs/tls.md that need no cluster."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from extender.server.tls import TlsFiles, load

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tls.md").read_text()
SECRETS = (ROOT / "docs" / "install.md").read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_certificates_made_with_openssl(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    subprocess.run(["sh", "-ec", recipe], cwd=tmp_path, check=True, capture_output=True)
    load(TlsFiles(tmp_path / "stowage.crt", tmp_path / "stowage.key", tmp_path / "ca.crt"))
    for name, purpose in (("stowage", "sslserver"), ("stowage-scheduler", "sslclient")):
        command = ["openssl", "verify", "-CAfile", "ca.crt", "-purpose", purpose]
        command += ["-verify_hostname", f"{name}.stowage-system.svc", f"{name}.crt"]
        found = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert found.stdout == f"{name}.crt: OK\n"
        command[5] = "sslclient" if purpose == "sslserver" else "sslserver"
        assert subprocess.run(command, cwd=tmp_path, check=False, capture_output=True).returncode
    files = set(re.findall(r"--from-file=(?:\S+=)?(\S+\.(?:crt|key))", SECRETS))
    assert files
    assert all((tmp_path / name).exists() for name in files)


def test_the_page_explains_every_argument() -> None:
    arguments = set(
        re.findall(r'"(--(?:tls|client)-[a-z]+)"', (ROOT / "extender" / "cli" / "arguments.py").read_text())
    )
    assert arguments == {"--tls-cert", "--tls-key", "--client-ca", "--client-name"}
    assert all(f"| `{name} " in PAGE or f"`, `{name} " in PAGE for name in arguments)
