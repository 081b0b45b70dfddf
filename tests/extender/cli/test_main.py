from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from extender.cli import main as cli
from extender.server.run import listen
from tests.examples import some


@pytest.fixture(autouse=True)
def _outside_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["version"]) == 0
    said = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == said
    assert said == f"stowage {version('kube-stowage')}\n"


LARGE = {"numba", "numpy", "kubernetes", "fastapi", "pydantic"}


def loaded_by(*commands: list[str]) -> list[set[str]]:
    """Which of the large packages are loaded after each command, in one process."""
    program = (
        "import sys\nfrom extender.cli.main import main\n"
        f"for arguments in {list(commands)!r}:\n"
        "    try: main(arguments)\n    except SystemExit: pass\n"
        "    print('loaded:', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return [LARGE & set(line.split()) for line in done.stderr.splitlines() if line.startswith("loaded: ")]


def test_help_and_wrong_arguments_load_neither_compiler_nor_client() -> None:
    commands = [
        ["version"],
        ["--version"],
        ["--help"],
        ["fly"],
        ["serve", "--help"],
        ["serve", "--port", "http"],
        ["explain", "--help"],
        ["explain"],
        ["explain", "pod.yaml", "--output", "xml"],
        ["replay", "--help"],
        ["replay", "--policy", "tetris"],
        ["demo", "--help"],
    ]
    assert loaded_by(*commands) == [set()] * len(commands)


def test_an_error_before_the_work_begins_loads_no_compiler() -> None:
    commands = [
        ["explain", "pod.yaml", "--config", "missing.yaml"],
        ["explain", "pod.yaml", "--snapshot", "missing.json"],
        ["explain", "/dev/null"],
        ["replay", "--timeline"],
        ["replay", "--snapshot", "cluster.json", "--config", "missing.yaml"],
    ]
    loaded = loaded_by(*commands)
    assert [{"numba", "numpy"} & one for one in loaded] == [set()] * len(commands)


def test_explaining_a_snapshot_loads_neither_client_nor_server(tmp_path: Path) -> None:
    pod = tmp_path / "pod.yaml"
    pod.write_text("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{}]}")
    assert loaded_by(["explain", str(pod), "--example"]) == [{"numpy", "pydantic"}]


@pytest.mark.parametrize(
    "command", some([["top"], ["explain", "training/train-16g-p5"], ["plan"], ["replay"]], 1)
)
def test_the_first_line_comes_before_what_takes_long(command: list[str]) -> None:
    program = (
        "import os, sys\nfrom extender.cli.main import main\n"
        "class Said(type(sys.stderr)):\n"
        "    def write(self, text):\n"
        "        print(*{'numba', 'numpy', 'kubernetes'} & set(sys.modules), text, sep='|')\n"
        "        sys.stdout.flush()\n"
        "        os._exit(0)\n"
        "sys.stderr = Said(sys.stderr.buffer)\n"
        "main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--example"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == f"stowage {command[0]}: reading the bundled example"


SUBCOMMANDS = ["serve", "explain", "top", "plan", "settings", "replay", "demo"]


@pytest.mark.parametrize("command", [*SUBCOMMANDS, "plan drain", "plan change", "plan mig", "plan slices"])
def test_help_fits_a_screen(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["explain", "top", "plan", "replay"])
def test_commands_have_the_same_sources_and_formats(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    shown = capsys.readouterr().out
    sources = "--snapshot FILE", "--kubeconfig FILE", "--example", "--url URL"
    for option in (*sources, "--config FILE", "-o FORMAT"):
        assert option in shown


def test_a_service_listens_before_it_loads_the_compiler() -> None:
    imports = "import sys, extender.server.run, extender.cli.precompile"
    program = f"{imports}; assert not {{'numba', 'scipy'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["serve", "--port", "65536"], "invalid number '65536'; expected a port (0 to 65535)"),
        (["serve", "--debug-port", "http"], "invalid number 'http'; expected a port (0 to 65535)"),
        (["serve", "--debug-host", "0.0.0.0"], "--debug-host requires --debug-port"),
        (["serve", "--tls-cert", "a"], "--tls-cert and --tls-key require each other"),
        (["serve", "--tls-key", "a"], "--tls-cert and --tls-key require each other"),
        (["serve", "--client-ca", "a"], "--client-ca requires --tls-cert"),
        (["serve", "--tls-cert=a", "--tls-key=b", "--client-ca=c"], "--client-ca requires --debug-port"),
        (["serve", "--client-name", "a"], "--client-name requires --client-ca"),
        (["serve", "--snapshot"], "expected at least one argument"),
    ],
)
def test_wrong_arguments_are_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(arguments)
    assert exit.value.code == 2
    assert text in capsys.readouterr().err


def test_an_invalid_setting_is_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "stowage.yaml").write_text("shortlist: none")
    assert cli.main(["serve", "--config", str(tmp_path / "stowage.yaml")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"stowage: {tmp_path}/stowage.yaml: shortlist: invalid value 'none'; expected ")


def test_a_missing_certificate_is_code_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "tls.crt")
    arguments = ["serve", "--example", "--port", "0", "--tls-cert", missing, "--tls-key", missing]
    assert cli.main(arguments) == 1
    assert capsys.readouterr().err == f"stowage: cannot read {missing}: No such file or directory\n"


def test_a_port_in_use_is_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as first:
        assert cli.main(["serve", "--port", str(first.getsockname()[1])]) == 1
    assert "Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    [["--snapshot", "no-such-file.json"], ["--kubeconfig", "no-such-config"]],
    ids=["snapshot", "kubeconfig"],
)
def test_a_missing_source_is_code_1(capsys: pytest.CaptureFixture[str], source: list[str]) -> None:
    assert cli.main(["serve", "--port", "0", *source]) == 1
    assert source[1] in capsys.readouterr().err
