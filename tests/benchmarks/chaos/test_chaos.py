"""A live run that is killed and goes on; and what the benchmark prints."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks import chaos
from benchmarks._chaos.belongings import Belongings
from benchmarks._chaos.hostile import flipped
from benchmarks._chaos.memory import Slope
from benchmarks.chaos import SetupResult, StepResult
from tests import needs
from tests.processes import is_gone


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
@needs.mosquitto
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_killed_run_goes_on_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--minutes", "60", "--steps", "2", "--broker", "mosquitto", "--backend", "process"]
    kinds = "broker killed,coordinator killed"
    code = chaos.main([*options, "--kinds", kinds, "--seed", "3", "--json"])
    output = capsys.readouterr()
    assert code == 0, output.err
    (found,) = json.loads(output.out)["setups"]
    assert {kind for step in found["steps"] for kind in step["kinds"]} == set(kinds.split(","))
    assert found["lives"] == 2
    assert found["rounds"] >= 2 * chaos.RECOVERED_ROUNDS
    assert found["outcomes"]["done"] >= found["rounds"]
    assert all(step["recovery_s"] > 0.0 for step in found["steps"])
    assert "process, mosquitto: step 1: " in output.err


@pytest.mark.full
@pytest.mark.broker
@pytest.mark.slow
@needs.mosquitto
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_signal_leaves_no_process_file_or_mount(tmp_path: Path) -> None:
    options = ["--broker", "mosquitto", "--backend", "process", "--kinds", "broker stopped"]
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "bench", "chaos", *options]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with psutil.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert "step 1: " in process.stderr.readline()
        started = process.children(recursive=True)
        assert started
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM
    assert all(is_gone(process) for process in started)
    assert str(tmp_path) not in Path("/proc/mounts").read_text(encoding="utf-8")
    assert [path for path in tmp_path.iterdir() if path.name.startswith("fairbed-chaos")] == []


STEP = StepResult(
    number=7,
    step="step 7: 0.10 s, then broker killed after 0.00 s",
    kinds=["broker killed"],
    round=40,
    recovery_s=1.25,
    ended="",
    memory_mib={"broker": 12.0},
    violations=["round 40: queue of pi-1 must be 0.2, got 0.4"],
)
SETUP = SetupResult(
    broker="nats",
    backend="process",
    seed=9,
    steps=[STEP],
    rounds=40,
    void_rounds=1,
    lives=1,
    outcomes={"done": 78},
    hostile_packets=0,
    peak_mib={"broker": 12.0},
    slopes={
        "broker": Slope(kb_per_round=0.02, noise_kb=0.03, limit_kb=0.1, series=2, rounds=1_200)
    },
    violations=[],
    repeat="fairbed bench chaos --seed 9",
)


def test_a_violation_is_an_exit_status_and_a_command_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chaos, "disturb", lambda *arguments: SETUP)
    assert chaos.main(["--broker", "nats", "--backend", "process", "--seed", "9"]) == 1
    output = capsys.readouterr()
    assert "nats, process, seed 9: 1 steps, 40 rounds (1 void), 1 lives, 1 violations" in output.out
    assert "broker killed" in output.out
    line = "  memory of broker: +0.02 kB a round, at most 0.10; 1200 rounds of 2 lives"
    assert line in output.out
    assert "repeat: fairbed bench chaos --seed 9" in output.out
    expected = "chaos: nats, process: step 7: round 40: queue of pi-1 must be 0.2, got 0.4\n"
    assert output.err == expected


def test_an_unknown_kind_is_refused_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        chaos.main(["--kinds", "earthquake"])
    assert "--kinds: must be of agent killed, " in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_what_belongs_to_a_run_is_found_by_its_name(tmp_path: Path) -> None:
    code = "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(flush=True); "
    belongings = Belongings("chaos-of-a-test")
    command = [sys.executable, "-c", f"{code}sys.stdin.read()", "chaos-of-a-test"]
    with psutil.Popen(command, stdin=-1, stdout=-1) as process:
        process.stdout.readline()
        belongings.see(process)
        assert set(belongings.processes) == {process.pid}
        assert len(belongings.ports) == 1
        assert belongings.left_listening() == [f"port {port}" for port in belongings.ports]
    assert belongings.left_alive() == belongings.left_listening() == []
    assert belongings.stems() == set()


def test_one_bit_is_flipped() -> None:
    rng = np.random.default_rng(1)
    before = bytes(rng.bytes(64))
    for _ in range(100):
        pairs = zip(before, flipped(before, rng), strict=True)
        assert sum((a ^ b).bit_count() for a, b in pairs) == 1
