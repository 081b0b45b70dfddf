"""How much memory the process may have, from made-up file systems."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.server.body import memory_limit


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        ("0::/", {"memory.max": "1073741824"}, 1 << 30),
        ("0::/", {"memory.max": "max"}, None),
        ("0::/a/b", {"a/memory.max": "100", "a/b/memory.max": "200"}, 100),
        ("0::/a/b", {"a/b/memory.max": "max"}, None),
        ("4:memory:/x\n3:cpu:/y", {"memory/x/memory.limit_in_bytes": "300"}, 300),
        ("4:memory:/x", {"memory/x/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("4:memory:/gone", {"memory/memory.limit_in_bytes": "400"}, 400),
        ("0::/../../outside", {"memory.max": "500"}, 500),
    ],
)
def test_the_least_limit_of_all_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], limit: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    for name, text in files.items():
        file = tmp_path / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    assert memory_limit(tmp_path) == limit


def test_a_system_without_cgroups_has_no_limit(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) is None
