"""Processes killed at random instants of live runs: what survives, and what is repeated?

    fairbed bench kills [--kills 100] [--seed 1] [--devices 3] [--json]
        [--parts coordinator,broker,agent,owner,device,start,home]
        [--broker mosquitto|nats|amqtt] [--backend process|namespace|container]

Each part is killed so often with SIGKILL, in a run of its own: the coordinator, its broker or an
agent of a run whose agents joined by themselves, or, of a run with devices emulated by `--backend`,
the owner, which all end with it, or the agent of a device. Two of five kills of coordinator and
owner hit a process that still starts. The same command starts a killed coordinator, owner or agent
again; the run starts its broker and the agents of its devices.

A kill is survived if the next round with an update closes, and every round that was closed before
is unchanged. All devices are in each round, so the models of the rounds must be those of the same
run without kills, bit for bit; after kills of agents they are not compared, because a round goes on
without the dead one. An agent is back at the dispatch of its next exchange that is done. The agent
of a device that has died before is killed when it has lived for a minute; earlier, each restart
would wait longer than the one before. At the end SIGTERM stops the run and the agents.

Two parts kill starts alone, before their first round. `start`: at each file that a start writes and
each program that it starts, in turn, and at random instants of its first 500 ms; the same command
must go on, and every tenth run must be done. `home`: four runs of emulated devices at once with one
empty HOME, whose owners are killed at random; at the end each must be done.

Exits with 1 unless every kill was survived. The instants are a function of the seed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct

from benchmarks._killed_starts import StartsResult, measure_home, measure_starts
from fairbed.coordinator.store.connection import DATABASE, open_readonly
from fairbed.testbed.broker.run_accounts import login_of
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.progress import progress
from fairbed.testbed.run.agent_restarts import STABLE_S
from fairbed.testbed.run_folder import read_endpoint

STARTS = {"start": measure_starts, "home": measure_home}
"""Parts that kill only processes that start."""

PARTS = ("coordinator", "broker", "agent", "owner", "device", *STARTS)
BACKENDS = ("process", "namespace", "container")

EXPERIMENT = """
name = "kills"
seed = {seed}
rounds = {rounds}
[data]
dataset = "digits"
[model]
name = "softmax"
[selection]
policy = "rbcs-f"
per_round = {devices}
beta = 0.5
[round]
deadline_s = 30.0
min_devices = {devices}
[evaluation]
every = 10
[broker]
kind = "{broker}"
[emulation]
backend = "{backend}"
host_core_speed = 4.0
[[fleet]]
{fleet}
"""

ENDLESS = 1_000_000
"""Rounds of a run that is stopped."""

RECOVERY_S = 60.0
"""Longest time from a kill to the next round with an update, on a busy machine."""

RUNNING_S = 1.5
"""Latest instant of a kill after a round has closed, seconds."""

STARTING_S = 2.5
"""Latest instant of a kill after the start of a process, which takes about as long."""

STARTING_RATIO = 0.4
"""Share of the kills that hit a starting process, of coordinator and owner."""

LIVED_S = STABLE_S + 3.0
"""Life of an agent before another kill: the instant of its start is known to a second."""

PROFILE = "raspberry-pi-4b"
"""Of the devices whose agents are killed: a container starts as slowly as its device lets it."""

FORK_SERVER, LAUNCHER = "fairbed.testbed.backends.fork_server", "fairbed.testbed.backends.launcher"
"""Modules whose processes start agents in the backends `process` and `namespace`, and are agents in
containers."""

POLL_S = 0.02
WHOLE_EVERY = 10
"""Kills of starts after which a run must be done."""

END_S = 30.0


class PartResult(Struct, frozen=True, kw_only=True):
    """All kills of one part."""

    part: str
    kills: int
    survived: int
    rounds: int
    """Rounds that the run has closed."""
    repeated_max: int
    """Most rounds that a kill repeated: closed ones that were lost, and the open one."""
    void_rounds: int
    """Rounds without an update."""
    back_median_s: float
    """From the start of the killed process to the next round with an update; of an agent: to the
    dispatch of its next exchange. Of a broker: from the kill to that round; of a device: from the
    kill to that dispatch."""
    back_max_s: float
    equal_models: int | None
    """Rounds whose model is that of the run without kills; None for agents and devices."""
    stop_s: float
    """From SIGTERM to the end of the run."""
    agents_stop_s: float | None
    """From SIGTERM to the end of the last agent; None without separate agents."""
    failures: list[str]
    """One line for each kill that was not survived, and each change of a closed round."""

    @property
    def line(self) -> str:
        """One line for people."""
        equal = "" if self.equal_models is None else f"; models equal {self.equal_models}"
        return (
            f"{self.part}: {self.survived} of {self.kills} kills survived, at most "
            f"{self.repeated_max} round repeated; back after {self.back_median_s:.2f} s, at most "
            f"{self.back_max_s:.2f} s; {self.rounds} rounds ({self.void_rounds} void){equal}; "
            f"stopped in {self.stop_s:.2f} s"
        )


class Result(Struct, frozen=True, kw_only=True):
    """The kills of all parts."""

    seed: int
    broker: str
    backend: str
    """Of the emulated devices of an owner."""
    devices: int
    parts: list[PartResult | StartsResult]


class NotBackError(Exception):
    """The run did not go on in time, or ended."""


class KilledRun:
    """A run whose processes are killed and started again.

    Args:
        folder: An empty folder.
        part: What is killed.
        rounds: Rounds of the run.
        options: Seed, devices, broker and backend.
    """

    def __init__(self, folder: Path, part: str, rounds: int, options: argparse.Namespace) -> None:
        folder.mkdir()
        self.folder = folder / "run"
        self.names = [f"agent-{number + 1}" for number in range(options.devices)]
        self.is_emulated = part in ("owner", "device")
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.log = folder / "run.log"
        self._experiment = folder / "kills.toml"
        fleet = f'name = "agent"\ncount = {options.devices}'
        if not self.is_emulated:
            fleet = f"physical = {json.dumps(self.names)}"
        elif part == "device":
            fleet += f'\nprofile = "{PROFILE}"'
        self._experiment.write_text(
            EXPERIMENT.format(
                seed=options.seed,
                rounds=rounds,
                devices=options.devices,
                broker=options.broker,
                backend=options.backend,
                fleet=fleet,
            ),
            encoding="utf-8",
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start or resume the run, by the same command."""
        command = [sys.executable, "-m", "fairbed.testbed.cli.main"]
        command += ["run" if self.is_emulated else "coordinator", str(self._experiment)]
        command += ["--headless", "--json", "--out", str(self.folder)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                guarded(command), stdout=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        if not self.is_emulated and not self.agents:
            self.wait(lambda: read_endpoint(self.folder) is not None, "the address of its broker")
            for name in self.names:
                self.start_agent(name)

    def start_agent(self, name: str) -> None:
        """Start an agent, again with the same folders."""
        top = self.folder.parent
        config, endpoint = top / f"{name}.toml", read_endpoint(self.folder)
        if not config.exists():
            assert endpoint is not None
            keys = {"broker_url": login_of(endpoint, name), "name": name, "log_level": "warning"}
            keys |= {"cache_folder": str(top / name), "state_folder": str(top / f"{name}-state")}
            text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
            config.write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "fairbed.device_agent.cli", "--config", str(config)]
        with (top / f"{name}.log").open("ab") as log:
            self.agents[name] = subprocess.Popen(
                guarded(command), stdout=log, stderr=log, start_new_session=True
            )

    def broker(self) -> psutil.Process | None:
        """Return the process of the broker; None while it is restarted."""
        assert self.process is not None
        with suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                if child.name() in ("mosquitto", "nats-server"):
                    return child
        return None

    def agent_processes(self) -> list[psutil.Process]:
        """Return the processes of the agents of emulated devices, the oldest one first."""
        assert self.process is not None
        found = list[psutil.Process]()
        with suppress(psutil.Error):
            for helper in psutil.Process(self.process.pid).children():
                if FORK_SERVER in helper.cmdline():
                    found += helper.children()
        for process in psutil.process_iter():  # a container is no child of the run
            with suppress(psutil.Error):
                words = process.cmdline()
                if LAUNCHER in words and words[-1].startswith(f"{self.folder}/"):
                    found.append(process)
        return sorted(found, key=psutil.Process.create_time)

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return rows of the store; none while it does not exist. No row is written."""
        path = self.folder / DATABASE
        if not path.exists():
            return []
        with closing(open_readonly(path)) as connection:
            return connection.execute(sql, values).fetchall()

    def closed(self) -> list[tuple[Any, ...]]:
        """Return round, attempt, status, instant and model of each closed round."""
        sql = "SELECT round, attempt, status, closed_at_s, model_sha256 FROM round ORDER BY round"
        return self.query(sql)

    def last_done(self) -> int:
        """Return the last closed round with an update; 0 if there is none."""
        found = self.query("SELECT max(round) FROM round WHERE status = 'done'")
        return found[0][0] or 0 if found else 0

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds.

        Raises:
            NotBackError: It takes longer than `RECOVERY_S`, or the run has ended.
        """
        assert self.process is not None
        deadline = time.monotonic() + RECOVERY_S
        while not holds():
            if self.process.poll() is not None:
                raise NotBackError(f"the run ended before {what}: {self.last_line()}")
            if time.monotonic() > deadline:
                raise NotBackError(f"{what}: must come within {RECOVERY_S:g} s")
            time.sleep(POLL_S)

    def now_s(self) -> float:
        """Return this instant on the clock of the run, which has not been resumed, seconds."""
        ((at_s, wall),) = self.query("SELECT at_s, wall FROM event ORDER BY id LIMIT 1")
        return float(at_s) + time.time() - datetime.fromisoformat(wall).timestamp()

    def last_line(self) -> str:
        """Return the last line of the run's output."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else "no output"

    def stop(self) -> tuple[float, float | None]:
        """End the run and the agents by SIGTERM; return how long each took.

        Raises:
            NotBackError: One does not end.
        """
        assert self.process is not None
        began = time.monotonic()
        self.process.terminate()
        try:
            self.process.wait(END_S)
            run_s, began = time.monotonic() - began, time.monotonic()
            for agent in self.agents.values():
                agent.terminate()
            for agent in self.agents.values():
                agent.wait(END_S)
        except subprocess.TimeoutExpired:
            raise NotBackError(f"SIGTERM must end a process within {END_S:g} s") from None
        return run_s, time.monotonic() - began if self.agents else None

    def end(self) -> None:
        """Kill what is left."""
        for process in (self.process, *self.agents.values()):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


class Killer:
    """Kills one part of a run at random instants.

    Args:
        run: The run.
        part: What is killed.
        seed: Of the instants.
    """

    def __init__(self, run: KilledRun, part: str, seed: int) -> None:
        self.kills = self.survived = self.repeated_max = 0
        self.back_s: list[float] = []
        self.failures: list[str] = []
        self._run, self._part = run, part
        self._random = random.Random(f"{seed} {part}")
        self._unproven = 0
        """Kills after which no round has closed yet, because another kill followed."""
        self._hits_start = part in ("coordinator", "owner")
        """The next kill hits a process that starts."""
        self._kept: list[tuple[Any, ...]] = []

    def kill_once(self) -> None:
        """Kill the part, and wait until the run has gone on, unless it is killed while it starts.

        Raises:
            NotBackError: It does not go on.
        """
        run, is_process = self._run, self._part in ("coordinator", "owner")
        latest_s = STARTING_S if self._hits_start else RUNNING_S
        time.sleep(self._random.uniform(0.0, latest_s))
        began = time.monotonic()
        if is_process:
            assert run.process is not None
            run.process.kill()
            run.process.wait()
            self._count()
            self._kept = run.closed()
            began = time.monotonic()
            run.start()
        elif self._part == "broker":
            broker = run.broker()
            while broker is None:
                time.sleep(POLL_S)
                broker = run.broker()
            began = time.monotonic()
            broker.kill()
            self._count()
            self._kept = run.closed()
        elif self._part == "device":
            self._kill_device()
            return
        else:
            self._kill_agent()
            return
        self._hits_start = is_process and self._random.random() < STARTING_RATIO
        if not self._hits_start:
            self._await_progress(began)

    def prove(self) -> None:
        """Wait for a round after the last kills."""
        if self._unproven:
            self._await_progress(time.monotonic())

    def check_all(self) -> list[tuple[Any, ...]]:
        """Check that no exchange was lost or counted twice; return the closed rounds."""
        rows = self._run.closed()
        if [row[0] for row in rows] != list(range(1, len(rows) + 1)):
            self.failures.append("rounds: must be 1, 2, 3, ... without a gap")
        odd = self._run.query(
            "SELECT round.round FROM round LEFT JOIN exchange ON exchange.round = round.round "
            "GROUP BY round.round HAVING sum(exchange.aggregated_round IS NOT NULL) != aggregated "
            "OR count(exchange.device) != selected"
        )
        self.failures += [f"round {number}: an exchange is lost or doubled" for (number,) in odd]
        return rows

    def _count(self) -> None:
        self.kills += 1
        self._unproven += 1

    def _await_progress(self, began: float | None) -> None:
        """Wait for the next round with an update; check those that were closed before.

        Args:
            began: When the killed process was started again; None if its return was seen before.

        Raises:
            NotBackError: None closes.
        """
        run, kept = self._run, self._kept
        last = kept[-1][0] if kept else 0
        run.wait(lambda: run.last_done() > last, f"round {last + 1}")
        if began is not None and self._unproven == 1:
            self.back_s.append(time.monotonic() - began)
        rows = run.closed()
        lost = sum(row not in rows for row in kept)
        if lost:
            self.failures.append(f"kill {self.kills}: {lost} closed rounds were lost or changed")
        is_repeated = bool(rows[last][1]) if len(rows) > last else False
        self.repeated_max = max(self.repeated_max, lost + is_repeated)
        self.survived += 0 if lost else self._unproven
        self._unproven = 0

    def _kill_agent(self) -> None:
        run = self._run
        name = self._random.choice(run.names)
        agent = run.agents[name]
        agent.kill()
        agent.wait()
        self._count()
        self._kept = run.closed()
        since_s = run.now_s()
        run.start_agent(name)
        self._await_exchange(name, since_s)

    def _kill_device(self) -> None:
        """Kill the agent of an emulated device, which the run starts again."""
        run = self._run
        oldest = run.agent_processes()[0]
        if self.kills >= len(run.names):  # each has died before
            time.sleep(max(0.0, oldest.create_time() + LIVED_S - time.time()))
        last_event, since_s = run.query("SELECT max(id) FROM event")[0][0], run.now_s()
        oldest.kill()
        self._count()
        self._kept = run.closed()
        sql = "SELECT device FROM event WHERE id > ? AND kind = 'died'"
        run.wait(lambda: bool(run.query(sql, last_event)), "the death of an agent")
        ((name,),) = run.query(sql, last_event)
        self._await_exchange(name, since_s)

    def _await_exchange(self, name: str, since_s: float) -> None:
        """Wait until a device has done an exchange that began after an instant of the run.

        Events of its return are no proof: a device that returns often has only some of them.
        """
        run = self._run
        sql = (
            "SELECT min(dispatched_at_s) FROM exchange "
            "WHERE device = ? AND dispatched_at_s > ? AND outcome = 'done'"
        )
        run.wait(lambda: run.query(sql, name, since_s)[0][0] is not None, f"{name} is back")
        self.back_s.append(run.query(sql, name, since_s)[0][0] - since_s)
        self._await_progress(None)


def measure(part: str, options: argparse.Namespace, top: Path) -> PartResult:
    """Kill one part again and again."""
    run = KilledRun(top / part, part, ENDLESS, options)
    killer = Killer(run, part, options.seed)
    stop_s, agents_stop_s = float("nan"), None
    try:
        run.start()
        if part in ("broker", "agent", "device"):
            run.wait(lambda: run.last_done() > 0, "round 1")
        with progress(options.kills, "kills", part, is_ticking=False) as bar:
            while killer.kills < options.kills:
                killer.kill_once()
                bar.update(min(killer.kills, options.kills))
        killer.prove()
        stop_s, agents_stop_s = run.stop()
    except NotBackError as exc:
        killer.failures.append(f"kill {killer.kills}: {exc}")
    finally:
        run.end()
    rows = killer.check_all()
    equal = None
    if part not in ("agent", "device") and rows:
        models = [row[4] for row in rows]
        equal = sum(map(str.__eq__, models, _models_without_kills(part, options, top, len(rows))))
    return PartResult(
        part=part,
        kills=killer.kills,
        survived=killer.survived,
        rounds=len(rows),
        repeated_max=killer.repeated_max,
        void_rounds=sum(row[2] == "void" for row in rows),
        back_median_s=statistics.median(killer.back_s or [float("nan")]),
        back_max_s=max(killer.back_s, default=float("nan")),
        equal_models=equal,
        stop_s=stop_s,
        agents_stop_s=agents_stop_s,
        failures=killer.failures,
    )


def _models_without_kills(
    part: str, options: argparse.Namespace, top: Path, rounds: int
) -> list[str]:
    """Return the hash of the model after each round of the same run without kills.

    Raises:
        SystemExit: The run failed.
    """
    run = KilledRun(top / f"{part}-calm", part, rounds, options)
    try:
        run.start()
        assert run.process is not None
        if run.process.wait():
            raise SystemExit(f"the run without kills failed: {run.last_line()}")
        return [row[4] for row in run.closed()]
    except NotBackError as exc:
        raise SystemExit(f"the run without kills failed: {exc}") from exc
    finally:
        run.end()


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench kills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=100, help="of each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default="coordinator,broker,agent", help=", ".join(PARTS))
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--broker", choices=("mosquitto", "nats", "amqtt"), default="mosquitto")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="process", help="of an owner or device"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    parts = options.parts.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"--parts: must be some of {', '.join(PARTS)}, got {unknown[0]!r}")
    for name in ("kills", "devices"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: must be at least 1, got {getattr(options, name)}")
    options.whole_every = WHOLE_EVERY
    results = list[PartResult | StartsResult]()
    with tempfile.TemporaryDirectory(prefix="fairbed-kills-") as top:
        for part in parts:
            of_starts = STARTS.get(part)
            results.append(
                measure(part, options, Path(top))
                if of_starts is None
                else of_starts(options, Path(top))
            )
            if not options.json:
                print(results[-1].line, flush=True)
                for failure in results[-1].failures:
                    print(f"  {failure}", flush=True)
    if options.json:
        result = Result(
            seed=options.seed,
            broker=options.broker,
            backend=options.backend,
            devices=options.devices,
            parts=results,
        )
        print(msgspec.json.encode(result).decode())
    is_good = all(one.survived == one.kills and not one.failures for one in results)
    return 0 if is_good else 1
