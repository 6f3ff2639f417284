"""A synthetic run, written through the real store; it depends on the seed only."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from fairbed.coordinator.algorithms.selection.base import WORDS, Reason
from fairbed.coordinator.algorithms.selection.explanation import explain_ranking
from fairbed.coordinator.records.rows import choice_columns
from fairbed.coordinator.store import NewRun, Provenance, Store
from fairbed.coordinator.store.connection import DATABASE
from fairbed.coordinator.store.tables import (
    ClientMetricRow,
    DeviceMetricRow,
    DeviceRow,
    EventRow,
    ExchangeRow,
    MetricRow,
    RoundRow,
    SelectionRow,
    TelemetryRow,
    TruthRow,
)

Floats: TypeAlias = NDArray[np.float64]

BETA = 0.15
PER_ROUND = 4
MODEL_BYTES = 40_000
N_VALUES = 10
PROFILES = {
    "raspberry-pi-3b-plus": (0.06, 20e6, 10e6),
    "raspberry-pi-4b": (0.14, 40e6, 20e6),
    "jetson-nano": (0.18, 60e6, 30e6),
    "phone-mid": (0.25, 25e6, 8e6),
}
"""Speed in reference cores, downlink and uplink in bit/s."""
VOID_ROUND = 6
LATE_ROUND = 10


FEDAVG = 'rule = "fedavg"\n'


def experiment_toml(rounds: int, aggregation: str = FEDAVG) -> str:
    """Return the resolved experiment of a fake run."""
    return (
        f'name = "digits-12"\nseed = 7\nrounds = {rounds}\n'
        f'[selection]\npolicy = "rbcs-f"\nV = 0.0\nper_round = {PER_ROUND}\nbeta = {BETA}\n'
        f'queue_counts = "selected"\n[aggregation]\n{aggregation}'
    )


def make_store(
    folder: Path, rounds: int = 30, dilation: float = 1.0, aggregation: str = FEDAVG
) -> Store:
    """Create the store of a run without rows."""
    return Store.create(
        folder,
        NewRun(
            run_id=folder.name,
            name="digits-12",
            experiment_toml=experiment_toml(rounds, aggregation),
            seed=7,
            config_hash="c0ffee",
            version="0.1.0",
            provenance=Provenance(git_revision="abc1234", packages={"fairbed": "0.1.0"}),
            dilation=dilation,
        ),
    )


def as_older(folder: Path) -> None:
    """Make the store of a run look like one that an older Fairbed wrote."""
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        connection.execute("PRAGMA application_id = 0")
        connection.execute("PRAGMA user_version = 12")


@dataclass
class FakeRun:
    """Writes rounds of a fleet whose exchange times follow from its profiles."""

    folder: Path
    devices: int = 12
    rounds: int = 30
    seed: int = 7
    dilation: float = 1.0
    aggregation: str = FEDAVG
    """Keys of `[aggregation]`."""
    malicious: Mapping[int, str] = field(default_factory=dict)
    """Kinds of malicious devices, by row."""
    physical: frozenset[int] = frozenset()
    """Rows of physical devices; the others are emulated."""
    watts: float | None = None
    """Power of each device; None: unknown."""
    has_long_names: bool = False
    """Names of devices begin with the whole name of their profile, as those of a run do."""
    round: int = 0
    now_s: float = 0.0
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.store = make_store(self.folder, self.rounds, self.dilation, self.aggregation)
        kinds = list(PROFILES)
        self.profiles = [kinds[i % len(kinds)] for i in range(self.devices)]
        heads = [p if self.has_long_names else p.rsplit("-", 1)[0][:12] for p in self.profiles]
        self.names = [f"{head}-{i:02d}" for i, head in enumerate(heads)]
        self.queues: Floats = np.zeros(self.devices)
        self.n_k = self.rng.integers(60, 140, self.devices)
        for row, (name, profile) in enumerate(zip(self.names, self.profiles, strict=True)):
            speed, down_bps, up_bps = PROFILES[profile]
            self.store.add(
                DeviceRow(
                    name=name,
                    row=row,
                    first_seen_s=0.1 * row,
                    n_k=int(self.n_k[row]),
                    capabilities=json.dumps({"cores": 4, "machine": "aarch64", "model": profile}),
                    has_own_data=False,
                    kind="physical" if row in self.physical else "emulated",
                )
            )
            if row not in self.physical:
                self.store.add(
                    TruthRow(
                        name=name,
                        profile=profile,
                        cpu_speed=speed,
                        cores=4,
                        down_bps=down_bps,
                        up_bps=up_bps,
                        delay_s=0.01,
                        malicious=self.malicious.get(row),
                        details="{}",
                    )
                )
            self.event("joined", f"4 cores, {self.n_k[row]} examples", device=name)
            self.telemetry(row, "idle")
        self.now_s = 2.0
        self.raw = b""
        """Raw part of the models of the next rounds."""
        self.measures = False
        """Its devices have a client, which measures."""
        self.store.set_status("running")

    def event(
        self, kind: str, text: str, *, device: str | None = None, level: str = "info"
    ) -> None:
        """Write an event."""
        self.store.add(
            EventRow(
                at_s=self.now_s,
                wall="2026-01-01T10:00:00.000+00:00",
                level=level,
                kind=kind,
                round=self.round or None,
                device=device,
                text=text,
            )
        )

    def telemetry(self, row: int, phase: str) -> None:
        """Write a context."""
        _, down_bps, up_bps = PROFILES[self.profiles[row]]
        self.store.add(
            TelemetryRow(
                at_s=self.now_s,
                device=self.names[row],
                phase=phase,
                is_available=True,
                mu_cores=1.0 - 0.02 * row,
                downlink_bps=0.95 * down_bps,
                uplink_bps=0.95 * up_bps,
                cpu_ratio=0.1,
                rss_bytes=70_000_000,
                temperature_celsius=48.0,
                free_cores=3.9,
                clock_ratio=1.0,
                throttled="",
            )
        )

    def begin_round(self) -> list[int]:
        """Dispatch a round and leave it open; return the cohort's rows."""
        self.round += 1
        cohort = (
            []
            if self.round == VOID_ROUND
            else sorted(np.argsort(-self.queues - 0.01 * self.rng.random(self.devices))[:PER_ROUND])
        )
        self.cohort = [int(row) for row in cohort]
        rows, before = np.arange(self.devices), self.queues
        self.why = explain_ranking(
            self.devices,
            rows,
            np.array(self.cohort, dtype=np.int64),
            costs=np.zeros(self.devices),
            gains=before,
            score=-before,
        )
        self.queues = np.maximum(self.queues + BETA - np.isin(range(self.devices), cohort), 0.0)
        names = ", ".join(self.names[row] for row in self.cohort)
        self.event(
            "dispatched",
            f"round {self.round}: asked {names}" if names else "no device was available",
        )
        for row in self.cohort:
            self.telemetry(row, "training")
        return self.cohort

    def exchange(self, row: int) -> ExchangeRow:
        """Return the exchange of one device of the open round, not yet stored."""
        speed, down_bps, up_bps = PROFILES[self.profiles[row]]
        noise = 1.0 + 0.05 * self.rng.standard_normal()
        train_s = float(self.n_k[row] * 0.002 / speed * noise)
        is_late = self.round == LATE_ROUND and row == self.cohort[0]
        download_s, upload_s = 8 * MODEL_BYTES / down_bps, 8 * MODEL_BYTES / up_bps
        load_s, encode_s, signal_s, queued_s = 0.1, 0.01, 0.02, 0.05
        tau_s = download_s + load_s + train_s + encode_s + upload_s + signal_s + 0.004
        return ExchangeRow(
            round=self.round,
            attempt=0,
            device=self.names[row],
            outcome="late" if is_late else "done",
            reason="no upload within 60 s" if is_late else "",
            is_valid=not is_late,
            dispatched_at_s=self.now_s,
            tau_wall_s=None if is_late else tau_s + queued_s,
            queued_s=queued_s,
            tau_s=None if is_late else tau_s,
            busy_s=tau_s,
            signal_s=signal_s,
            unaccounted_s=None if is_late else 0.004,
            download_s=download_s,
            load_s=load_s,
            evaluate_s=0.0,
            train_s=None if is_late else train_s,
            train_cpu_s=None if is_late else train_s * speed,
            personal_s=None if is_late else 0.0,
            encode_s=None if is_late else encode_s,
            upload_s=None if is_late else upload_s,
            decode_s=None if is_late else 0.0,
            contended_s=None,
            contended_download_s=None,
            contended_compute_s=None,
            contended_upload_s=None,
            lag_s=0.0,
            is_contended=False,
            codec_down="float32",
            codec_up="float32",
            bytes_down=MODEL_BYTES,
            bytes_up=0 if is_late else MODEL_BYTES,
            duplicates_up=0,
            concurrent=len(self.cohort) - 1,
            n_k=int(self.n_k[row]),
            steps=int(self.n_k[row]) // 20,
            was_cold=True,
            loss_before=None,
            loss_train=1.5 / self.round,
            mu_cores=1.0 - 0.02 * row,
            downlink_bps=down_bps,
            uplink_bps=up_bps,
            link_age_s=1.0,
            context_age_s=0.3,
            s_not_previous=1,
            s_literal_seed=0,
            tau_hat_s=0.0 if self.round == 1 else tau_s * (1.0 + 0.5 / self.round),
            width_s=0.1,
            steady_down_bytes=None,
            steady_down_s=None,
            steady_up_bytes=None,
            steady_up_s=None,
            staleness=None if is_late else 0,
            aggregated_round=None if is_late else self.round,
            weight=None if is_late else 0.25,
            weight_share=None if is_late else 0.25,
            n_share=None if is_late else (0.2, 0.3)[row % 2],
            defence_scale=None if is_late else 1.0,
            energy_j=None if self.watts is None else self.watts * tau_s,
        )

    def close_round(self) -> None:
        """Close the open round: exchanges, selection, model, metrics."""
        exchanges = [self.exchange(row) for row in self.cohort]
        done = [e for e in exchanges if e.tau_wall_s is not None]
        tau_max_s = max((e.tau_wall_s or 0.0 for e in done), default=1.0)
        dispatched_at_s, self.now_s = self.now_s, self.now_s + tau_max_s + 0.02
        aggregated, is_void = {e.device for e in done}, self.round == VOID_ROUND
        selections = [
            SelectionRow(
                round=self.round,
                device=name,
                is_available=not is_void,
                is_selected=row in self.cohort,
                is_aggregated=name in aggregated,
                tau_hat_s=0.0 if self.round == 1 else 0.5 + 0.1 * row,
                width_s=0.1,
                queue=float(self.queues[row]),
                propensity=float(row in self.cohort),
                is_audit=False,
                reason=str(WORDS[Reason.OFFLINE if is_void else self.why.reason[row]]),
                score=None if is_void else float(self.why.score[row]),
                margin=None if is_void else float(self.why.margin[row]),
            )
            for row, name in enumerate(self.names)
        ]
        self.store.close_round(
            RoundRow(
                round=self.round,
                attempt=0,
                status="done" if done else "void",
                dispatched_at_s=dispatched_at_s,
                closed_at_s=self.now_s,
                duration_s=tau_max_s + 0.02,
                tau_max_s=tau_max_s,
                close_s=0.02,
                slowest=max(done, key=lambda e: e.tau_wall_s or 0.0).device if done else None,
                selected=len(self.cohort),
                aggregated=len(done),
                available=0 if is_void else self.devices,
                queue_total=float(self.queues.sum()),
                queue_max=float(self.queues.max()),
                lag_p99_s=0.001,
                bytes_down=MODEL_BYTES * len(self.cohort),
                bytes_up=MODEL_BYTES * len(done),
                model_sha256="",
                coordinator_encode_s=None,
                loss_query_s=0.01 if is_void else 0.0,  # a query without a reply: no empty round
                dropped_late=0,
                cancelled=0,
                **choice_columns(self.why, self.names),
            ),
            selections,
            exchanges,
            checkpoint_state=f"after {self.round}".encode(),
            model=np.full(N_VALUES, self.round, np.float32),
            raw=self.raw,
        )
        for row, e in enumerate(done if self.measures else ()):
            for phase, name, value in (
                ("fit", "cost", 10.0 * self.round + row),
                ("evaluate", "cost", 5.0 * self.round),
            ):
                metric = ClientMetricRow(
                    round=self.round,
                    device=e.device,
                    phase=phase,
                    name=name,
                    value=value,
                    n=row + 1,
                )
                self.store.add(metric)
        for e in exchanges:
            if e.outcome == "late":
                self.event("late", f"{e.device}: {e.reason}", device=e.device, level="warning")
        self.evaluate()
        for row in range(self.devices):
            self.telemetry(row, "idle")

    def evaluate(self) -> None:
        """Write the metrics of the round that was just closed."""
        level = 0.92 - 0.8 * 0.88**self.round
        ratios = np.clip(level + 0.05 * self.rng.standard_normal(self.devices), 0.0, 1.0)
        losses = 2.3 * 0.9**self.round + 0.1 * self.rng.random(self.devices)
        ordered = np.sort(ratios)
        for name, ratio, loss in zip(self.names, ratios, losses, strict=True):
            self.store.add(
                DeviceMetricRow(
                    round=self.round, device=name, n=40, accuracy=float(ratio), loss=float(loss)
                )
            )
        self.store.add(
            MetricRow(
                round=self.round,
                at_s=self.now_s,
                accuracy_mean=float(ratios.mean()),
                accuracy_pooled=float(ratios.mean()),
                accuracy_worst10=float(ordered[0]),
                accuracy_best10=float(ordered[-1]),
                accuracy_variance=float(ratios.var()),
                accuracy_gini=0.02,
                accuracy_gap=float(ordered[-1] - ordered[0]),
                loss_mean=float(losses.mean()),
                loss_std=float(losses.std()),
                evaluate_s=0.05,
            )
        )

    def play(self, rounds: int) -> None:
        """Write complete rounds."""
        for _ in range(rounds):
            self.begin_round()
            self.close_round()

    def finish(self, status: str = "done") -> Path:
        """End the run and return its folder."""
        self.event("done", f"{self.round} rounds done")
        self.store.set_status(status)
        self.store.close()
        return self.folder


def fake_run(folder: Path, *, rounds: int = 30, devices: int = 12, status: str = "done") -> Path:
    """Fill `folder` with a run that has ended."""
    run = FakeRun(folder, devices=devices, rounds=rounds)
    run.play(rounds)
    return run.finish(status)
