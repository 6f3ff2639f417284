"""The audit log: whole lines from several writers, and no line lost."""

import threading
from pathlib import Path

import pytest

from fairbed.testbed.errors import LabError
from fairbed.testbed.lab import audit as audit_log
from fairbed.testbed.lab.audit import HOUR_S, MAX_TEXT, REFUSED_PER_HOUR, Audit, AuditRow
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


def refuse(audit: Audit, n: int, at_s: float) -> None:
    for k in range(n):
        audit.refuse(
            "enrol-refused", at_s=at_s + k * 0.01, name="pi", address=f"10.0.{k}.1", detail="no"
        )


def test_refusals_of_changing_addresses_fill_no_disk_and_are_counted(tmp_path: Path) -> None:
    audit = Audit(tmp_path / "audit.jsonl")
    refuse(audit, 5_000, NOW_S)
    assert [row.action for row in audit.rows()] == ["enrol-refused"] * REFUSED_PER_HOUR
    audit.write("revoke", at_s=NOW_S + 90.0, name="pi-1")
    *_, count, revoke = audit.rows()
    assert (count.action, count.detail[:21]) == ("left-out", "4900 refused requests")
    assert revoke.action == "revoke"
    refuse(audit, 1, NOW_S + HOUR_S)
    assert [row.action for row in audit.rows()[-2:]] == ["revoke", "enrol-refused"]
    assert (tmp_path / "audit.jsonl").stat().st_size < 30_000


def test_a_full_log_takes_no_refusal_but_every_action_of_an_administrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_log, "MAX_BYTES", 1_000)
    audit = Audit(tmp_path / "audit.jsonl")
    for hour in range(3):
        refuse(audit, 50, NOW_S + hour * HOUR_S)
    audit.write("revoke", at_s=NOW_S + 3 * HOUR_S, name="pi-1")
    audit.write_left_out(NOW_S + 3 * HOUR_S)
    rows = audit.rows()
    left_out = [int(row.detail.split()[0]) for row in rows if row.action == "left-out"]
    assert sum(left_out) + sum(row.action == "enrol-refused" for row in rows) == 150
    assert len(left_out) == 3
    assert [row.action for row in rows].count("revoke") == 1
