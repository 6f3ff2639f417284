"""A run without a fleet: writes the rows of a live run to its store, in real time or faster."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from heapq import merge
from pathlib import Path
from typing import Any

import numpy as np

from fairbed.coordinator.store import NewRun, Store
from fairbed.coordinator.store.schema import table_of
from fairbed.coordinator.store.store import STREAM_MAX_ROWS
from fairbed.coordinator.store.tables import (
    DeviceMetricRow,
    DeviceRow,
    EventRow,
    ExchangeRow,
    FleetContextRow,
    MetricRow,
    RoundRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)

PHASES = (
    ("downloading", 0.10),
    ("loading", 0.05),
    ("training", 0.60),
    ("encoding", 0.05),
    ("offering", 0.05),
    ("uploading", 0.15),
)
"""Reported phase of a device, and its share of the exchange time."""

TAU_S = (1.5, 4.0)
"""Range of exchange times, as in the quickstart."""

ZEROS: dict[Any, Any] = {int: 0, float: 0.0, bool: False, str: ""}
"""Values of required columns without meaning here, by type; others are absent."""

CLOSE_S = 0.2
"""From the last arrival to the next dispatch: merging, evaluation."""

CONTEXT_S = 1.0
"""Interval of the contexts of a device; it also reports each change of phase."""

COHORT = 1 / 3
"""Share of a small fleet that is selected by default; at most `MAX_COHORT` devices."""
MAX_COHORT = 20

ERROR_S = 0.2
"""Standard deviation of the predicted exchange times."""

SHORTEST_SLEEP_S = 0.01
"""Rows of shorter spans are written together: the store commits four times a second."""

BETA = 0.15
MODEL_BYTES = 345_000

EXPERIMENT = """
name = "synthetic"
seed = 7
rounds = {rounds}
[selection]
policy = "rbcs-f"
per_round = {per_round}
beta = {beta}
"""

Instant = tuple[float, partial[None]]
"""Seconds since the start, and the function that writes the rows of that instant."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    row: int
    dispatched_s: float
    tau_s: float
    tau_hat_s: float


class SyntheticRun:
    """Writes the rows of a run with synthetic devices.

    Args:
        folder: Folder of the run.
        devices: Number of devices.
        rounds: Planned rounds.
        per_round: Selected devices; 0 for a third of the fleet, `MAX_COHORT` at most.
        seed: Seed of cohorts and exchange times.
    """

    def __init__(
        self, folder: Path, devices: int, *, rounds: int = 1000, per_round: int = 0, seed: int = 7
    ) -> None:
        self.names = [f"pi-{i:03d}" for i in range(devices)]
        self.per_round = per_round or min(max(1, round(devices * COHORT)), MAX_COHORT)
        self._rng = np.random.default_rng(seed)
        self._queues = np.zeros(devices)
        self._phase = ["idle"] * devices
        self._store = Store.create(
            folder,
            NewRun(
                run_id=folder.name,
                name="synthetic",
                experiment_toml=EXPERIMENT.format(
                    rounds=rounds, per_round=self.per_round, beta=BETA
                ),
                seed=seed,
                config_hash="",
                version="",
            ),
        )
        self._join()
        self._instants = merge(self._contexts(), self._rounds(), key=lambda instant: instant[0])
        self._now_s = 0.0

    def write_for(self, seconds: float, speed: float = 1.0) -> None:
        """Continue the run for some seconds of its clock.

        Args:
            seconds: Seconds of the run's clock.
            speed: Seconds of the run's clock per second, if this machine is fast enough.
        """
        began_s, from_s = time.monotonic(), self._now_s
        for at_s, write in self._instants:
            early_s = began_s + (at_s - from_s) / speed - time.monotonic()
            if early_s > SHORTEST_SLEEP_S:
                time.sleep(early_s)
            self._store.wait_for_disk()
            write()
            self._now_s = at_s
            if at_s - from_s >= seconds:
                return

    def write_rounds(self, rounds: int) -> None:
        """Write that many rounds of a new run at once, and their contexts that a store retains."""
        closed = 0
        for at_s, write in self._rounds():
            write()
            self._now_s = at_s
            closed += write.func == self._close
            if closed == rounds:
                break
        kept = min(STREAM_MAX_ROWS // len(self.names), int(self._now_s / CONTEXT_S))
        for second in range(-kept, 0):
            for row in range(len(self.names)):
                self._context(self._now_s + second * CONTEXT_S, row)
            self._store.flush()

    def close(self) -> None:
        """End the run."""
        self._store.set_status("done")
        self._store.close()

    def _join(self) -> None:
        for row, name in enumerate(self.names):
            self._store.add(
                DeviceRow(
                    name=name,
                    row=row,
                    first_seen_s=0.0,
                    n_k=100,
                    capabilities=json.dumps({"cores": 4, "machine": "aarch64"}),
                    has_own_data=False,
                    kind="emulated",
                )
            )
            self._store.add(
                TruthRow(
                    name=name,
                    profile="raspberry-pi-4b",
                    cpu_speed=1.0,
                    cores=4,
                    down_bps=40e6,
                    up_bps=20e6,
                    delay_s=0.01,
                    malicious=None,
                    details="{}",
                )
            )
            self._event(0.0, "joined", "4 cores, 100 examples", name)
        self._store.set_status("running")
        self._store.flush()

    def _contexts(self) -> Iterator[Instant]:
        second = 0.0
        while True:
            for row in range(len(self.names)):
                at_s = second + CONTEXT_S * row / len(self.names)
                yield at_s, partial(self._context, at_s, row)
            second += CONTEXT_S

    def _rounds(self) -> Iterator[Instant]:
        number, now_s = 0, 1.0
        while True:
            number += 1
            noise = self._rng.random(len(self.names))
            rows = sorted(np.argsort(-self._queues - 0.1 * noise)[: self.per_round].tolist())
            taus = self._rng.uniform(*TAU_S, len(rows))
            hats = np.maximum(taus + self._rng.normal(0.0, ERROR_S, len(rows)), 0.1)
            cohort = [
                _Exchange(row, now_s, tau, tau_hat)
                for row, tau, tau_hat in zip(rows, taus.tolist(), hats.tolist(), strict=True)
            ]
            yield now_s, partial(self._dispatch, number, cohort)
            yield from sorted(
                (instant for exchange in cohort for instant in self._phases(number, exchange)),
                key=lambda instant: instant[0],
            )
            now_s += float(max(taus)) + CLOSE_S
            yield now_s, partial(self._close, number, cohort, now_s)

    def _phases(self, number: int, exchange: _Exchange) -> Iterator[Instant]:
        at_s = exchange.dispatched_s
        for phase, share in PHASES:
            yield at_s, partial(self._context, at_s, exchange.row, phase)
            at_s += share * exchange.tau_s
        yield at_s, partial(self._arrive, number, exchange, at_s)

    def _context(self, at_s: float, row: int, phase: str | None = None) -> None:
        if phase is not None:
            self._phase[row] = phase
        self._store.add(
            TelemetryRow(
                at_s=at_s,
                device=self.names[row],
                phase=self._phase[row],
                is_available=True,
                mu_cores=float(self._rng.uniform(0.9, 1.0)),
                downlink_bps=float(self._rng.uniform(35e6, 40e6)),
                uplink_bps=float(self._rng.uniform(15e6, 20e6)),
                cpu_ratio=0.1,
                rss_bytes=66_000_000,
                temperature_celsius=48.0,
                free_cores=3.9,
                clock_ratio=1.0,
                throttled="",
            )
        )

    def _event(
        self,
        at_s: float,
        kind: str,
        text: str,
        device: str | None = None,
        number: int | None = None,
    ) -> None:
        self._store.add(
            EventRow(
                at_s=at_s, wall="", level="info", kind=kind, round=number, device=device, text=text
            )
        )

    def _dispatch(self, number: int, cohort: list[_Exchange]) -> None:
        names = ", ".join(self.names[exchange.row] for exchange in cohort)
        self._event(cohort[0].dispatched_s, "dispatched", f"selected {names}", number=number)
        contexts = np.ones((len(self.names), 4)).tobytes()
        self._store.add(FleetContextRow(round=number, context=contexts, expected_tau_s=None))

    def _arrive(self, number: int, exchange: _Exchange, at_s: float) -> None:
        self._context(at_s, exchange.row, "idle")
        self._store.add(self._exchange_row(number, exchange))

    def _close(self, number: int, cohort: list[_Exchange], at_s: float) -> None:
        selected = {exchange.row for exchange in cohort}
        self._queues = np.maximum(
            self._queues + BETA - np.isin(np.arange(len(self.names)), sorted(selected)), 0.0
        )
        dispatched_s, tau_max_s = cohort[0].dispatched_s, max(exchange.tau_s for exchange in cohort)
        self._store.close_round(
            RoundRow(
                round=number,
                attempt=0,
                status="done",
                dispatched_at_s=dispatched_s,
                closed_at_s=at_s,
                duration_s=at_s - dispatched_s,
                tau_max_s=tau_max_s,
                close_s=CLOSE_S,
                slowest=None,
                selected=len(cohort),
                aggregated=len(cohort),
                available=len(self.names),
                queue_total=float(self._queues.sum()),
                queue_max=float(self._queues.max()),
                lag_p99_s=0.001,
                bytes_down=MODEL_BYTES * len(cohort),
                bytes_up=MODEL_BYTES * len(cohort),
                model_sha256="",
                coordinator_encode_s=None,
                loss_query_s=0.0,
                dropped_late=0,
                cancelled=0,
            ),
            [
                SelectionRow(
                    round=number,
                    device=name,
                    is_available=True,
                    is_selected=row in selected,
                    is_aggregated=row in selected,
                    tau_hat_s=float(self._rng.uniform(*TAU_S)),
                    width_s=0.1,
                    queue=float(self._queues[row]),
                    propensity=float(row in selected),
                    is_audit=False,
                    reason="ranked" if row in selected else "outranked",
                    score=-float(self._queues[row]),
                    margin=0.15,
                )
                for row, name in enumerate(self.names)
            ],
            [self._exchange_row(number, exchange) for exchange in cohort],
            checkpoint_state=b"",
            model=np.zeros(10, np.float32),
        )
        self._evaluate(number, at_s)

    def _evaluate(self, number: int, at_s: float) -> None:
        level = 0.95 - 0.8 * 0.9**number
        scores = np.clip(level + 0.05 * self._rng.standard_normal(len(self.names)), 0.0, 1.0)
        for name, score in zip(self.names, scores.tolist(), strict=True):
            self._store.add(
                DeviceMetricRow(round=number, device=name, n=40, accuracy=score, loss=1.0 - score)
            )
        self._store.add(
            MetricRow(
                round=number,
                at_s=at_s,
                accuracy_mean=float(scores.mean()),
                accuracy_pooled=float(scores.mean()),
                accuracy_worst10=float(scores.min()),
                accuracy_best10=float(scores.max()),
                accuracy_variance=float(scores.var()),
                accuracy_gini=0.02,
                accuracy_gap=float(np.ptp(scores)),
                loss_mean=float(1.0 - scores.mean()),
                loss_std=float(scores.std()),
                evaluate_s=0.05,
            )
        )

    def _exchange_row(self, number: int, exchange: _Exchange) -> ExchangeRow:
        phase_s = {phase: share * exchange.tau_s for phase, share in PHASES}
        known: dict[str, Any] = {
            "round": number,
            "device": self.names[exchange.row],
            "outcome": "done",
            "reason": "",
            "is_valid": True,
            "is_contended": False,
            "dispatched_at_s": exchange.dispatched_s,
            "tau_wall_s": exchange.tau_s,
            "tau_s": exchange.tau_s - phase_s["offering"],
            "busy_s": exchange.tau_s - phase_s["offering"],
            "queued_s": phase_s["offering"],
            "download_s": phase_s["downloading"],
            "load_s": phase_s["loading"],
            "train_s": phase_s["training"],
            "personal_s": 0.0,
            "encode_s": phase_s["encoding"],
            "upload_s": phase_s["uploading"],
            "tau_hat_s": exchange.tau_hat_s,
            "width_s": 2 * ERROR_S,
            "codec_down": "float32",
            "codec_up": "float32",
            "n_k": 100,
            "was_cold": False,
        }
        unknown: dict[str, Any] = {
            c.name: c.default if c.is_optional or c.column is not None else ZEROS[c.kind]
            for c in table_of(ExchangeRow).columns
        }
        return ExchangeRow(**(unknown | known))
