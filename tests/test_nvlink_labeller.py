"""The labeller of deploy/nvlink-labeller: a real process, and an nvidia-smi that prints known matrices."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from itertools import combinations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.inventory.node_inventory import inventory_of
from packing.model.nvlink import parse_islands
from tests.examples import examples, some
from tests.extender.builders import make_node

ROOT = Path(__file__).parents[1]
LABELLER = ROOT / "deploy" / "nvlink-labeller"
PREFIX = "nvlink.feature.node.kubernetes.io/"
MATRICES: list[dict[str, Any]] = json.loads((ROOT / "tests/data/nvlink-matrices.json").read_text())[
    "matrices"
]
BY_ID = {matrix["id"]: matrix for matrix in MATRICES}
LEGEND = "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"


def _module(name: str) -> ModuleType:
    sys.path.insert(0, str(LABELLER))
    try:
        spec = importlib.util.spec_from_file_location(name, LABELLER / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(LABELLER))


topology = _module("nvlink_topology")
labeller = _module("nvlink_labeller")


def printed(
    matrix: Sequence[str],
    numa: Sequence[object] | None,
    *,
    nics: int = 2,
    tabs: bool = True,
    ansi: bool = True,
) -> str:
    """What ``nvidia-smi topo -m`` prints for a matrix, with NICs and affinities."""
    count = len(matrix)
    names = [f"GPU{i}" for i in range(count)] + [f"NIC{i}" for i in range(nics)]
    affinities = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]
    rows = [["", *names, *affinities]]
    for gpu, row in enumerate(matrix):
        node = "N/A" if numa is None else str(numa[gpu])
        cells = [f" {cell} " if cell == "X" else cell for cell in row.split()]
        rows.append([f"GPU{gpu}", *cells, *["SYS"] * nics, "0-23,96-119", node, "N/A"])
    for nic in range(nics):
        cells = [" X " if other == nic else "PIX" for other in range(nics)]
        rows.append([f"NIC{nic}", *["SYS"] * count, *cells])
    if not tabs:
        return "\n".join("".join(f"{cell.strip():<16}" for cell in row) for row in rows) + LEGEND
    lines = ["\t".join(row) for row in rows]
    if ansi:
        lines[0] = f"\t\x1b[4m{lines[0][1:]}\x1b[0m"
    return "\n".join(lines) + "\n" + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_0\n"


def fake_smi(directory: Path, output: str, *, mig: Sequence[str] = (), code: int = 0) -> Path:
    """An executable that answers as nvidia-smi; ``mig``: the MIG mode of each GPU."""
    program = directory / "nvidia-smi"
    (directory / "topo").write_text(output)
    (directory / "query").write_text("".join(f"{i}, {mode}\n" for i, mode in enumerate(mig)))
    program.write_text(
        f'#!/bin/sh\n[ {code} = 0 ] || {{ echo "Failed to initialize NVML" >&2; exit {code}; }}\n'
        f'cd {directory}\ncase "$*" in "topo -m") cat topo;; --query-gpu=*) cat query;; *) exit 2;; esac\n'
    )
    program.chmod(0o755)
    return program


def arguments(smi: Path, features: Path, *options: str) -> list[str]:
    return ["--nvidia-smi", str(smi), "--nvml", "/no/nvml", "--features", str(features), *options]


def command(*words: Any) -> list[str]:
    return [sys.executable, "-B", str(LABELLER / "nvlink_labeller.py"), *arguments(*words)]


def label_once(tmp_path: Path, output: str, **smi: Any) -> tuple[int, str, dict[str, str]]:
    """Run the program once, in this process; its code and errors, and the labels in the file."""
    features, said = tmp_path / "features.d", io.StringIO()
    features.mkdir(exist_ok=True)
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    with redirect_stderr(said):
        code = labeller.main(arguments(fake_smi(tmp_path, output, **smi), features, "--once"))
    for number, handler in handlers:
        signal.signal(number, handler)
    return code, said.getvalue(), published(features)


def published(features: Path) -> dict[str, str]:
    """The labels that nfd-worker would read: no hidden files, no comments."""
    files = [file for file in features.iterdir() if not file.name.startswith(".")]
    lines = [line for file in files for line in file.read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("name", some(BY_ID, 4))
@pytest.mark.parametrize(
    "form", [{}, {"tabs": False}, {"nics": 0, "ansi": False}], ids=["tabs", "spaces", "bare"]
)
def test_known_machines_get_their_labels(tmp_path: Path, name: str, form: dict[str, Any]) -> None:
    matrix = BY_ID[name]
    gpus = len(matrix["matrix"])
    output = printed(matrix["matrix"], matrix["numa"], **form)
    code, said, labels = label_once(tmp_path, output, mig=["Disabled"] * gpus)
    assert code == 0, said
    assert labels == matrix["labels"]


def test_stowage_reads_what_the_labeller_writes() -> None:
    """A degraded switch: product and count are those of a sound node."""
    labels = BY_ID["hgx-b200-degraded"]["labels"] | {"nvidia.com/gpu.product": "NVIDIA-B200"}
    spec = inventory_of(make_node("n", 8, labels=labels)).spec
    assert spec.islands == ((0, 1, 3, 4, 5, 6, 7),)


def test_lists_and_ranges_of_numa_nodes(tmp_path: Path) -> None:
    matrix = BY_ID["gb200-4"]
    output = printed(matrix["matrix"], ["0,2-17", "0,2-17", "1,18-33", "N/A"])
    assert label_once(tmp_path, output, mig=["Disabled"] * 4)[2][f"{PREFIX}numa"] == "0.0.1.x"


def test_gpus_in_mig_mode_are_no_peers(tmp_path: Path) -> None:
    matrix = BY_ID["hgx-h100-8"]
    modes = ["Enabled", *["Disabled"] * 7]
    *_, labels = label_once(tmp_path, printed(matrix["matrix"], matrix["numa"]), mig=modes)
    assert labels[f"{PREFIX}islands"] == "1-7"
    assert (labels[f"{PREFIX}max-island"], labels[f"{PREFIX}gpus"]) == ("7", "8")


GOOD = printed(BY_ID["gh200-quad"]["matrix"], None)
BROKEN = {
    "empty": "",
    "no devices": "No devices were found\n",
    "html": "<html>502</html>",
    "only a header": GOOD.splitlines()[0],
    "a row is missing": "\n".join(line for line in GOOD.splitlines() if not line.startswith("GPU2")),
    "a row twice": GOOD.replace("GPU2\t", "GPU1\t"),
    "a short row": GOOD.replace(
        "GPU3\tNV6\tNV6\tNV6\t X \tSYS\tSYS\t0-23,96-119\tN/A\tN/A", "GPU3\tNV6\tNV6"
    ),
    "no diagonal": GOOD.replace(" X ", "NV6"),
    "two on the diagonal": GOOD.replace("GPU0\t X \tNV6", "GPU0\t X \t X "),
    "columns in another order": GOOD.replace("GPU0\tGPU1", "GPU1\tGPU0", 1),
    "a cut header": GOOD.replace("GPU2\tGPU3", "GPU2", 1),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_unknown_output_means_no_labels(tmp_path: Path, broken: str) -> None:
    assert label_once(tmp_path, GOOD, mig=["Disabled"] * 4)[2]
    code, said, labels = label_once(tmp_path, BROKEN[broken], mig=["Disabled"] * 4)
    assert (code, labels) == (1, {})
    assert re.match(r"nvlink-labeller: no labels: .{10}", said)


@pytest.mark.parametrize(
    "smi",
    [{"code": 9}, {"mig": []}, {"mig": ["Disabled"] * 3}, {"mig": ["Perhaps"] * 4}],
    ids=["it fails", "no MIG modes", "other GPUs", "unknown MIG mode"],
)
def test_a_driver_that_says_something_else_means_no_labels(tmp_path: Path, smi: dict[str, Any]) -> None:
    assert label_once(tmp_path, GOOD, mig=["Disabled"] * 4)[2]
    code, _, labels = label_once(tmp_path, GOOD, **smi)
    assert (code, labels) == (1, {})


def test_no_nvidia_smi_means_no_labels(tmp_path: Path) -> None:
    assert label_once(tmp_path, GOOD, mig=["Disabled"] * 4)[2]
    gone = command(tmp_path / "not-there", tmp_path / "features.d", "--once")
    done = subprocess.run(gone, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, published(tmp_path / "features.d")) == (1, {})


def test_nothing_is_left_beside_the_file_and_it_expires(tmp_path: Path) -> None:
    label_once(tmp_path, GOOD, mig=["Disabled"] * 4)
    (file,) = (tmp_path / "features.d").iterdir()
    first = file.read_text().splitlines()[0]
    until = time.strptime(first, "# +expiry-time=%Y-%m-%dT%H:%M:%SZ")
    assert 100 < time.mktime(until) - time.mktime(time.gmtime()) <= 181
    assert file.stat().st_mode & 0o777 == 0o644


def test_it_runs_on_and_a_changed_machine_ends_it(tmp_path: Path) -> None:
    """While it runs the labels follow the machine; when it no longer understands, they go."""
    features = tmp_path / "features.d"
    features.mkdir()
    smi = fake_smi(tmp_path, GOOD, mig=["Disabled"] * 4)
    child = subprocess.Popen(
        command(smi, features, "--interval", "0.05"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert "islands=0-3" in child.stdout.readline()
    degraded = BY_ID["mixed-2xsxm4-2xpcie"]
    replacement = tmp_path / "next"
    replacement.write_text(printed(degraded["matrix"], degraded["numa"]))
    replacement.replace(tmp_path / "topo")
    assert "islands=0.1 " in child.stdout.readline()
    replacement.write_text("?")
    replacement.replace(tmp_path / "topo")
    _, problem = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "no labels" in problem
    assert published(features) == {}


def test_it_ends_when_told_and_leaves_the_labels(tmp_path: Path) -> None:
    """An update of the DaemonSet must not take the labels away; if nothing follows they expire."""
    features = tmp_path / "features.d"
    features.mkdir()
    child = subprocess.Popen(
        command(fake_smi(tmp_path, GOOD, mig=["Disabled"] * 4), features), stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 0
    child.stdout.close()
    assert published(features)


class FakeNvml:
    """The functions of NVML that are used: GPUs with a MIG mode (None: no MIG) and the states of NVLinks."""

    def __init__(self, mig: Sequence[int | None], links: Sequence[Sequence[int]], failing: str = "") -> None:
        self.mig, self.links, self.failing, self.open = mig, links, failing, 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name == self.failing:
            return lambda *_: 999
        return super().__getattribute__(name)

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return 0

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.mig)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        mode = self.mig[handle.value - 1]
        current._obj.value = mode or 0
        return 3 if mode is None else 0

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: Any, active: Any) -> int:
        states = self.links[handle.value - 1]
        if link.value >= len(states):
            return 2
        active._obj.value = states[link.value]
        return 0


def test_nvml_knows_links_that_are_down() -> None:
    """``topo -m`` shows the links of GPU 2, but none of them is active."""
    matrix = BY_ID["hgx-h100-8"]
    nvml = FakeNvml([0, None, *[0] * 5, 1], [[1] * 18, [1] * 18, [0] * 18, *[[1] * 18] * 4, []])
    devices = labeller._Nvml(nvml).devices()
    assert devices.active_links == (18, 18, 0, 18, 18, 18, 18, None)
    labels = topology.labels_of(topology.parse_topology(printed(matrix["matrix"], None)), devices)
    assert labels["islands"] == "0.1.3-6"
    assert nvml.open == 0


@pytest.mark.parametrize(
    "failing", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMigMode", "nvmlDeviceGetNvLinkState"]
)
def test_an_error_of_nvml_means_unknown(failing: str) -> None:
    with pytest.raises(topology.Unknown, match=failing):
        labeller._Nvml(FakeNvml([0] * 4, [[1]] * 4, failing)).devices()


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    count = draw(st.integers(1, 7))
    links = [[0] * count for _ in range(count)]
    for a, b in combinations(range(count), 2):
        links[a][b] = links[b][a] = draw(st.sampled_from([0, 0, 1, 2, 18]))
    return links


@settings(max_examples=examples(200))
@given(graphs())
def test_islands_are_the_largest_groups_of_peers(links: list[list[int]]) -> None:
    """Oracle: all subsets, the largest first, the lowest GPUs first."""
    left, expected = set(range(len(links))), []
    while True:
        groups = (
            group
            for size in range(len(left), 1, -1)
            for group in combinations(sorted(left), size)
            if all(links[a][b] for a, b in combinations(group, 2))
        )
        group = next(groups, None)
        if group is None:
            break
        expected.append(group)
        left -= set(group)
    assert topology.islands_of(links) == sorted(expected)


@settings(max_examples=examples(200))
@given(graphs())
def test_labels_say_the_islands_again(links: list[list[int]]) -> None:
    matrix = [
        " ".join("X" if a == b else f"NV{n}" if n else "SYS" for b, n in enumerate(row))
        for a, row in enumerate(links)
    ]
    read = topology.parse_topology(printed(matrix, None))
    count = len(links)
    labels = topology.labels_of(read, topology.Devices((False,) * count, (None,) * count))
    assert list(parse_islands(labels["islands"])) == topology.islands_of(links)
    assert labels["fabric"] in ("none", "bridge", "mesh", "switch")
    assert (labels["fabric"] == "none") == (labels["islands"] == "none")
    assert all(re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", value) for value in labels.values())


def test_a_value_that_is_too_long_is_left_out() -> None:
    """64 GPUs in 32 pairs that are apart."""
    links = [[1 if abs(a - b) == 32 else 0 for b in range(64)] for a in range(64)]
    read = topology.Topology(tuple(map(tuple, links)), (0,) * 64)
    labels = topology.labels_of(read, topology.Devices((False,) * 64, (None,) * 64))
    assert labels == {"max-island": "2", "fabric": "bridge", "gpus": "64", "links": "1"}


def test_a_tangle_of_links_ends_as_unknown() -> None:
    """Every third pair is not connected: too many groups to try them all."""
    links = [[int(a != b and a // 3 != b // 3) for b in range(63)] for a in range(63)]
    with pytest.raises(topology.Unknown, match="irregular"):
        topology.islands_of(links)


def test_the_daemonset_has_no_more_rights_than_it_needs() -> None:
    documents = list(yaml.safe_load_all((LABELLER / "daemonset.yaml").read_text()))
    (daemonset,) = (one for one in documents if one["kind"] == "DaemonSet")
    assert {one["kind"] for one in documents} == {
        "Namespace",
        "ResourceQuota",
        "DaemonSet",
    }  # no rights in the API
    pod = daemonset["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert not pod.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert "privileged" not in security
    (host,) = (volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume)
    assert host == str(labeller.FEATURES)
    kustomization = yaml.safe_load((LABELLER / "kustomization.yaml").read_text())
    files = kustomization["configMapGenerator"][0]["files"]
    assert sorted(files) == sorted(file.name for file in LABELLER.glob("*.py"))
