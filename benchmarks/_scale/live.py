"""Costs of live fleets: over their agents, over the size of a model, and over rounds.

All agents are unthrottled ones of the process backend and send contexts at 1 Hz. Processor times
are of all processes of a kind, in one round.
"""

import statistics
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import idle_fleet, soak
from benchmarks._live_run import live_run, save_random_examples
from benchmarks._meter import peak_rss_bytes
from benchmarks._scale.curve import Curve, Row
from benchmarks._scale.messages import messages_of_exchange
from fairbed.coordinator.store import RunReader
from fairbed.testbed.progress import tracked
from fairbed.wire.chunks import suitable_chunk_bytes

TEXTS = {"coordinator": "coordinator", "broker": "broker", "agents": "all agents"}
"""Kinds of processes in the tables."""

COHORT = 5
"""Devices of a round, where their number is not what varies."""

COHORT_ROUNDS = 400

AT_REST_S = 10.0
"""Duration of the measurement of a paused run."""

MODEL_AGENTS = 4
MODEL_ROUNDS = 12
MESSAGE_ROUNDS = 4, 14
"""Of the two runs whose messages are counted."""
HIDDEN, CLASSES = 128, 10
"""Of an MLP for data whose shape no shipped model has."""

STAGES = (0.1, 0.25, 0.5, 0.75, 0.95)
"""Parts of a long run after which a column ends."""


def over_agents(counts: Sequence[int]) -> Curve:
    """Return the cost of fleets of which 5 agents are in each round, and of waiting ones."""
    soaks, idle = [], []
    for count in tracked(counts, "fleets", "agents"):
        soaks.append(soak.measure(COHORT_ROUNDS, count, min(COHORT, count), "softmax", "auto"))
        idle.append(idle_fleet.measure(count, "softmax", AT_REST_S, separate=False))
    rows = [
        *(
            Row(
                text=f"a round of {COHORT}: {text}, ms of a core",
                values=[1e3 * one.cpu_s_per_round[kind] for one in soaks],
            )
            for kind, text in TEXTS.items()
        ),
        *(
            Row(
                text=f"at rest: {text}, ms of a core in a second",
                values=[1e3 * one[f"idle_cores_{kind}"] for one in idle],
            )
            for kind, text in TEXTS.items()
        ),
        Row(
            text="memory: coordinator, MiB",
            values=[one.samples[-1].rss_mib["coordinator"] for one in soaks],
        ),
        Row(
            text="memory: broker, MiB", values=[one.samples[-1].rss_mib["broker"] for one in soaks]
        ),
        Row(
            text="memory: an agent at rest, its share (PSS), MiB",
            values=[one["pss_median_mib"] for one in idle],
        ),
        Row(
            text="start to the end of round 1, s",
            values=[one["first_round_done_s"] for one in idle],
        ),
        Row(
            text="connections of the broker",
            values=[float(count + 1) for count in counts],
            has_exponent=False,
        ),
        Row(
            text=f"exchanges done, of {COHORT} x {COHORT_ROUNDS}",
            values=[float(one.outcomes.get("done", 0)) for one in soaks],
            has_exponent=False,
        ),
    ]
    return Curve(title="agents", sizes=list(map(float, counts)), rows=rows)


def over_model_size(sizes_mb: Sequence[float]) -> Curve:
    """Return the cost of a model of so many MB (10^6 bytes), in one step of training a round."""
    costs = [_model_cost(size) for size in tracked(sizes_mb, "sizes", "models")]
    rows = [Row(text=text, values=[cost[text] for cost in costs]) for text in costs[0]]
    return Curve(title="model, MB", sizes=list(sizes_mb), rows=rows)


def _model_cost(size_mb: float) -> dict[str, float]:
    """Return costs by the text of their row."""
    features = round((size_mb * 1e6 / 4 - CLASSES * (HIDDEN + 1)) / HIDDEN) - 1
    with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as name:
        folder = Path(name)
        data = folder / "random.npz"
        save_random_examples(data, CLASSES * MODEL_AGENTS, (features,))
        with live_run(
            folder, data, agents=MODEL_AGENTS, rounds=MODEL_ROUNDS, max_steps=1, batch_size=8
        ) as run:
            for round_id in run.rounds():
                if round_id == 1:
                    before = run.cpu_s()
                if round_id == MODEL_ROUNDS - 1:  # after the last round the processes have ended
                    after = run.cpu_s()
                    peak_mib = {
                        kind: max(peak_rss_bytes(process.pid) for process in processes) / 2**20
                        for kind, processes in run.processes().items()
                        if processes
                    }
            with RunReader(run.folder) as reader:
                closed = reader.rounds()[1:]
                exchanges = [x for x in reader.exchanges(0) if x.round > 1]
        messages = messages_of_exchange(data, MODEL_AGENTS, MESSAGE_ROUNDS)
    done = [x for x in exchanges if x.outcome == "done"]
    if len(done) != MODEL_AGENTS * (MODEL_ROUNDS - 1):
        raise SystemExit(f"scale: {size_mb:g} MB: {len(done)} of {len(exchanges)} exchanges done")

    def median_ms(phase: str) -> float:
        values: list[float] = [value for x in done if (value := getattr(x, phase)) is not None]
        return 1e3 * statistics.median(values)

    n_bytes = statistics.median(x.bytes_down for x in done)
    chunk_bytes = suitable_chunk_bytes(8e3 * n_bytes / median_ms("download_s"), int(n_bytes))
    used_ms = {kind: 1e3 * (after[kind] - before[kind]) / (MODEL_ROUNDS - 2) for kind in TEXTS}
    return {
        "bytes down of an exchange, MB": n_bytes / 1e6,
        "bytes up of an exchange, MB": statistics.median(x.bytes_up for x in done) / 1e6,
        "chunks of a model at this speed": float(-(-n_bytes // chunk_bytes)),
        **{f"messages {way} per exchange": count for way, count in messages.items()},
        "download, ms": median_ms("download_s"),
        "upload, ms": median_ms("upload_s"),
        f"round of {MODEL_AGENTS}, ms": 1e3 * statistics.median(x.duration_s for x in closed),
        **{
            f"a round: {text}, ms of a core": used_ms[kind]
            for kind, text in TEXTS.items()
        },
        "peak memory: coordinator, MiB": peak_mib["coordinator"],
        "peak memory: broker, MiB": peak_mib["broker"],
        "peak memory: an agent, MiB": peak_mib["agents"],
    }  # fmt: skip


def over_rounds(rounds: int) -> Curve:
    """Return the cost of a round of three agents and the memory, as a run goes on."""
    result = soak.measure(rounds, 3, 3, "softmax", "auto")
    ends = [0.0, *(part * rounds for part in STAGES)]
    samples = result.samples[1:]  # the first one has the start of all processes
    step = rounds // soak.SAMPLES  # a reading may be some rounds late
    stages = [
        [sample for sample in samples if begin < sample.round // step * step <= end]
        for begin, end in pairwise(ends)
    ]
    rows = [
        Row(
            text=f"a round: {text}, ms of a core",
            values=[
                1e3 * statistics.mean(sample.cpu_s_per_round[kind] for sample in stage)
                for stage in stages
            ],
        )
        for kind, text in TEXTS.items()
    ]
    rows += [
        Row(
            text=f"memory: {text}, MiB",
            values=[stage[-1].rss_mib[kind] for stage in stages],
        )
        for kind, text in {**TEXTS, "agents": "largest agent"}.items()
    ]
    return Curve(title="rounds", sizes=ends[1:], rows=rows)
