"""`just test-kernel`: what it decides. The rest of it runs where its recipe runs."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import CommandRow, EventRow
from fairbed.testbed.experiment.file import load_experiment
from fairbed.testbed.replay.run import replay_experiment
from tools import kernel, roots, wall_clock

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


def test_a_backend_without_a_result_is_no_failure_of_a_machine_that_was_too_busy() -> None:
    slow = {
        "kind": "backend",
        "name": "container",
        "is_ok": False,
        "found": f"no result in 30 s: this machine is {kernel.TOO_SLOW}",
        "what_to_do": "",
    }
    with pytest.raises(roots.Unavailable, match="waited 24% of its time: backend container: no re"):
        kernel.check_busy([slow], 0.24)
    kernel.check_busy([slow], 0.01)
    kernel.check_busy([{**slow, "found": "no podman"}], 0.24)


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


# The step clock

UP_S = 3600.0
"""For how long the machine was up."""


def commands(jumps_s: Sequence[int], **changes: Any) -> list[CommandRow]:
    """Return notes after jumps of the wall clock, as a run records them."""
    began = datetime(2026, 11, 28, tzinfo=timezone.utc)
    walls = [
        began + timedelta(seconds=ahead_s + 20.0 * number)
        for number, ahead_s in enumerate(accumulate(jumps_s))
    ]
    given = {"action": "note", "device": None, "operator": "local"} | changes
    return [
        CommandRow(id=str(number), at_s=20.0 * number, wall=wall.isoformat(), **given)
        for number, wall in enumerate(walls)
    ]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> wall_clock.Seen:
    """A replay of the fleet, with the commands of a live run."""
    folder = tmp_path_factory.mktemp("clock")
    (folder / "kernel.toml").write_text(kernel.EXPERIMENTS["kernel"])
    settings = ["rounds=15", "replay.training=false"]
    experiment = load_experiment(folder / "kernel.toml", settings)
    replay_experiment(experiment, folder / "run", "run", lambda replayed: None)
    with RunReader(folder / "run") as reader:
        return replace(wall_clock.Seen.read(reader), commands=commands(wall_clock.JUMPS_S))


def test_a_run_whose_texts_alone_follow_the_clock_passes(seen: wall_clock.Seen) -> None:
    text = wall_clock.check(seen, UP_S)
    assert text.startswith("15 rounds, 45 exchanges of 3 devices, the longest ")


def test_a_clock_that_was_not_set_is_found(seen: wall_clock.Seen) -> None:
    steady = replace(seen, commands=commands([0, 0, 0, 0]))
    with pytest.raises(roots.StepError, match="must jump by 86400 s, got 20 s"):
        wall_clock.check(steady, UP_S)
    with pytest.raises(roots.StepError, match="a note must follow each of 4 jumps, got 3"):
        wall_clock.check(replace(seen, commands=seen.commands[1:]), UP_S)


def test_a_command_that_is_refused_is_found(seen: wall_clock.Seen) -> None:
    refused = commands(wall_clock.JUMPS_S, is_accepted=False, answer="not an operator")
    with pytest.raises(roots.StepError, match="note: not an operator"):
        wall_clock.check(replace(seen, commands=refused), UP_S)


def with_fourth(seen: wall_clock.Seen, **changes: Any) -> wall_clock.Seen:
    """Return a run with changes of the first exchange of its fourth round."""
    rounds = list(seen.rounds)
    first, *rest = rounds[3].exchanges
    rounds[3] = replace(rounds[3], exchanges=[replace(first, **changes), *rest])
    return replace(seen, rounds=rounds)


@pytest.mark.parametrize(
    "changes",
    [{"tau_wall_s": 86_403.0}, {"tau_wall_s": -86_397.0}, {"download_s": -0.1}],
    ids=["a day more", "a day less", "negative"],
)
def test_a_duration_that_follows_the_wall_clock_is_found(
    seen: wall_clock.Seen, changes: dict[str, float]
) -> None:
    (name,) = changes
    with pytest.raises(roots.StepError, match=rf"exchange\.{name} must be in 0 \.\. 3600 s"):
        wall_clock.check(with_fourth(seen, **changes), UP_S)


def test_what_the_phases_leave_may_be_negative(seen: wall_clock.Seen) -> None:
    wall_clock.check(with_fourth(seen, unaccounted_s=-0.01), UP_S)


def test_a_lost_exchange_is_found(seen: wall_clock.Seen) -> None:
    late = with_fourth(seen, outcome="late", reason="no upload within 60 s", aggregated_round=None)
    with pytest.raises(roots.StepError, match="must be done, got late: no upload within 60 s"):
        wall_clock.check(late, UP_S)
    with pytest.raises(roots.StepError, match="at least 15 rounds must close, got 14"):
        wall_clock.check(replace(seen, rounds=seen.rounds[:-1]), UP_S)


def test_a_link_that_ended_before_the_last_round_is_found(seen: wall_clock.Seen) -> None:
    end_s = seen.rounds[-1].round.closed_at_s
    left = EventRow(
        at_s=end_s + 1.0,
        wall="",
        level="info",
        kind="left",
        round=None,
        device="pi-1",
        text="the device disconnected",
    )
    wall_clock.check(replace(seen, events=[left]), UP_S)
    with pytest.raises(roots.StepError, match="pi-1: the device disconnected"):
        wall_clock.check(replace(seen, events=[replace(left, at_s=1.0)]), UP_S)


def test_the_devices_of_the_lab_are_in_its_experiment(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(kernel.EXPERIMENTS["lab"])
    physical = load_experiment(tmp_path / "lab.toml").physical
    assert set(physical) == {*wall_clock.ENROLLED, wall_clock.NEWCOMER}
