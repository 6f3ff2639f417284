"""A run in a separate process: its rounds, its processes and their memory."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import numpy as np
import psutil

from benchmarks._meter import cpu_s
from fairbed.testbed import rooms
from fairbed.testbed.host.guard import guarded
from fairbed.testbed.metrics.start import EXPORTER
from fairbed.testbed.progress import progress
from fairbed.testbed.run.broker import enrol_in_run
from fairbed.testbed.run_folder import Endpoint, read_endpoint
from fairbed.wire.transport.address import DEFAULT_CLIENT, Client

EXPERIMENT = """
name = "benchmark"
rounds = {rounds}
[data]
{data_key} = "{data}"
[model]
name = "{model}"
engine = "{engine}"
[training]
batch_size = {batch_size}
max_steps = {max_steps}
[selection]
policy = "uniform"
per_round = {agents}
[evaluation]
every = {evaluate_every}
[broker]
url = "{broker_url}"
kind = "{broker}"
client = "{client}"
[emulation]
backend = "process"
[[fleet]]
name = "agent"
count = {agents}
"""
"""The agents are processes on loopback: namespaces would measure the kernel's bridge."""

ALL_STEPS = 1_000_000
"""Limit of steps that no epoch here reaches."""

START_S = 30.0
"""Time limit for a coordinator to write the address of its broker."""

PIPE_BYTES = 1 << 16
"""Of the output of a run, read at once."""

KINDS = ("coordinator", "broker", "fork server", "agents")


class LiveRun:
    """A headless run; made by `live_run`."""

    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path, rounds: int) -> None:
        self._process, self._rounds = process, rounds
        self.folder = folder
        self._joined: list[psutil.Process] = []

    def rounds(self, *, only_newest: bool = False) -> Iterator[int]:
        """Yield the number of each round as it closes, until the run ends.

        Args:
            only_newest: Leave out a round if a newer one has closed since the last number: for
                callers that may take longer than a round.

        Raises:
            SystemExit: The run failed.
        """
        assert self._process.stderr is not None
        last_line, rest = b"", b""
        with progress(self._rounds, "rounds", "run", is_ticking=False) as bar:
            while data := os.read(self._process.stderr.fileno(), PIPE_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                closed = [
                    int(line.split()[1].split(b"/")[0])
                    for line in lines
                    if line.startswith(b"round ")
                ]
                last_line = next(
                    (line for line in reversed(lines) if not line.startswith(b"round ")), last_line
                )
                for round_id in closed[-1:] if only_newest else closed:
                    yield round_id
                    bar.update(round_id)
        if self._process.wait():
            raise SystemExit(f"the run failed: {last_line.decode(errors='replace').strip()}")

    def join(self, agents: int) -> ExitStack:
        """Start separate agents, as on separate devices; return the stack that ends them.

        Raises:
            SystemExit: The coordinator did not start.
        """
        stack = ExitStack()
        urls = {name: self.enrol(name) for name in (f"agent-{k + 1}" for k in range(agents))}
        self._joined += stack.enter_context(separate_agents(self.folder.parent, urls))
        return stack

    def enrol(self, name: str) -> str:
        """Enrol a device in the run; return its address of the broker, with its login."""
        return anyio.run(enrol_in_run, self.folder, self.endpoint(), name)

    def endpoint(self) -> Endpoint:
        """Return the endpoint of the run, as soon as there is one.

        Raises:
            SystemExit: The coordinator did not start.
        """
        deadline = time.monotonic() + START_S
        while (endpoint := read_endpoint(self.folder)) is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"the coordinator did not start within {START_S:g} s")
            time.sleep(0.05)
        return endpoint

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of the run by kind: `KINDS`, `clients`, `relay`, `exporter`."""
        coordinator = psutil.Process(self._process.pid)
        kinds: dict[str, list[psutil.Process]] = {
            kind: [] for kind in (*KINDS, "clients", "relay", "exporter")
        }
        kinds["coordinator"].append(coordinator)
        kinds["agents"] += self._joined
        for child in coordinator.children(recursive=True):
            words = " ".join(child.cmdline())
            if "fairbed.testbed.backends.fork_server" in words:
                is_agent = child.ppid() != coordinator.pid
                kinds["agents" if is_agent else "fork server"].append(child)
            elif any(name in words for name in ("mosquitto", "nats-server", "amqtt")):
                kinds["broker"].append(child)
            elif "device_agent/clients/child/" in words:
                kinds["clients"].append(child)
            elif rooms.room("remote").parts["relay"] in words:
                kinds["relay"].append(child)
            elif EXPORTER in words:
                kinds["exporter"].append(child)
        return kinds

    def rss_mib(self) -> dict[str, float]:
        """Return the resident memory of the largest process of each kind."""
        return {
            kind: max((p.memory_info().rss for p in members), default=0) / 2**20
            for kind, members in self.processes().items()
        }

    def pss_mib(self, kind: str) -> list[float]:
        """Return the proportional memory (PSS) of each process of a kind."""
        return [p.memory_full_info().pss / 2**20 for p in self.processes()[kind]]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time of the processes of each kind, seconds."""
        return {
            kind: sum(cpu_s(process.pid) for process in members)
            for kind, members in self.processes().items()
        }


@contextmanager
def separate_agents(
    folder: Path,
    urls: Mapping[str, str],
    log_level: str = "warning",
    task_keys: Mapping[str, str] | None = None,
) -> Iterator[list[psutil.Process]]:
    """Run an agent of each name at its broker address, as on separate devices.

    Args:
        folder: Receives their configurations and caches.
        urls: Address of the broker with the login of each.
        log_level: Of the agents.
        task_keys: Of the devices of a lab; None elsewhere.
    """
    with ExitStack() as stack:
        agents = []
        for name, url in urls.items():
            config = folder / f"{name}.toml"  # a password in an argument is a warning
            keys = {"broker_url": url, "name": name, "cache_folder": str(folder / name)}
            keys["log_level"] = log_level
            if task_keys is not None:
                keys["task_key"] = task_keys[name]
            config.write_text(
                "".join(f"{key} = {json.dumps(keys[key])}\n" for key in keys), encoding="utf-8"
            )
            command = [sys.executable, "-m", "fairbed.device_agent.cli", "--config", str(config)]
            process = stack.enter_context(subprocess.Popen(guarded(command)))
            stack.callback(process.terminate)
            agents.append(psutil.Process(process.pid))
        yield agents


def save_random_examples(file: Path, n: int, x_shape: tuple[int, ...] = (784,)) -> None:
    """Write a data set of n random examples of shape `x_shape` in 10 classes."""
    x = np.random.default_rng(0).standard_normal((n, *x_shape)).astype(np.float32)
    np.savez(file, x=x, y=np.arange(n) % 10)


COMPILES = """
import fairbed.testbed.cli.run
import fairbed.testbed.backends.fork_server
fairbed.testbed.backends.fork_server.warm()
"""


def compiled_environment() -> dict[str, str]:
    """Return an environment in which a start compiles no module, after all have been compiled.

    With `PYTHONDONTWRITEBYTECODE`, as in many containers, each start compiles all of them, which
    takes half a second of processor time.
    """
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, "-c", COMPILES], env=environ, check=True)
    return environ


@contextmanager
def live_run(
    folder: Path,
    data: Path,
    *,
    agents: int,
    rounds: int,
    model: str = "mlp",
    engine: str = "auto",
    broker: str = "auto",
    client: Client = DEFAULT_CLIENT,
    batch_size: int = 20,
    max_steps: int = ALL_STEPS,
    evaluate_every: int = 0,
    starts_fleet: bool = True,
    broker_url: str = "embedded",
    environment: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[LiveRun]:
    """Run unthrottled agents under `folder`, all in each round, and end the run on exit.

    Without `starts_fleet` the run waits for `agents` devices to join. `environment` replaces that
    of this process, `options` are more ones of the command.
    """
    path = folder / "experiment.toml"
    text = EXPERIMENT.format(
        rounds=rounds,
        data_key="source" if data.suffix else "dataset",
        data=data,
        model=model,
        engine=engine,
        batch_size=batch_size,
        max_steps=max_steps,
        agents=agents,
        evaluate_every=evaluate_every,
        broker_url=broker_url,
        broker=broker,
        client=client,
    )
    path.write_text(text, encoding="utf-8")
    kind = "run" if starts_fleet else "coordinator"
    command = [
        sys.executable,
        "-m",
        "fairbed.testbed.cli.main",
        kind,
        str(path),
        "--headless",
        "--json",
    ]
    command += ["--out", str(folder / "run"), "--set", f"round.min_devices={agents}", *options]
    with subprocess.Popen(
        guarded(command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            yield LiveRun(process, folder / "run", rounds)
        finally:
            process.terminate()
