"""Builds etcd, kwok and the programs of Kubernetes from their published Go modules, once.

Run it as `python -m tests.e2e.controlplane.build`, with the names of programs if not all are needed.
The environment variable K8S chooses a release of Kubernetes,
such as 1.34, of those in `modules`; the newest is the default. The binaries are kept under
`${XDG_CACHE_HOME:-~/.cache}/stowage/`, in a directory named by a hash of everything that determines
their content, so a later run finds them without Go.
"""

import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parent / "modules"
GO_VERSION = (1, 26)
KUBERNETES = "k8s.io/kubernetes"


@dataclass(slots=True, frozen=True)
class Component:
    """One program: its package, and the module (a directory in `MODULES`) that pins its version."""

    name: str
    module: str
    package: str

    @property
    def directory(self) -> Path:
        """Of its module; that of Kubernetes is the release under test."""
        return MODULES / (f"kubernetes-{release()}" if self.module == "kubernetes" else self.module)


# The fastest builds first, so that a broken set-up fails early.
COMPONENTS = (
    Component("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Component("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Component("kubectl", "kubernetes", f"{KUBERNETES}/cmd/kubectl"),
    Component("helm", "helm", "helm.sh/helm/v4/cmd/helm"),
    Component("kube-scheduler", "kubernetes", f"{KUBERNETES}/cmd/kube-scheduler"),
    Component("kube-apiserver", "kubernetes", f"{KUBERNETES}/cmd/kube-apiserver"),
    Component("kube-controller-manager", "kubernetes", f"{KUBERNETES}/cmd/kube-controller-manager"),
)


class BuildError(Exception):
    """Why the build failed, in one line that says what to do."""


def releases() -> list[str]:
    """Those that can be built, such as "1.37", the oldest first."""
    found = (directory.name.partition("-")[2] for directory in MODULES.glob("kubernetes-*"))
    return sorted(found, key=lambda one: [int(part) for part in one.split(".")])


def release() -> str:
    """The release of Kubernetes under test. Raises BuildError if K8S names none that can be built."""
    known = releases()
    chosen = os.environ.get("K8S") or known[-1]
    if chosen not in known:
        raise BuildError(f"K8S={chosen} cannot be built; there are {', '.join(known)}")
    return chosen


def kubernetes_version(of: str = "") -> str:
    """The version of a release, such as "v1.36.5", which only the go.mod of its module pins; of the one under
    test if none is named."""
    pinned = MODULES / f"kubernetes-{of or release()}" / "go.mod"
    found = re.search(rf"^require {KUBERNETES} (v\S+)", pinned.read_text(), re.M)
    if found is None:
        raise BuildError(f"{pinned} does not require {KUBERNETES}")
    return found[1]


def flags(component: Component) -> list[str]:
    """What etcd, kwok and helm are built with is the same for each release, so they are built once."""
    common = ["-trimpath", "-buildvcs=false", "-ldflags"]
    if component.module != "kubernetes":
        return [*common, "-s -w"]
    version = kubernetes_version()
    major, minor, _ = version.removeprefix("v").split(".", 2)
    # Without its version kube-scheduler negotiates features and API versions wrongly.
    stamp = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    symbols = [f"-X k8s.io/component-base/version.{key}={value}" for key, value in stamp.items()]
    return [*common, " ".join(["-s -w", *symbols])]


def binary(component: Component) -> Path:
    """The path of the built program, whether it exists or not."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256("\0".join([platform.system(), platform.machine(), *flags(component)]).encode())
    for part in ("go.mod", "go.sum"):
        digest.update((component.directory / part).read_bytes())
    return cache / "stowage" / f"{component.directory.name}-{digest.hexdigest()[:12]}" / component.name


def missing(*names: str) -> list[Component]:
    """Of these programs, or of all."""
    wanted = [component for component in COMPONENTS if not names or component.name in names]
    return [component for component in wanted if not binary(component).exists()]


def require_go() -> None:
    """Raises BuildError if there is no Go of `GO_VERSION` or later.

    This runs in the module's directory, so that Go downloads the toolchain named there, if it may.
    """
    wanted = ".".join(map(str, GO_VERSION))
    lacks = f"make e2e needs Go {wanted} to build a control plane (https://go.dev/dl/)"
    try:
        asked = subprocess.run(
            ["go", "env", "GOVERSION"],
            cwd=MODULES / f"kubernetes-{release()}",
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        raise BuildError(f"{lacks}, and there is no `go` on the PATH") from None
    found = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    if found is None or (int(found[1]), int(found[2])) < GO_VERSION:
        raise BuildError(f"{lacks}, and found {(asked.stdout or asked.stderr).strip() or 'none'}")


def build(component: Component) -> None:
    """Compiles one component into the cache, and shows its progress."""
    target = binary(component)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    command = ["go", "build", "-v", *flags(component), "-o", str(unfinished), component.package]
    environment = os.environ | {"CGO_ENABLED": "0"}  # no C compiler needed
    started = time.monotonic()
    with subprocess.Popen(
        command, cwd=component.directory, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        tail = show_progress(component.name, started, process.stderr)
    if process.returncode != 0:
        unfinished.unlink(missing_ok=True)
        raise BuildError(f"go could not build {component.name}:\n{tail}")
    unfinished.rename(target)  # atomic: an interrupted build never looks finished
    say(f"{component.name}: built in {clock(started)}, {target}", last=True)


def show_progress(name: str, started: float, lines: Iterator[str]) -> str:
    """Counts the packages that `go build -v` names; returns the last lines, which have the errors."""
    tail: list[str] = []
    shown = 0.0
    for count, line in enumerate(lines, start=1):
        tail = [*tail[-19:], line]
        if time.monotonic() - shown >= (0.2 if sys.stdout.isatty() else 15):
            shown = time.monotonic()
            say(f"{name}: {count} packages compiled or fetched, {clock(started)}", last=False)
    return "".join(tail)


def say(text: str, *, last: bool) -> None:
    """On a terminal, rewrites one line; elsewhere, prints plain lines."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="\n" if last else "", flush=True)
    else:
        print(text, flush=True)


def clock(started: float) -> str:
    seconds = int(time.monotonic() - started)
    return f"{seconds // 60}:{seconds % 60:02}"


def main(*programs: str) -> int:
    started = time.monotonic()
    try:
        todo = missing(*programs)
        if not todo:
            return 0
        require_go()
        os.nice(10)  # the build uses every core for minutes: keep the machine usable
        names = ", ".join(component.name for component in todo)
        print(
            f"Building {names} for the end-to-end tests. A cold build takes minutes, and happens once.",
            flush=True,
        )
        for component in todo:
            build(component)
    except (BuildError, KeyboardInterrupt) as problem:
        print(str(problem) or "interrupted", file=sys.stderr)
        return 1
    print(f"Built ({clock(started)}).")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
