"""A Stowage with TLS, a kube-scheduler that calls it, and the certificates of both as mounted Secrets."""

import socket
import ssl
from pathlib import Path

import yaml

from tests.certificates import Authority, Pair, Secret
from tests.scheduler_config import with_tls

from .controlplane.api import Object
from .controlplane.cluster import ControlPlane
from .controlplane.process import eventually, free_port
from .stowage import SCHEDULERS, Stowage

CHECK_S = 10  # between two looks at the files (extender/server/tls.py)


class TlsStowage(Stowage):
    """Answers kube-scheduler at `verbs_url` over mutual TLS, and the tests at `url`."""

    def __init__(
        self,
        plane: ControlPlane,
        kubeconfig: Path,
        secret: Secret,
        ca: Authority,
        *,
        name: str = "stowage-tls",
        awaits: str = "/readyz",
        **settings: str,
    ) -> None:
        super().__init__(plane, kubeconfig, name=name, awaits=awaits, **settings)
        self.verbs_url = self.url.replace("http://", "https://")
        debug_port = free_port()
        self.url = f"https://127.0.0.1:{debug_port}"
        self.verify = ssl.create_default_context(cadata=ca.pem.decode())
        self.process.command += [
            f"--debug-port={debug_port}",
            f"--tls-cert={secret.path('tls_crt')}",
            f"--tls-key={secret.path('tls_key')}",
            f"--client-ca={secret.path('ca_crt')}",
        ]

    def preempts(self) -> bool:
        """The tests have no client certificate."""
        return True

    def serves(self, pair: Pair) -> bool:
        return serves(self.url, pair)

    def follows(self, pair: Pair) -> None:
        """Wait until it serves a certificate that was written just now."""
        eventually(lambda: self.serves(pair), within_s=6 * CHECK_S, what="the new certificate is served")


def serves(url: str, pair: Pair) -> bool:
    """Whether a new connection to this port of loopback gets this certificate."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = int(url.rpartition(":")[2])
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain) as connection,
    ):
        served = connection.getpeercert(binary_form=True)
    return served == ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


def tls_configuration(url: str, secret: Secret, file: str = "second-scheduler.yaml") -> Object:
    """The shipped configuration with its lines for TLS, and the files where the test has them."""
    loaded: Object = yaml.safe_load(with_tls(SCHEDULERS / file))
    (extender,) = loaded["extenders"]
    assert extender["urlPrefix"].startswith("https:")
    tls = extender["tlsConfig"]
    for key in ("caFile", "certFile", "keyFile"):
        tls[key] = str(secret.directory / Path(tls[key]).name)
    extender |= {"urlPrefix": f"{url}/scheduler", "bindVerb": "bind"}
    # A test waits for the next attempt after a failed one.
    return loaded | {"leaderElection": {"leaderElect": False}, "podMaxBackoffSeconds": 2}
