"""A Kubernetes control plane on loopback: etcd, kube-apiserver, kwok for kubelets; kube-scheduler and
kube-controller-manager on demand.

It writes only below one directory. Without kube-controller-manager there are no Deployments, Jobs, status of
disruption budgets or garbage collection, and namespaces cannot be deleted.
"""

import os
import secrets
import ssl
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import yaml

from .api import Api, Object
from .build import COMPONENTS, binary
from .process import Process, free_port

HERE = Path(__file__).parent
TOKEN = secrets.token_hex()
# Without the node lifecycle controller nodes need no heartbeats.
CONTROLLERS = (
    "disruption-controller",
    "job-controller",
    "replicaset-controller",
    "taint-eviction-controller",
)
# An RFC 5915 private key on P-256 is these bytes around 32 random bytes; the public half is optional.
EC_KEY = bytes.fromhex("30310201010420"), bytes.fromhex("a00a06082a8648ce3d030107")


class ControlPlane:
    """A context manager. Leaving it stops all processes, in reverse order of their start."""

    def __init__(self, directory: Path, **apiserver: object) -> None:
        """`apiserver`: more flags of kube-apiserver, with _ for -. kube-scheduler has its feature gates."""
        self.directory = directory
        self._feature_gates = apiserver.get("feature_gates", "")
        self.logs = directory / "logs"
        self.kubeconfig = directory / "e2e.kubeconfig"
        self.server = f"https://127.0.0.1:{free_port()}"
        self.etcd_url = f"http://127.0.0.1:{free_port()}"
        self._stack = ExitStack()
        self.etcd = self._etcd()
        self.apiserver = self._apiserver({name.replace("_", "-"): value for name, value in apiserver.items()})

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True)
        self._write_credentials()
        with ExitStack() as stack:
            stack.enter_context(self.etcd)
            stack.enter_context(self.apiserver)
            self.api = stack.enter_context(self.client(TOKEN))
            stack.enter_context(self._kwok())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def scheduler(
        self,
        configuration: Object,
        name: str = "kube-scheduler",
        kubeconfig: Path | None = None,
    ) -> Process:
        """A kube-scheduler, not yet started, with this KubeSchedulerConfiguration and a kubeconfig (ours).

        Several schedulers need different names."""
        connection = configuration.get("clientConnection", {})
        connection |= {"kubeconfig": str(kubeconfig or self.kubeconfig)}
        file = self.directory / f"{name}.yaml"
        file.write_text(yaml.safe_dump(configuration | {"clientConnection": connection}))
        port = free_port()
        flags = {
            "config": file,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "authorization-always-allow-paths": "/healthz,/readyz,/livez,/metrics,/configz",
            "feature-gates": self._feature_gates,
        }
        return self._process("kube-scheduler", flags, ready=f"https://127.0.0.1:{port}/readyz", name=name)

    def controller_manager(self, controllers: Iterable[str] = CONTROLLERS) -> Process:
        """A kube-controller-manager, not yet started, that runs these controllers."""
        port = free_port()
        flags: dict[str, object] = {
            "kubeconfig": self.kubeconfig,
            "controllers": ",".join(controllers),
            "leader-elect": False,
            "bind-address": "127.0.0.1",
            "secure-port": port,
            "authentication-skip-lookup": True,  # it would ask for a ConfigMap that nothing here writes
            "kube-api-qps": 300,  # the defaults are for clusters that change slowly
            "kube-api-burst": 600,
        }
        return self._process("kube-controller-manager", flags, ready=f"https://127.0.0.1:{port}/healthz")

    def process(self, name: str, command: list[str | Path], *, ready: str) -> Process:
        """A program, not yet started, with a log in `logs`; ready when the URL `ready` answers 200."""
        return Process(name, command, log=self.logs / f"{name}.log", ready=lambda: answers(ready))

    def client(self, token: str) -> Api:
        """A client with the rights of this token, to use in a `with` block. (`api` has all rights.)"""
        return Api(self.server, token=token, ca=self._certificate)

    def kubeconfig_for(self, user: str, token: str) -> Path:
        """Writes the kubeconfig of a user with this token."""
        cluster = {"server": self.server, "certificate-authority": str(self._certificate)}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": user}}],
            "current-context": "e2e",
        }
        file = self.directory / f"{user}.kubeconfig"
        file.write_text(yaml.safe_dump(kubeconfig))
        return file

    def _process(self, what: str, flags: dict[str, object], *, ready: str, name: str = "") -> Process:
        program = next(binary(component) for component in COMPONENTS if component.name == what)
        return self.process(
            name or what, [program, *(f"--{flag}={value}" for flag, value in flags.items())], ready=ready
        )

    def _etcd(self) -> Process:
        peer_url = f"http://127.0.0.1:{free_port()}"
        flags: dict[str, object] = {
            "data-dir": self.directory / "etcd",
            "listen-client-urls": self.etcd_url,
            "advertise-client-urls": self.etcd_url,
            "listen-peer-urls": peer_url,
            "initial-advertise-peer-urls": peer_url,
            "initial-cluster": f"default={peer_url}",
            "unsafe-no-fsync": True,  # test data need not survive a crash of the machine
        }
        return self._process("etcd", flags, ready=f"{self.etcd_url}/health")

    def _apiserver(self, more: dict[str, object]) -> Process:
        flags: dict[str, object] = {
            "etcd-servers": self.etcd_url,
            "bind-address": "127.0.0.1",
            "secure-port": self.server.rpartition(":")[2],
            "cert-dir": self._certificate.parent,  # a self-made certificate, kept across restarts
            "token-auth-file": self.directory / "tokens.csv",
            "authorization-mode": "RBAC",
            "delete-collection-workers": 8,
            "service-account-issuer": self.server,
            "service-account-key-file": self._key,
            "service-account-signing-key-file": self._key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "endpoint-reconciler-type": "none",  # it needs an address that is not loopback
            # These two need controllers that do not run here: one creates the service account of a namespace,
            # the other removes the not-ready taint from a new node.
            "disable-admission-plugins": "ServiceAccount,TaintNodesByCondition",
        }
        return self._process("kube-apiserver", flags | more, ready=f"{self.server}/readyz")

    def _kwok(self) -> Process:
        address = f"127.0.0.1:{free_port()}"
        flags: dict[str, object] = {
            "kubeconfig": self.kubeconfig,
            "config": HERE / "stages.yaml",  # without stages kwok does nothing
            "manage-all-nodes": True,
            "node-lease-duration-seconds": 0,  # nothing here reads the leases
            "v": "WARN",
            "server-address": address,
        }
        return self._process("kwok", flags, ready=f"http://{address}/healthz")

    @property
    def _certificate(self) -> Path:
        return self.directory / "certificates" / "apiserver.crt"

    @property
    def _key(self) -> Path:
        return self.directory / "service-accounts.key"

    def _write_credentials(self) -> None:
        head, curve = EC_KEY
        self._key.write_text(
            ssl.DER_cert_to_PEM_cert(head + os.urandom(32) + curve).replace("CERTIFICATE", "EC PRIVATE KEY")
        )
        (self.directory / "tokens.csv").write_text(f"{TOKEN},e2e,e2e,system:masters\n")
        self.kubeconfig_for("e2e", TOKEN)


def answers(url: str) -> bool:
    """Whether a GET of `url` answers 200. The self-made certificates of our processes are not checked."""
    try:
        return httpx.get(url, verify=False, trust_env=False, timeout=2).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
