"""The commands of the pages that need a cluster, in the order of each page, against the real API server.

Which those are: tests/docs/classes.py. Deployments and Jobs make pods, which kwok runs; what the pods would
do is tested elsewhere.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.docs import classes, syntax
from tests.docs.collect import ROOT, Block, Command, all_commands, blocks, pages
from tests.docs.run import environment, prepare

from .controlplane.api import Api
from .controlplane.cluster import ControlPlane
from .rush import GPU, LABEL_SETS
from .tools import NAMESPACE, Tools, program
from .workload import node, pod

CONTROLLERS = [
    f"{name}-controller"
    for name in ("deployment", "replicaset", "job", "garbage-collector", "serviceaccount")
]
WORDS = {"ACCOUNT": "default"}
"""What a reader puts in, and what we do."""
SUBCOMMANDS = {
    "create": ["configmap", "secret generic", "token", "clusterrolebinding", "rolebinding"],
    "rollout": ["status", "restart"],
}
ENDLESS = ("--watch",)
PAGES = sorted({one.block.page for one in all_commands() if one.text in classes.IN_E2E})


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ExitStack() as stack:
        plane = stack.enter_context(ControlPlane(tmp_path_factory.mktemp("docs")))
        stack.enter_context(plane.controller_manager(CONTROLLERS))
        yield plane


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    """The cluster of the reader: a GPU node, and pods with the names of the pages."""
    plane.api.create(node("gpu-1", {GPU: 8}, labels=LABEL_SETS["h100-sxm-8-whole"]))
    for name in ("my-pod", "backfill-7", "notebook-1"):
        plane.api.create(pod(name, {GPU: 1}))
    yield plane.api
    plane.api.clean_up()


@pytest.fixture
def tools(plane: ControlPlane, api: Api) -> Iterator[Tools]:
    tools = Tools(plane)
    yield tools
    tools.helm("uninstall", "stowage", f"-n={NAMESPACE}", "--ignore-not-found")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    prepare(tmp_path)
    return tmp_path


def namespace(tools: Tools, name: str) -> None:
    manifest = f'{{"apiVersion": "v1", "kind": "Namespace", "metadata": {{"name": "{name}"}}}}'
    tools.kubectl("apply", "-f-", stdin=manifest)


def a_pod(tools: Tools, where: str) -> None:
    namespace(tools, where)
    one = pod("my-pod", {GPU: 1})
    one["metadata"]["namespace"] = where
    tools.kubectl("apply", "-f-", stdin=json.dumps(one))


def a_pod_in_my_namespace(tools: Tools, directory: Path) -> None:
    a_pod(tools, "my-namespace")


def hami(tools: Tools, directory: Path) -> None:
    tools.kubectl("create", "deployment", "hami-scheduler", "--image=none", "-n=kube-system")
    a_pod(tools, "research")


def installed(tools: Tools, directory: Path) -> None:
    """Twice, so that there is a revision to go back to."""
    for tag in ("0.1.0", "0.1.1"):
        tools.install(f"image.tag={tag}", wait=False)


def the_job(tools: Tools, directory: Path) -> None:
    (directory / "job.yaml").write_text((ROOT / "deploy/examples/checkpointing/job.yaml").read_text())


PREPARED: dict[str, Callable[[Tools, Path], None]] = {
    "deploy/examples/checkpointing/README.md": the_job,
    "docs/install.md": a_pod_in_my_namespace,
    "docs/migrate.md": hami,
    "docs/operations.md": installed,
    "docs/pending.md": a_pod_in_my_namespace,
}


def manifests() -> list[Block]:
    """Blocks of YAML that are manifests. Kinds of a CRD that is not here are left out."""
    found = [block for page in pages() for block in blocks(page) if block.language == "yaml"]
    return [one for one in found if re.search(r"^kind: ", one.text, re.MULTILINE)]


def run(command: Command, plane: ControlPlane, directory: Path) -> None:
    """As the reader does it, with all rights."""
    text = re.sub("|".join(WORDS), lambda found: WORDS[found[0]], command.text)
    endless = text.endswith(ENDLESS)
    reader = environment(directory)
    path = ":".join([*{str(program(name).parent) for name in ("helm", "kubectl")}, reader["PATH"]])
    reader |= {"PATH": path, "KUBECONFIG": str(plane.kubeconfig), "HOME": str(plane.directory)}
    done = subprocess.run(
        ["bash", "-c", f"timeout 5 {text}" if endless else text],
        cwd=directory,
        env=reader,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 or (endless and done.returncode == 124), f"{command}\n{done.stderr}"
    assert done.stdout or done.stderr or ">" in text, command


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_the_page_work(plane: ControlPlane, tools: Tools, directory: Path, page: str) -> None:
    if page in PREPARED:
        PREPARED[page](tools, directory)
    commands = [one for one in all_commands() if one.block.page == page and one.text in classes.IN_E2E]
    for command in commands:
        run(command, plane, directory)
        if ">" in command.text:
            assert (directory / command.text.split()[-1]).stat().st_size > 1000


@pytest.mark.parametrize("block", manifests(), ids=str)
def test_the_api_server_takes_the_manifests_of_the_pages(
    plane: ControlPlane, tools: Tools, directory: Path, block: Block
) -> None:
    """The stowage of a kustomization is the clone. Its images are replaced as it says."""
    if "kind: Kustomization" in block.text:
        (directory / "kustomization.yaml").write_text(block.text)
        shutil.copytree(ROOT / "deploy", directory / "stowage" / "deploy")
        manifests = tools.kubectl("kustomize", str(directory))
        assert all(
            f"image: {one['newName']}:" in manifests for one in yaml.safe_load(block.text)["images"][:1]
        )
        namespace(tools, NAMESPACE)
    else:
        manifests = block.text
    known = set(tools.kubectl("api-resources", "--no-headers").split())
    for one in yaml.safe_load_all(manifests):
        if one["kind"] in known:
            tools.kubectl("apply", "--dry-run=server", "--validate=strict", "-f-", stdin=json.dumps(one))


@pytest.mark.parametrize("verb", syntax.KUBECTL)
def test_kubectl_has_these_flags(verb: str) -> None:
    known = help_of("kubectl", verb, "--help") | help_of("kubectl", "options")
    for subcommand in SUBCOMMANDS.get(verb, ()):
        known |= help_of("kubectl", verb, *subcommand.split(), "--help")
    assert {*syntax.KUBECTL[verb].split(), *syntax.KUBECTL_GLOBAL} <= known


@pytest.mark.parametrize("verb", syntax.HELM)
def test_helm_has_these_flags(verb: str) -> None:
    assert set(syntax.HELM[verb].split()) <= help_of("helm", verb, "--help")


def help_of(name: str, *arguments: str) -> set[str]:
    done = subprocess.run([program(name), *arguments], capture_output=True, text=True, check=True)
    return set(re.findall(r"(?<![\w-])(--?[A-Za-z][\w-]*)", done.stdout))
