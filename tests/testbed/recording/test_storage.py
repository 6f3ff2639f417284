"""The read rate of a folder's storage."""

from contextlib import suppress
from pathlib import Path

import pytest

from fairbed.testbed.recording.analysis.findings import NotMeasured
from fairbed.testbed.recording.session import BLOCK_BYTES, filesystem, read_rate


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    mounts = tmp_path / "proc/self/mounts"
    mounts.parent.mkdir(parents=True)
    mounts.write_text(
        "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\nbroken\n/dev/b /tmp/x xfs rw\n"
    )
    assert filesystem(Path("/home"), tmp_path) == "ext4"
    assert filesystem(Path("/tmp/y"), tmp_path) == "tmpfs"
    assert filesystem(Path("/tmp/x/y"), tmp_path) == "xfs"
    assert filesystem(Path("/tmp/x"), tmp_path / "none") is None


def test_memory_is_no_storage(tmp_path: Path) -> None:
    mounts = tmp_path / "proc/self/mounts"
    mounts.parent.mkdir(parents=True)
    mounts.write_text("tmpfs / tmpfs rw 0 0\n")
    with pytest.raises(NotMeasured, match="is in memory"):
        read_rate(tmp_path, BLOCK_BYTES, root=tmp_path)


def test_a_missing_folder_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(NotMeasured, match="must be writable"):
        read_rate(tmp_path / "none", BLOCK_BYTES)


def test_no_file_is_left(tmp_path: Path) -> None:
    with suppress(NotMeasured):  # a file system that always reads from its cache
        assert read_rate(tmp_path, 8 * BLOCK_BYTES).value > 1e6
    assert list(tmp_path.iterdir()) == []
