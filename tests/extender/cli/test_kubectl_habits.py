"""Command lines as kubectl's users type them, on the bundled example: what comes out, and the exit code."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
from pathlib import Path

import pytest
import yaml

from extender.cli import main as cli
from extender.data import CLUSTER

POD = """
kind: Pod
metadata: {name: %s}
spec: {schedulerName: stowage, containers: [{name: main, resources: {limits: {nvidia.com/gpu: %s}}}]}
"""
OWNERS = {
    "training/train-16g-p5": ("Job", "train"),
    "research/sweep-p4": ("ReplicaSet", "sweep-7d9f"),
    "research/tune-2g-p1": ("ReplicaSet", "sweep-7d9f"),
    "inference/chat-13b-p2": ("StatefulSet", "chat"),
    "notebooks/notebook-p3": ("PyTorchJob", "notebook"),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with manifests, a folder of them, and the example with owners of its pods."""
    directory = tmp_path_factory.mktemp("files")
    with contextlib.chdir(directory):
        Path("small.yaml").write_text(POD % ("small", 1))
        Path("large.yaml").write_text(POD % ("large", 16))
        Path("many").mkdir()
        Path("many/a.yaml").write_text(POD % ("first", 1))
        Path("many/b.json").write_text(json.dumps(yaml.safe_load(POD % ("second", 2))))
        Path("many/README.md").write_text("not a manifest")
        Path("many/old.yaml").mkdir()
        Path("many/old.yaml/c.yaml").write_text(POD % ("third", 1))
        Path("packed").mkdir()
        Path("packed/small.yaml.gz").write_bytes(gzip.compress(Path("small.yaml").read_bytes()))
        Path("packed.json.gz").write_bytes(gzip.compress(CLUSTER.read_bytes()))
        Path("bomb.yaml.gz").write_bytes(gzip.compress(b"#" * (33 << 20)))
        Path("cut.yaml.gz").write_bytes(Path("packed/small.yaml.gz").read_bytes()[:-9])
        Path("empty").mkdir()
        Path("other.yaml").write_text(
            (POD % ("small", 1)).replace("name: small", "name: small, namespace: other", 1)
        )
        cluster = json.loads(CLUSTER.read_text())
        for item in cluster["items"]:
            meta = item["metadata"]
            if owner := OWNERS.get(f"{meta.get('namespace')}/{meta['name']}"):
                meta["ownerReferences"] = [
                    {"kind": owner[0], "name": owner[1], "uid": "u", "controller": True}
                ]
        Path("owned.json").write_text(json.dumps(cluster))
    return directory


@pytest.fixture(autouse=True)
def _directory(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("explain -f small.yaml --example", 0, "default/small requests"),
        ("explain --filename=small.yaml --example", 0, "default/small requests"),
        ("explain small.yaml --example", 0, "default/small requests"),
        ("explain -f small.yaml -f large.yaml --example", 0, "default/large requests"),
        ("explain small.yaml large.yaml --example", 0, "default/large requests"),
        ("explain -f many --example", 0, "default/second requests"),
        ("explain -f many/ --example -o name", 0, "node/"),
        ("explain -f small.yaml,large.yaml --example", 0, "default/large requests"),
        ("explain -R -f . --example -o name", 1, "bomb.yaml.gz"),
        ("explain -Rf many --example", 0, "default/third requests"),
        ("explain -f empty --example", 1, "empty: has no file *.json, *.yaml, *.yml"),
        ("explain -f missing.yaml --example", 1, "missing.yaml: cannot be read: No such file"),
        ("explain -f packed/small.yaml.gz --example", 0, "default/small requests"),
        ("explain -f packed --snapshot packed.json.gz", 0, "It fits on 26 of 36 nodes"),
        (
            "explain -f bomb.yaml.gz --example",
            1,
            "bomb.yaml.gz: all files together have more than 32 MiB",
        ),
        ("explain -f cut.yaml.gz --example", 1, "cut.yaml.gz: cannot be read: Compressed file ended"),
        (
            "explain -f https://example.com/pod.yaml --example",
            1,
            "curl -L https://example.com/pod.yaml | stowage explain -f -",
        ),
        ("explain -f - --example", 0, "default/piped requests"),
        ("explain - --example", 0, "default/piped requests"),
        ("explain -f small.yaml -n team --example", 0, "team/small requests"),
        ("explain -n team -f small.yaml --example", 0, "team/small requests"),
        ("-n team explain -f small.yaml --example", 0, "team/small requests"),
        ("explain -f other.yaml -n team --example", 1, "'small' is in namespace 'other', not team"),
        ("explain -f small.yaml -A --example", 0, "default/small requests"),
        ("explain --snapshot owned.json small.yaml", 0, "default/small requests"),
        ("explain training/train-16g-p5 --example", 0, "training/train-16g-p5 requests"),
        ("explain train-16g-p5 --example", 0, "training/train-16g-p5 requests"),
        ("explain train-16g-p5 -n training --example", 0, "training/train-16g-p5 requests"),
        ("explain train-16g-p5 --namespace=research --example", 1, "the cluster has no such pod"),
        ("explain pod/train-16g-p5 -n training --example", 0, "training/train-16g-p5 requests"),
        ("explain pod train-16g-p5 -n training --example", 0, "training/train-16g-p5 requests"),
        ("explain po/training/train-16g-p5 --example", 0, "training/train-16g-p5 requests"),
        ("explain pod training/train-16g-p5 --example", 0, "training/train-16g-p5 requests"),
        ("explain job.batch/train --snapshot owned.json", 0, "training/train-16g-p5 requests"),
        ("explain node/h100-01 --example", 1, "node/h100-01 is a node: see stowage top h100-01"),
        ("explain training/train-16g-p5 --before 26h --example", 1, "only a running Stowage has past"),
        ("explain pods train-16g-p5 sweep-p4 --example", 0, "research/sweep-p4 requests"),
        ("explain job/train --snapshot owned.json", 0, "training/train-16g-p5 requests"),
        ("explain jobs train -n training --snapshot owned.json", 0, "training/train-16g-p5 requests"),
        ("explain job/train -n research --snapshot owned.json", 1, "job/train has no pods in the cluster"),
        ("explain deploy/sweep --snapshot owned.json", 0, "research/sweep-p4 requests"),
        ("explain deployment sweep --snapshot owned.json", 0, "research/sweep-p4 requests"),
        (
            "explain deploy/swee --snapshot owned.json",
            1,
            "kubectl get deployment swee -o yaml | stowage explain -f -",
        ),
        ("explain sts/chat --snapshot owned.json", 0, "inference/chat-13b-p2 requests"),
        ("explain pytorchjob/notebook --snapshot owned.json", 0, "notebooks/notebook-p3 requests"),
        ("explain -f small.yaml --example --exit-code", 0, "It fits on "),
        ("explain -f large.yaml --example --exit-code", 1, "It fits on none of "),
        ("explain -f small.yaml -f large.yaml --example --exit-code", 1, "It fits on none of "),
        ("explain -f large.yaml --example", 0, "It fits on none of "),
        ("explain -f missing.yaml --example --exit-code", 2, "missing.yaml"),
        ("explain -f small.yaml --example --node h100-01 --exit-code", 1, "fits on none of 1 node"),
        ("explain -f small.yaml --snapshot missing.json --exit-code", 2, "missing.json"),
        ("explain -f small.yaml --example -oyaml", 0, "pod: default/small"),
        ("explain -f large.yaml --example -o=name", 0, ""),
        ("top --example -n training", 0, "training/train-16g-p5"),
        ("top --example -A", 0, "research/sweep-p4"),
        ("--namespace training top --example -o name", 0, "pod/training/train-16g-p5"),
        ("top --example -o name", 0, "node/h100-01\n"),
        ("top node h100-01 --example", 0, "\nh100-01 "),
        ("top h100-02 h100-01 --sort-by free --example", 0, "h100-02"),
        ("top node/h100-01 --example", 0, "\nh100-01 "),
        ("explain deploy/nothing/first-pod.yaml --example", 1, "first-pod.yaml: cannot be read"),
        ("top h100-1 --example", 1, "no node with GPUs is named h100-1"),
        ("top pods --example", 0, "training/train-h100-r01  h100-01      8      8 nvidia.com/gpu"),
        ("top pods --node t4-03 --example", 0, "No pod has GPUs"),
        ("top po -n training --example -o name", 0, "pod/training/train-h100-r01"),
        ("top pods --node h100-01 -l app=train-h100 --example -o json", 0, '"nvidia.com/gpu": 8'),
        ("top pods -l app!=train-h100 --node h100-01 --example", 1, "no pod with GPUs has labels that match"),
        ("top pods --example --node nope", 1, "stowage top: there is no node 'nope'"),
        ("top pods --example -l app=nope", 1, "no pod with GPUs has labels that match 'app=nope'"),
        ("top pods --example --by model", 2, "top pods has no names, --by or --sort"),
        ("top pods x --example", 2, "top pods has no names, --by or --sort"),
        ("top -l app=nope --example", 2, "--node and -l select pods: stowage top pods"),
        ("top -n nope --example", 1, "stowage top: there are no pods in the namespace 'nope'"),
        ("explain -n nope --example", 1, "stowage explain: there are no pods in the namespace 'nope'"),
        ("explain -A --example", 0, "training/train-16g-p5  5         0         0s   112 CPUs"),
        ("explain -n training --example -o name", 0, "pod/training/train-16g-p5"),
        ("explain -A --example --exit-code", 1, "fits on 4 nodes"),
        ("explain -n inference --example --exit-code", 0, "fits on 4 nodes"),
        ("explain -n kube-system --example", 1, "no pods in the namespace"),
        ("explain -A --example -o csv", 0, "inference/chat-13b-p2,"),
        ("explain -A --snapshot packed.json.gz packed.json.gz", 0, "research/sweep-p4"),
        ("explain -A --node h100-01 --example", 2, "--node, --all and --before require a pod or manifest"),
        ("top --example -o yaml", 0, "nodes:\n"),
        ("top --example -o csv", 0, "node,model,gpus,"),
        ("top --example -o csv --by model --no-headers", 0, "A100 SXM4 80GB,6,48,"),
        ("top --example --no-headers", 0, "a100-01 "),
        ("plan drain --example -o name", 0, "t4-"),
        ("plan -n team --example", 2, "nodes run the pods of all namespaces"),
        ("settings -o yaml", 0, "apiVersion: "),
    ],
)
def test_it_does_what_they_expect(
    line: str, code: int, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((POD % ("piped", 1)).encode())))
    assert cli.main(line.split()) == code
    captured = capsys.readouterr()
    assert said in (captured.out if code == 0 or "--exit-code" in line else "") + captured.err


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("help", 0, "usage: stowage"),
        ("help explain", 0, "usage: stowage explain"),
        ("help plan", 0, "usage: stowage plan"),
        ("explian pod.yaml", 2, "did you mean explain?"),
        ("tpo", 2, "did you mean top?"),
        ("plan drian --example", 2, "did you mean drain?"),
        ("top --exmaple", 2, "did you mean --example?"),
        ("explain pod.yaml --namespaec=team", 2, "did you mean --namespace?"),
        ("top -o jsn", 2, "did you mean json?"),
        ("explain small.yaml --before yesterday", 2, "invalid time 'yesterday'; expected how long ago"),
        ("completion", 2, "the following arguments are required: SHELL\n"),
        ("completion powershell", 2, "invalid choice: 'powershell' (choose from 'bash', 'zsh', 'fish'"),
        ("explain", 2, "nothing to explain: expected -f FILE"),
        ("explain --example", 2, "or -A for all pending pods"),
        ("explain small.yaml -o csv --example", 2, "-o csv is for all pending pods"),
        ("", 2, "see stowage explain -A (pending pods), stowage top (GPUs), stowage --help"),
        ("get pods", 2, "see stowage top"),
        ("describe pod x", 2, "see stowage explain NAMESPACE/POD"),
        ("queue", 2, "see stowage explain -A"),
        ("top --example --context prod", 2, "--context selects a cluster"),
        ("top -n team -A", 2, "not allowed with argument"),
    ],
)
def test_arguments_are_explained(line: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(line.split())
    assert exit.value.code == code
    assert said in "".join(capsys.readouterr())


def test_pods_without_gpus_that_fit_share_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    web = (POD % ("web", 1)).replace("nvidia.com/gpu", "cpu")
    huge = web.replace("web", "huge").replace("cpu: 1", "cpu: 9000")
    Path("app.yaml").write_text("---".join([web, POD % ("small", 1), huge, web.replace("web", "db")]))
    assert cli.main(["explain", "-f", "app.yaml", "--example"]) == 0
    shown = capsys.readouterr().out
    assert re.findall("^(.*) requests [0-9]", shown, re.MULTILINE) == ["default/small", "default/huge"]
    assert shown.splitlines()[-1] == "2 pods without GPUs fit (details: -v): default/web, default/db"
    assert cli.main(["explain", "-f", "app.yaml", "--example", "-v"]) == 0
    assert capsys.readouterr().out.count("\nIt fits on ") == 4
    assert cli.main(["explain", "-f", "app.yaml", "--example", "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4


def test_help_fits_a_screen_of_24_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_a_snapshot_comes_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(Path("owned.json").read_bytes())))
    assert cli.main(["top", "--snapshot", "-"]) == 0
    assert "36 nodes with 228 GPUs" in capsys.readouterr().out


def test_yaml_and_json_are_the_same_value(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for output in ("json", "yaml"):
        assert cli.main(["explain", "-f", "many", "--example", "-o", output]) == 0
        found.append(yaml.safe_load(capsys.readouterr().out))
    assert found[0] == found[1]
    assert [one["pod"] for one in found[0]] == ["default/first", "default/second"]


@pytest.mark.parametrize("columns", ["", "60"])
def test_a_name_is_whole_in_whatever_width(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "ip-10-0-137-201.eu-central-1.compute.internal.h100-01"
    Path("long.json").write_text(CLUSTER.read_text().replace('"h100-01"', f'"{name}"'))
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["top", "--snapshot", "long.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(name) for line in lines)
    assert any(line.startswith("training/train-16g-p5 ") for line in lines)
    pods = [line for line in lines if "train-16g-p5" in line]
    assert len(pods) == 1
    assert pods[0].endswith("does not help.") is (not columns)  # the whole text where no width is set


def test_the_context_of_a_kubeconfig_is_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kubeconfig").write_text(
        "{kind: Config, current-context: '', contexts: [], clusters: [], users: []}"
    )
    assert cli.main(["top", "--local", "--kubeconfig", "kubeconfig", "--context", "prod"]) == 1
    assert "prod" in capsys.readouterr().err
