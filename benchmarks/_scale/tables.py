"""The tables of a live coordinator with a large fleet: time of a decision, and memory.

A registry of devices that have all joined and reported a context; so many of them are at work on an
open exchange. The results are processor time, with the number of devices and with a tenth and a
hundredth of it, each in a separate process: of a round's decision (contexts, availability,
selection), of the parts of it, of the bookkeeping at the round's end, and of one arriving context;
and memory per device. Nothing is trained and nothing is sent.

The plan is arithmetic: each of 10^4, 10^5 and 10^6 devices sends a context every second, and a
round selects a share of them, which downloads and uploads a model of 1 MB.
"""

import gc
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from benchmarks._meter import peak_rss_bytes
from benchmarks._scale.curve import Curve, Row
from benchmarks.selection import PART_OF_FAIR_SHARE
from experiments.processes import fresh_processes
from fairbed.coordinator.policy.config import RoundConfig, SelectionConfig
from fairbed.coordinator.policy.decisions import make_decisions
from fairbed.coordinator.state.registry import Registry
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.progress import tracked
from fairbed.wire.codec import decode_from_device, encode
from fairbed.wire.messages import Capabilities, Context, Hello

NOW_S = 100.0
MODEL_BITS = 8e6
"""A model of 1 MB."""

CONNECTIONS_PER_NODE = 50_000
"""Of a broker; an assumption, not measured here."""

CONTEXT_S = 120e-6
"""Processor time of a coordinator for one context of a live device, with its MQTT client: 0.012
cores with `fairbed bench idle-fleet --agents 100 --model softmax --seconds 10`."""

TOPIC_BYTES = 40
"""Topic and headers of a context."""


class Cost(Struct, frozen=True, kw_only=True):
    """The tables of one fleet; times are processor time, seconds, medians."""

    devices: int
    in_flight: int
    contexts_s: float
    """Of the four columns of contexts."""
    available_s: float
    """Of the column of availability."""
    n_k_s: float
    """Of the column of training examples."""
    select_s: float
    """Of a whole decision, which has the three columns in it."""
    absences_s: float
    """Of the reasons of all devices that are not available."""
    close_s: float
    """Of the registry's part in the end of a round."""
    report_s: float
    """Of decoding and recording one arriving context."""
    bytes_per_device: float
    """Peak memory beyond an empty process."""


TIMES = ("contexts_s", "available_s", "n_k_s", "select_s", "absences_s", "close_s", "report_s")


def alone(devices: int, in_flight: int, per_round: int, rounds: int) -> Cost:
    """Run `measure` in a separate process."""
    with fresh_processes(1) as pool:
        return pool.submit(measure, devices, in_flight, per_round, rounds).result()


def measure(devices: int, in_flight: int, per_round: int, rounds: int) -> Cost:
    """Return the cost of rounds in this process."""
    empty_bytes = peak_rss_bytes(os.getpid())
    registry = full_registry(devices, in_flight)
    gc.collect()
    gc.disable()  # a collection visits all devices, which would be in the time of any part
    bytes_per_device = (peak_rss_bytes(os.getpid()) - empty_bytes) / devices
    beta = PART_OF_FAIR_SHARE * per_round / devices
    selection = SelectionConfig(policy="rbcs-f", estimator="ridge", per_round=per_round, beta=beta)
    settings = Experiment(name="bench", selection=selection, round=RoundConfig(deadline_s=1e6))
    decisions = make_decisions(settings.coordinator())
    bits = MODEL_BITS, MODEL_BITS
    names = registry.names()
    is_available = registry.available(NOW_S)
    times: dict[str, list[float]] = {name: [] for name in TIMES}
    for number in range(1, rounds + 1):
        cost = {
            "contexts_s": used_s(lambda: registry.contexts(*bits, "not_previous")),
            "available_s": used_s(lambda: registry.available(NOW_S)),
            "n_k_s": used_s(registry.n_k),
            "select_s": used_s(
                lambda number=number: decisions.select(number, registry, bits, NOW_S)  # type: ignore[misc]  # mypy cannot infer it
            ),
            "absences_s": used_s(lambda: registry.absences(is_available, NOW_S)),
            "close_s": used_s(lambda: registry.close_round(names[:per_round], (), ())),
            "report_s": report_s(registry, names[-per_round:], number),
        }
        for name, seconds in cost.items():
            times[name].append(seconds)
    return Cost(
        devices=devices,
        in_flight=in_flight,
        bytes_per_device=bytes_per_device,
        **{name: statistics.median(values) for name, values in times.items()},
    )


def full_registry(devices: int, in_flight: int) -> Registry:
    """Return a registry of devices in contact, of which the first are at work."""
    registry, rng = Registry(), np.random.default_rng(7)
    known = Capabilities(
        cores=4, memory_bytes=1 << 32, machine="aarch64", python="3.11", engine="onnxruntime",
        engine_threads=4, agent="0",
    )  # fmt: skip
    hello = Hello(boot=1, capabilities=known, n_k=100)
    mu, rates = rng.uniform(0.5, 4.0, devices), rng.uniform(1e6, 1e8, (2, devices))
    for row in range(devices):
        name = f"device-{row}"
        registry.join(name, hello, NOW_S)
        registry.update_context(name, context(1, mu[row], rates[0, row], rates[1, row]), NOW_S)
    registry.open_round((f"device-{row}" for row in range(in_flight)), 0)
    return registry


def context(seq: int, mu: float, down_bps: float, up_bps: float) -> Context:
    """Return a context of a device that is ready."""
    return Context(
        boot=1, seq=seq, mu_cores=float(mu), downlink_bps=float(down_bps), link_age_s=1.0,
        uplink_bps=float(up_bps), is_ready=True, n_k=100,
    )  # fmt: skip


def used_s(call: Callable[[], object]) -> float:
    """Return the processor time of a call, seconds."""
    began = time.process_time()
    call()
    return time.process_time() - began


def report_s(registry: Registry, names: Sequence[str], number: int) -> float:
    """Return the processor time of decoding and recording one context, mean over `names`."""
    payload = encode(context(number + 1, 2.0, 1e7, 1e7))

    def record() -> None:
        for name in names:
            report = decode_from_device(payload)
            assert isinstance(report, Context)
            registry.update_context(name, report, NOW_S)

    return used_s(record) / len(names)


ROWS = {
    "select_s": "decision of a round (RBCS-F, ridge)",
    "contexts_s": "of it contexts, (N, 4)",
    "available_s": "of it availability, (N,)",
    "n_k_s": "of it examples, (N,)",
    "absences_s": "reasons of absence",
    "close_s": "end of a round",
    "report_s": "one arriving context",
}


def costs_of(devices: int, in_flight: int, per_round: int, rounds: int) -> list[Cost]:
    """Return the costs of a fleet, of a tenth and of a hundredth of it, by size."""
    least = per_round + in_flight
    sizes = sorted({max(least, devices // part) for part in (100, 10, 1)})
    return [
        alone(size, in_flight, per_round, rounds) for size in tracked(sizes, "fleets", "tables")
    ]


def curve_of(costs: Sequence[Cost]) -> Curve:
    """Return the costs over the number of devices."""
    rows = [
        Row(text=text, values=[1e3 * getattr(cost, name) for cost in costs])
        for name, text in ROWS.items()
    ]
    memory = Row(text="memory, bytes per device", values=[cost.bytes_per_device for cost in costs])
    return Curve(
        title="processor time, ms; devices", sizes=[cost.devices for cost in costs],
        rows=[*rows, memory],
    )  # fmt: skip


class Setting(Struct, frozen=True, kw_only=True):
    """What the plan assumes."""

    round_s: float
    share: float
    """Part of the devices that a round selects."""
    core_price: float
    """Of an hour of a core."""
    gb_price: float
    """Of 10^9 bytes that leave the coordinator's site."""


def plan(cost: Cost, setting: Setting) -> str:
    """Return what large live fleets need, by arithmetic, as a table in Markdown."""
    context_bytes = len(encode(context(1, 2.0, 1e7, 1e7))) + TOPIC_BYTES
    has_price = setting.core_price > 0.0 or setting.gb_price > 0.0
    lines = [
        "| live devices | broker nodes | contexts in, Mbit/s | coordinator, cores for contexts | "
        "its decision, cores | models, Mbit/s each way |"
        + (" price per hour |" if has_price else ""),
        "|---:|" + "---:|" * (5 + has_price),
    ]
    for devices in (10_000, 100_000, 1_000_000):
        nodes = max(3, math.ceil(devices / CONNECTIONS_PER_NODE))
        context_cores = devices * CONTEXT_S
        decision_cores = cost.select_s * devices / cost.devices / setting.round_s
        model_bps = MODEL_BITS * setting.share * devices / setting.round_s
        cells = [
            f"{devices:,}",
            f"{nodes}",
            f"{8e-6 * context_bytes * devices:.1f}",
            f"{context_cores:.1f}",
            f"{decision_cores:.1g}",
            f"{1e-6 * model_bps:,.1f}",
        ]
        if has_price:
            cores = nodes + context_cores + decision_cores
            gb = model_bps / 8e9 * 3600.0
            cells.append(f"{cores * setting.core_price + gb * setting.gb_price:,.2f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
