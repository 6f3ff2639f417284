"""How a run ended, in a few lines."""

from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec
import pytest

from fairbed.coordinator.report.result import next_commands, result_lines, result_of
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import AlertRow
from tests.coordinator.store.fake_run import FakeRun, make_store


def test_the_slowest_device_is_named_with_its_longest_phase(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo", devices=4, rounds=12, watts=2.0)
    run.play(12)
    folder = run.finish()
    with RunReader(folder) as reader:
        result = result_of(reader)
        joules = sum(row.energy_j or 0.0 for row in reader.exchanges())
        exchanges = [row for row in reader.exchanges() if row.is_valid and row.tau_s is not None]
        metric = reader.metrics()[-1]
    median_s = {
        name: median(x.tau_s or 0.0 for x in exchanges if x.device == name) for name in run.names
    }
    slowest = max(median_s, key=median_s.__getitem__)
    assert result.slowest is not None
    assert result.slowest.device == slowest
    assert result.slowest.tau_s == pytest.approx(median_s[slowest])
    assert result.slowest.phase == "train"
    n = sum(x.device == slowest for x in exchanges)
    assert result.slowest.sample.n == n
    lines = dict(result_lines(result))
    assert lines["result"] == "done"
    assert lines["rounds"].startswith("12 of 12 in ")
    assert lines["accuracy"].startswith(f"{metric.accuracy_mean:.3f}, worst 10 % ")
    assert lines["accuracy"].endswith(f" (noise {100 * (result.worst10_noise or 0.0):.0f} %)")
    assert lines["guarantee"].startswith("0.15 kept, lowest rate 0.")
    text = f"{slowest}: median exchange {median_s[slowest]:.2f} s ({n} of "
    assert lines["slowest"].startswith(text)
    assert lines["slowest"].endswith(" % of it train")
    assert result.energy_j == pytest.approx(joules)
    assert "alerts" not in lines


def test_what_comes_next_depends_on_the_end(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "demo", rounds=2)
    run.play(2)
    run.store.add(AlertRow(kind="disk low", begin_s=1.0, text="1 GB is free"))
    run.store.set_status("failed", "the fleet is lost")
    run.store.close()
    with RunReader(tmp_path / "demo") as reader:
        failed = result_of(reader)
    assert dict(result_lines(failed))["result"] == "failed: the fleet is lost"
    assert dict(result_lines(failed))["alerts"] == "at the end: disk low"
    commands = {word: command for _, word, command in next_commands(failed)}
    assert commands["continue"] == f"fairbed run {tmp_path}/demo"
    assert "replay" not in commands
    done = replace(failed, info=replace(failed.info, status="done"))
    commands = {word: command for _, word, command in next_commands(done)}
    assert commands["replay"].startswith(f"fairbed replay {tmp_path}/demo/experiment.toml --set ")
    assert "continue" not in commands
    physical = {word for _, word, _ in next_commands(replace(done, is_emulated=False))}
    assert "record, to replay" in physical
    plan = done.info.plan
    client = msgspec.structs.replace(plan.training, client="mine:Client")
    own = replace(done.info, plan=msgspec.structs.replace(plan, training=client))
    assert "replay" not in {word for _, word, _ in next_commands(replace(done, info=own))}
    row = replace(done.info.row, clock="virtual")
    replay = replace(done, info=replace(done.info, row=row))
    assert [word for _, word, _ in next_commands(replay)] == ["show all numbers"]
    elsewhere = replace(done, info=replace(done.info, is_replica=True))
    assert [command for _, _, command in next_commands(elsewhere)] == ["fairbed show demo"]


def test_a_run_without_rounds_has_a_result(tmp_path: Path) -> None:
    store = make_store(tmp_path / "demo")
    store.set_status("failed", "no device joined")
    store.close()
    with RunReader(tmp_path / "demo") as reader:
        result = result_of(reader)
    assert result.slowest is None
    assert [label for label, _ in result_lines(result)] == [
        "result",
        "rounds",
        "accuracy",
        "guarantee",
    ]
