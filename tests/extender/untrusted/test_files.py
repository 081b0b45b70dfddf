"""Files that a user names: what is not a regular file, and what has no end, is refused at once."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from extender.data import CLUSTER
from extender.untrusted.files import FileError, FileReader
from tests.examples import some

COMMANDS = (
    "explain -f {folder} --example",
    "explain -f {file} --example",
    "explain ml/pod --snapshot {file}",
    "top --snapshot {file}",
    "plan --snapshot {file}",
    "plan --example --prices {file}",
    "replay --snapshot {file}",
    "serve --snapshot {file}",
    "serve --config {file} --example",
)
RUN = """
import sys
from extender.cli.main import main
for line in sys.argv[1:]:
    try:
        print(main(line.split()), flush=True)
    except SystemExit as ended:
        print(ended.code, flush=True)
"""


@pytest.fixture(params=some(["FIFO", "link to a device", "link to a FIFO"], 1))
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file in a folder of its own that is not regular."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "pod.yaml"
    if request.param == "link to a device":
        file.symlink_to("/dev/zero")
        return file
    fifo = file if request.param == "FIFO" else tmp_path / "fifo"
    os.mkfifo(fifo)
    if fifo != file:
        file.symlink_to(fifo)
    return file


def test_no_command_waits_for_what_is_not_a_regular_file(endless: Path) -> None:
    lines = [line.format(folder=endless.parent, file=endless) for line in COMMANDS]
    done = subprocess.run(
        [sys.executable, "-c", RUN, *lines], capture_output=True, text=True, check=False, timeout=100
    )
    assert [int(code) > 0 for code in done.stdout.split()] == [True] * len(COMMANDS), done.stderr
    refused = done.stderr.count("is not a regular file") + done.stderr.count("cannot be read: no such file")
    assert refused == len(COMMANDS), done.stderr


def test_all_files_together_are_bounded_also_when_they_are_compressed(tmp_path: Path) -> None:
    reader, packed, plain = FileReader(3000), tmp_path / "a.gz", tmp_path / "a"
    packed.write_bytes(gzip.compress(b"a" * 1000))
    plain.write_bytes(b"a" * 1000)
    assert reader.read(packed) == reader.read(plain) == reader.read(packed)
    for file in (packed, plain):
        with pytest.raises(FileError, match="all files together have more than"):
            reader.read(file)


def test_a_folder_of_small_files_that_unpack_to_gigabytes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0.yaml.gz").write_bytes(gzip.compress(b"#" * (30 << 20), 1))
    for number in range(1, 100):
        os.link(tmp_path / "0.yaml.gz", tmp_path / f"{number}.yaml.gz")
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30)){RUN}"
    line = f"explain -f {tmp_path} --snapshot {CLUSTER}"
    done = subprocess.run(
        [sys.executable, "-c", limit, line], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.stdout, done.stderr.count("all files together have more than 32 MiB")) == ("1\n", 1), (
        done.stderr
    )


def test_a_pipe_of_the_shell_is_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"kind: Pod")
    os.close(writer)
    assert FileReader(100).read_text(Path(f"/dev/fd/{reader}")) == "kind: Pod"
    os.close(reader)
