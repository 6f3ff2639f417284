"""Duration of a scrape with 1,000 devices, and what metrics add to the processor time of a round.

    fairbed bench metrics [--devices 1000] [--seconds 60] [--scrapes 200] [--json]
    fairbed bench metrics --rounds 60 [--agents 20] [--repeats 5] [--json]

The first form writes the rows of a run in real time and scrapes its exporter from another process,
with one connection per scrape as Prometheus does without keep-alive. `exporter_cores` is the
processor time of the exporter, TensorBoard files included, per second after its start.

The second form measures pairs of live runs, with and without `--metrics --tensorboard`, one scrape
a second: the processor time of each round by kind of process (Linux only). Agents are
unthrottled (MLP 784-318-10, 320 examples per device, batch 32). `change_KIND` is the mean of the
paired relative differences with its 95 % interval; `exporter_of_all` is the exporter's own time as
a share of all processes of the run.
"""

import argparse
import http.client
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import numpy as np
import psutil

from benchmarks._live_run import live_run, save_random_examples
from benchmarks._meter import cpu_s
from benchmarks._synthetic_run import SyntheticRun
from experiments.processes import fresh_processes
from fairbed.testbed.compare.statistics import mean_interval
from fairbed.testbed.metrics.start import EXPORTER, ExportTargets
from fairbed.testbed.progress import tracked

EXAMPLES = 400
"""Per device; a fifth is held out."""

WARM_S = 10.0
"""Time after which the exporter has read the run and loaded its modules."""

WARM_ROUNDS = 3

Result = dict[str, float | int]


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench metrics",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="measured (default 60)")
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of a live run")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.rounds and options.rounds < WARM_ROUNDS + 3:
        parser.error(f"--rounds: must be at least {WARM_ROUNDS + 3}, got {options.rounds}")
    result = (
        measure_rounds(options.rounds, options.agents, options.repeats)
        if options.rounds
        else measure_scrapes(options.devices, options.seconds, options.scrapes)
    )
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<28}{value:.4g}" if isinstance(value, float) else f"{key:<28}{value}")
    return 0


def measure_scrapes(devices: int, seconds: float, scrapes: int) -> Result:
    """Return the durations of scrapes during a run that is written in real time."""
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        run = SyntheticRun(folder / "run", devices)
        with (
            ExportTargets(":0", folder / "curves") as targets,
            fresh_processes(1) as pool,
            targets.following(folder / "run"),
        ):
            assert targets.url is not None
            run.write_for(WARM_S)
            exporter = _exporter()
            before_s, since_s = cpu_s(exporter.pid), time.monotonic()
            found = pool.submit(scrape, targets.url, seconds, scrapes)
            run.write_for(seconds)
            times_s, n_bytes, n_series = found.result()
            spent_s = cpu_s(exporter.pid) - before_s
            lasted_s = time.monotonic() - since_s
            rss_bytes = exporter.memory_info().rss
        run.close()
    return {
        "devices": devices,
        "scrapes": len(times_s),
        "scrape_median_ms": 1e3 * statistics.median(times_s),
        "scrape_p95_ms": 1e3 * float(np.percentile(times_s, 95)),
        "scrape_max_ms": 1e3 * max(times_s),
        "scrape_kib": n_bytes / 1024,
        "series": n_series,
        "exporter_cores": spent_s / lasted_s,
        "exporter_mib": rss_bytes / 2**20,
    }


def _exporter() -> psutil.Process:
    for child in psutil.Process().children():
        if EXPORTER in child.cmdline():
            return child
    raise RuntimeError("the exporter must run, got no such process")


def scrape(url: str, seconds: float, scrapes: int) -> tuple[list[float], int, int]:
    """Return the durations of scrapes spread over some seconds, and bytes and series of the last.

    Raises:
        OSError: A scrape failed.
    """
    address, times_s, content = urlsplit(url), list[float](), b""
    assert address.hostname is not None
    began_s = time.monotonic()
    for number in range(scrapes):
        time.sleep(max(0.0, began_s + seconds * number / scrapes - time.monotonic()))
        started_s = time.perf_counter()
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=10)
        connection.request("GET", address.path)
        content = connection.getresponse().read()
        times_s.append(time.perf_counter() - started_s)
        connection.close()
    series = [line for line in content.splitlines() if not line.startswith(b"#")]
    return times_s, len(content), len(series)


def measure_rounds(rounds: int, agents: int, repeats: int) -> Result:
    """Return the processor time of rounds with and without the exporter."""
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        data = Path(name) / "random.npz"
        save_random_examples(data, EXAMPLES * agents)
        for number in tracked(range(repeats), "pairs", "metrics"):
            found = {}
            for is_exported in (False, True) if number % 2 == 0 else (True, False):
                folder = Path(name) / f"{number}-{is_exported}"
                folder.mkdir()
                found[is_exported] = _round_cpu_s(folder, data, rounds, agents, is_exported)
            pairs.append((found[False], found[True]))
    result: Result = {"agents": agents, "rounds": rounds, "pairs": repeats}
    for kind in ("coordinator", "all"):
        cpu_s = np.array([[_sum(one, kind) for one in pair] for pair in pairs])
        interval = mean_interval(cpu_s[:, 1] / cpu_s[:, 0] - 1.0)
        result[f"{kind}_plain_ms"], result[f"{kind}_exported_ms"] = (1e3 * cpu_s.mean(0)).tolist()
        result[f"change_{kind}"] = interval.mean
        if interval.low is not None and interval.high is not None:
            result[f"change_{kind}_low"] = interval.low
            result[f"change_{kind}_high"] = interval.high
    exported = [one for _, one in pairs]
    result["exporter_ms"] = 1e3 * statistics.mean(one["exporter"] for one in exported)
    result["exporter_of_all"] = statistics.mean(
        one["exporter"] / _sum(one, "all") for one in exported
    )
    return result


def _sum(cpu_s: dict[str, float], kind: str) -> float:
    return sum(cpu_s.values()) if kind == "all" else cpu_s[kind]


def _round_cpu_s(
    folder: Path, data: Path, rounds: int, agents: int, is_exported: bool
) -> dict[str, float]:
    """Return the processor time of one round by kind of process, seconds."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--metrics", f":{port}", "--tensorboard", str(folder / "curves")]
    is_over = threading.Event()

    def scrape_once_a_second() -> None:
        while not is_over.wait(1.0):
            scrape(f"http://127.0.0.1:{port}/metrics", 0.0, 1)

    scraper = threading.Thread(target=scrape_once_a_second)
    with live_run(
        folder,
        data,
        agents=agents,
        rounds=rounds,
        batch_size=32,
        options=options if is_exported else (),
    ) as run:
        before: dict[str, float] = {}
        after: dict[str, float] = {}
        for closed in run.rounds():
            if closed == WARM_ROUNDS:
                before = run.cpu_s()
                if is_exported:
                    scraper.start()
            if closed == rounds - 1:  # after the last round the processes have ended
                after = run.cpu_s()
                is_over.set()
                if is_exported:
                    scraper.join()
    return {kind: (after[kind] - before[kind]) / (rounds - 1 - WARM_ROUNDS) for kind in after}
