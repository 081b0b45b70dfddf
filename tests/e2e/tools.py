"""helm and kubectl, built by controlplane/build.py."""

import json
import subprocess
from pathlib import Path

from .controlplane.api import Object
from .controlplane.build import COMPONENTS, binary
from .controlplane.cluster import ControlPlane

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
NAMESPACE = "stowage-system"


def program(name: str) -> Path:
    return next(binary(component) for component in COMPONENTS if component.name == name)


class Tools:
    """Commands with all rights, as an administrator gives them. One that fails raises ToolError."""

    def __init__(self, plane: ControlPlane) -> None:
        self._environment = {
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(plane.directory),  # caches of both programs
            "PATH": "/usr/bin:/bin",
        }

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        return self._run("kubectl", *arguments, stdin=stdin)

    def helm(self, *arguments: str) -> str:
        return self._run("helm", *arguments)

    def install(self, *values: str, wait: bool = True) -> None:
        """Installs or upgrades the chart with these `--set` arguments."""
        options = [f"--set={value}" for value in ("image.repository=registry.example.com/stowage", *values)]
        options += ["--wait", "--timeout=60s"] if wait else []
        self.helm(
            "upgrade", "--install", "stowage", str(CHART), f"-n={NAMESPACE}", "--create-namespace", *options
        )

    def shell(self, command: str, directory: Path) -> str:
        """Runs one line of a page, with helm and kubectl on the PATH."""
        path = ":".join([*{str(program(name).parent) for name in ("helm", "kubectl")}, "/usr/bin", "/bin"])
        environment = self._environment | {"PATH": path}
        done = subprocess.run(
            ["sh", "-c", command], cwd=directory, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ToolError(f"{command}: {done.stderr}")
        return done.stdout

    def get(self, *arguments: str) -> Object:
        found: Object = json.loads(self.kubectl("get", "-o=json", *arguments))
        return found

    def _run(self, name: str, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program(name), *arguments],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ToolError(f"{name} {' '.join(arguments)}: {done.stderr}")
        return done.stdout


def commands(page: str, name: str) -> list[str]:
    """The lines of the block after `<!-- tested: name -->` in a page of docs/."""
    block = (ROOT / "docs" / page).read_text().split(f"<!-- tested: {name} -->\n```\n")[1].split("```")[0]
    return block.replace("\\\n", "").splitlines()


class ToolError(Exception):
    """What helm or kubectl wrote when it failed."""
