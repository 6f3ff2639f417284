"""A replay of days of virtual time whose process is killed and stopped again and again.

Its devices die in mid-round, are without a link, and return, as in their traces. The same replay
runs once without kills. Both must have the same rounds, exchanges and losses, bit for bit; in the
one without kills the memory must stay constant, and its processor time per round is measured.
"""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
from msgspec import Struct

from benchmarks._chaos.audit import RoundRows, StoreAudit
from benchmarks._meter import growth
from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.host.guard import guarded

BETA = 0.05
DEVICES = 12

EXPERIMENT = """
name = "chaos-week"
seed = {seed}
rounds = {rounds}
[data]
dataset = "digits"
[model]
name = "mlp"
[selection]
policy = "rbcs-f"
per_round = 3
beta = {beta}
V = 0.01
[round]
deadline_s = 600.0
void_wait_s = 30.0
[training]
epochs = 1
batch_size = 50
[evaluation]
every = 100
[emulation]
unavailable_as = "unplugged"
host_core_speed = 1.0
[[fleet]]
name = "pi"
profile = "raspberry-pi-zero-2w"
trace = "{folder}/dying.csv"
count = {driven}
[[fleet]]
name = "night"
profile = "raspberry-pi-3b-plus"
trace = "{folder}/dying.csv"
available_hours = ["20:00-08:00"]
count = {rest}
"""

DAY_S = 86_400.0

LIFE_S = (35.0, 70.0)
"""Range of the lives of the replay's process: a checkpoint is written every 30 s."""
STOPPED_S = (0.2, 2.0)
SAMPLE_S = 0.5

GROWTH = 0.02
"""Largest growth of the memory from the second to the last quarter that is noise."""


class ReplayResult(Struct, frozen=True, kw_only=True):
    """A replay under chaos, and the same without."""

    days: float
    """Virtual time."""
    rounds: int
    void_rounds: int
    exchanges: int
    failed: int
    """Exchanges without an update: devices that died, or lost their link."""
    kills: int
    """Ends of the replay's process by SIGKILL."""
    samples_mib: list[float]
    """Resident memory of the replay without kills, every `SAMPLE_S`."""
    growth: float
    cpu_ms: list[float]
    """Processor time of a round of the replay without kills, in each tenth of its rounds."""
    violations: list[str]

    @property
    def line(self) -> str:
        """One line for people."""
        return (
            f"replay of {self.days:.2f} days: {self.rounds} rounds ({self.void_rounds} void), "
            f"{self.failed} of {self.exchanges} exchanges failed, killed {self.kills} times; "
            f"memory {self.samples_mib[-1]:.1f} MiB at the end, growth {self.growth:+.2%}; "
            f"{self.cpu_ms[1]:.1f} ms of a core a round in the second tenth, "
            f"{self.cpu_ms[-1]:.1f} in the last; {len(self.violations)} violations"
        )


def replay_under_chaos(folder: Path, days: float, seed: int) -> ReplayResult:
    """Replay days of virtual time, once without faults and once with kills."""
    rng = np.random.default_rng(seed)
    _write_trace(folder / "dying.csv", rng)
    rounds, samples, progress = _replay_until(folder, days * DAY_S, seed)
    killed = folder / "killed"
    kills = _replay_with_kills(folder, killed, rounds, seed, rng)
    calm_rows, rows = _rows(folder / "calm"), _rows(killed)
    violations = _violations(rows)
    if _identities(calm_rows) != _identities(rows):
        pairs = zip(_identities(calm_rows), _identities(rows), strict=False)
        first = next(
            (k for k, (a, b) in enumerate(pairs, 1) if a != b), min(len(calm_rows), len(rows))
        )
        violations.append(f"replay: must equal the one without kills, differs from round {first}")
    found = growth(samples)
    if found > GROWTH:
        violations.append(f"replay: memory must not grow, got {found:+.2%}")
    exchanges = [x for one in rows for x in one.exchanges]
    return ReplayResult(
        days=rows[-1].round.closed_at_s / DAY_S,
        rounds=len(rows),
        void_rounds=sum(one.round.status == "void" for one in rows),
        exchanges=len(exchanges),
        failed=sum(x.outcome != "done" for x in exchanges),
        kills=kills,
        samples_mib=samples,
        growth=found,
        cpu_ms=_cpu_ms(progress),
        violations=violations,
    )


def _write_trace(path: Path, rng: np.random.Generator) -> None:
    """Write the rates of a link that dies for minutes and returns, over a day."""
    lines, at_s = ["# period_s = 86400", "t_s,down_mbps,up_mbps"], 0.0
    while at_s < DAY_S - 4000.0:
        lines.append(f"{at_s:.1f},{rng.uniform(0.002, 0.01):.5f},{rng.uniform(0.001, 0.005):.5f}")
        at_s += rng.uniform(20.0, 1800.0)
        if rng.random() < 0.5:
            lines.append(f"{at_s:.1f},0,0")
            at_s += rng.uniform(5.0, 600.0)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _start(folder: Path, out: Path, rounds: int, seed: int) -> "subprocess.Popen[bytes]":
    """Start a replay, or resume it if its folder exists."""
    experiment = folder / "week.toml"
    driven = DEVICES // 2
    text = EXPERIMENT.format(
        seed=seed, rounds=rounds, beta=BETA, folder=folder, driven=driven, rest=DEVICES - driven
    )
    experiment.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "fairbed.testbed.cli.main", "replay", "--json"]
    command += ["--threads", "1"]
    command += [str(out)] if out.exists() else [str(experiment), "--out", str(out)]
    with (folder / "replay.log").open("ab") as log:
        return subprocess.Popen(guarded(command), stdout=subprocess.DEVNULL, stderr=log)


def _replay_until(
    folder: Path, until_s: float, seed: int
) -> tuple[int, list[float], list[tuple[int, float]]]:
    """Replay until a time of the virtual clock.

    Returns:
        The rounds; samples of memory, MiB; closed rounds and the processor time so far, seconds.

    Raises:
        SystemExit: The replay failed.
    """
    process = _start(folder, folder / "calm", 10_000_000, seed)
    samples, watched = list[float](), psutil.Process(process.pid)
    progress = list[tuple[int, float]]()
    while process.poll() is None:
        with suppress(StoreError, psutil.Error), RunReader(folder / "calm") as reader:
            run, times = reader.run(), watched.cpu_times()
            progress.append((run.rounds_completed, times.user + times.system))
            if run.elapsed_s >= until_s:
                process.kill()  # SIGINT may be ignored; the rows of closed rounds are stored
                process.wait()
                break
        with suppress(psutil.Error):
            samples.append(watched.memory_info().rss / 2**20)
        time.sleep(SAMPLE_S)
    with RunReader(folder / "calm") as reader:
        rounds = reader.run().rounds_completed
    if process.returncode not in (0, -signal.SIGKILL) or len(samples) < 8:
        raise SystemExit(
            f"the replay failed: {(folder / 'replay.log').read_text(encoding='utf-8')[-300:]}"
        )
    return rounds, samples, progress


def _cpu_ms(progress: list[tuple[int, float]]) -> list[float]:
    """Return the processor time of a round in each tenth of the rounds, ms.

    Args:
        progress: Closed rounds and the processor time so far, seconds.
    """
    rounds, cpu_s = np.array(progress, dtype=np.float64).T
    edges = np.linspace(rounds[0], rounds[-1], 11)
    spent_s = np.diff(np.interp(edges, rounds, cpu_s))
    ms: list[float] = (1e3 * spent_s / np.diff(edges)).tolist()
    return ms


def _replay_with_kills(
    folder: Path, out: Path, rounds: int, seed: int, rng: np.random.Generator
) -> int:
    """Replay these rounds in a process that is stopped, continued and killed; return the kills.

    Raises:
        SystemExit: The replay failed.
    """
    kills = 0
    while True:
        process = _start(folder, out, rounds, seed)
        life_s, stopped_s = float(rng.uniform(*LIFE_S)), float(rng.uniform(*STOPPED_S))
        with suppress(subprocess.TimeoutExpired):
            process.wait(life_s / 2)
            break
        process.send_signal(signal.SIGSTOP)
        time.sleep(stopped_s)
        process.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(life_s / 2)
            break
        process.kill()
        process.wait()
        kills += 1
    if process.returncode:
        raise SystemExit(
            f"the replay failed: {(folder / 'replay.log').read_text(encoding='utf-8')[-300:]}"
        )
    return kills


def _rows(folder: Path) -> list[RoundRows]:
    with RunReader(folder) as reader, reader.snapshot():
        return [
            RoundRows(row, reader.selections(row.round), reader.exchanges(row.round - 1, row.round))
            for row in reader.rounds()
        ]


def _violations(rows: list[RoundRows]) -> list[str]:
    audit = StoreAudit(BETA)
    return [text for one in rows for text in audit.check_next(one)]


def _identities(rows: list[RoundRows]) -> list[tuple[object, ...]]:
    """Return what must be equal in two replays of the same experiment."""
    return [
        (
            one.round.closed_at_s,
            one.round.queue_total,
            *((x.device, x.outcome, x.tau_s, x.weight, x.loss_train) for x in one.exchanges),
        )
        for one in rows
    ]
