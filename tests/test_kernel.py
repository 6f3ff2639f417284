"""`just test-kernel`: what it decides. The rest of it runs where its recipe runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tools import kernel, roots

ROOT = Path(__file__).parent.parent


def test_a_machine_that_cannot_do_it_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert kernel.main(["--folder", str(tmp_path / "kernel")]) == 0
    assert capsys.readouterr().out.startswith("test-kernel: skipped, needs ")
    assert not list(tmp_path.iterdir())


def test_a_root_that_cannot_be_built_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in kernel.TOOLS:
        (tmp_path / program).write_text("#!/bin/sh\nexit 7\n")
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(kernel, "require_machine", lambda recipe: None)
    assert kernel.main(["--folder", str(tmp_path / "kernel")]) == 1
    failed = "test-kernel: FAILED: mmdebstrap cannot make a root of bookworm, see above\n"
    assert capsys.readouterr().out == failed
    assert not (tmp_path / "kernel" / "root-bookworm.txt").exists()


def test_a_tool_that_cannot_be_installed_is_a_reason_to_skip(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(roots.Unavailable, match="needs user-mode-linux and mmdebstrap of Debian"):
        roots.require_programs(kernel.TOOLS)
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    (tmp_path / "apt-get").chmod(0o755)
    with pytest.raises(roots.Unavailable, match="mmdebstrap, which apt-get cannot install"):
        roots.require_programs(kernel.TOOLS)


def test_a_step_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernel.main(["doktor"])
    assert "a step must be one of doctor, user, limits, firewall, run" in capsys.readouterr().err


def test_tests_that_the_kernel_fails_exist() -> None:
    for test in kernel.DESELECTED:
        file, _, name = test.partition("::")
        assert name in (ROOT / file).read_text(encoding="utf-8")


def test_the_status_of_a_step_is_its_last_line() -> None:
    assert kernel.read_status(["booting", "STATUS 3", "reboot: System halted"]) == 3
    with pytest.raises(roots.StepError, match="before its step did: Kernel panic"):
        kernel.read_status(["booting", "Kernel panic", ""])


def test_each_backend_and_broker_must_be_usable() -> None:
    good = {"kind": "backend", "name": "process", "is_ok": True, "found": "", "what_to_do": ""}
    bad = {**good, "name": "namespace", "is_ok": False, "found": "no htb", "what_to_do": "load it"}
    assert kernel.check_doctor([good]) == "process"
    with pytest.raises(roots.StepError, match="backend namespace: no htb load it"):
        kernel.check_doctor([good, bad])


def test_a_user_without_namespaces_must_learn_what_to_put_in_front() -> None:
    refused = {
        "name": "namespace",
        "is_ok": False,
        "found": "no group;",
        "what_to_do": "use a scope",
    }
    kernel.check_advice([{**refused, "name": "process", "is_ok": True}, refused], "use a scope")
    with pytest.raises(roots.StepError, match=r"with .use sudo., got no group; use a scope"):
        kernel.check_advice([refused], "use sudo")
    with pytest.raises(roots.StepError):
        kernel.check_advice([{**refused, "is_ok": True}], "use a scope")


def test_a_busy_command_must_have_its_share() -> None:
    assert kernel.check_share({"cpu": {"used_cores": 0.196}}) == "0.20 for 0.2"
    for used in (None, 0.05, 0.25):
        with pytest.raises(roots.StepError, match=f"0.2 of a core, got {used}"):
            kernel.check_share({"cpu": {"used_cores": used}})


def test_a_run_must_have_every_exchange() -> None:
    summary: dict[str, Any] = {"rounds_completed": 3, "rounds_void": 0, "exchange": {"count": 9}}
    assert kernel.check_summary(summary) == "3 rounds, 9 exchanges"
    changes: list[Mapping[str, Any]] = [
        {"rounds_completed": 2},
        {"rounds_void": 1},
        {"exchange": {"count": 8}},
    ]
    for change in changes:
        with pytest.raises(roots.StepError, match="must be 3 rounds with 3 exchanges each"):
            kernel.check_summary({**summary, **change})


def fidelity(quantity: str, *, ok: bool | None) -> dict[str, Any]:
    return {"quantity": quantity, "ok": ok, "achieved": 1.0, "target": 2.0}


def test_links_must_be_within_their_limits_up_to_the_rates_that_the_kernel_carries() -> None:
    rows = [fidelity("delay 20 ms down, p50", ok=True), fidelity("goodput 10 Mbit/s up", ok=True)]
    fast = fidelity("goodput 100 Mbit/s up", ok=False)
    unknown = fidelity("loss 2 % up", ok=None)
    text = "2 quantities within their limits, 2 not judged"
    assert kernel.check_fidelity([*rows, fast, unknown], 0.0) == text
    missed = fidelity("goodput 10 Mbit/s down", ok=False)
    with pytest.raises(roots.StepError, match=r"goodput 10 Mbit/s down: 1\.0 for 2\.0"):
        kernel.check_fidelity([*rows, missed], 0.01)
    with pytest.raises(roots.StepError, match="no quantity has a valid window"):
        kernel.check_fidelity([unknown], 0.0)
    with pytest.raises(roots.Unavailable, match=r"waited 41% of its time: goodput 10 Mbit/s down"):
        kernel.check_fidelity([*rows, missed], kernel.read_waited(["STATUS 0", "WAITED 0.41"]))
