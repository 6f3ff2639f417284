"""The audit log: whole lines from several writers, and no line lost."""

import threading
from pathlib import Path

import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.lab.audit import MAX_TEXT, Audit, AuditRow
from tests.testbed.lab.labs import NOW_S


def test_rows_are_read_back_in_order(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    assert audit.rows() == []
    audit.write("enrol", at_s=NOW_S, name="pi-1", role="device", address="192.168.1.7")
    audit.write("revoke", at_s=NOW_S + 0.5, name="pi-1", by="ada", detail="a\nb\x1b[31m" * 99)
    first, second = audit.rows()
    assert first == AuditRow(
        at="2026-01-01T00:00:00.000+00:00",
        action="enrol", name="pi-1", role="device", address="192.168.1.7",
    )  # fmt: skip
    assert (second.at, second.by) == ("2026-01-01T00:00:00.500+00:00", "ada")
    assert len(second.detail) == MAX_TEXT
    assert b"\x1b" not in (tmp_path / "audit.jsonl").read_bytes()
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"

    def write(by: str) -> None:
        audit = Audit(path)
        for k in range(100):
            audit.write("command", at_s=NOW_S + k, by=by, detail="x" * 150)

    threads = [threading.Thread(target=write, args=(f"writer-{k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(path.read_bytes().splitlines()) == len(Audit(path).rows()) == 400


def test_a_line_cut_by_a_full_disk_hides_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit = Audit(path)
    audit.write("enrol", at_s=NOW_S, name="a")
    path.write_bytes(path.read_bytes()[:-9] + b"\n")
    audit.write("enrol", at_s=NOW_S, name="b")
    assert [row.name for row in audit.rows()] == ["b"]


def test_a_full_disk_gives_one_line() -> None:
    with pytest.raises(LabError, match="must be writable, got No space left on device"):
        Audit(Path("/dev/full")).write("enrol", at_s=NOW_S)
