"""Rows of a run's store, built by hand: one device with known numbers."""

from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fairbed.coordinator.store import NewRun, Store
from fairbed.coordinator.store.tables import (
    DeviceRow,
    EventRow,
    ExchangeRow,
    TelemetryRow,
    TruthRow,
)
from fairbed.testbed.emulation.tcp import slow_start_s
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.experiment.file import Experiment
from fairbed.testbed.recording.analysis.from_run import DeviceOfRun, TrainingSettings
from fairbed.testbed.run_folder import WORK
from fairbed.wire.messages import Capabilities

COSTS = WorkCosts(
    train=StepCost(fixed_s=1e-3, per_example_s=1e-4),
    evaluate=StepCost(fixed_s=0.0, per_example_s=1e-5),
)
TRAINING = TrainingSettings(epochs=2, batch_size=20, costs=COSTS, core_speed=2.0)
N_K = 110
STEPS = 12


def reference_s(part_size: int) -> float:
    """Return the cost of two epochs of five batches of 20 and one of 10, on a core of speed 2."""
    batches = [20] * 5 + [10]
    return 2.0 * 2.0 * sum(1e-3 * -(-size // part_size) + 1e-4 * size for size in batches)


MODEL_BYTES = 1_000_000
CAPABILITIES = Capabilities(
    cores=4,
    memory_bytes=4 << 30,
    machine="aarch64",
    python="3.11.2",
    engine="onnxruntime 1.31.1",
    engine_threads=1,
    agent="0.1.0",
    model="Raspberry Pi 4 Model B Rev 1.4",
)


def carried_s(rate_bps: float, round_trip_s: float) -> float:
    """Return the time of TCP for a model after a pause, seconds."""
    transmission_s = 8.0 * MODEL_BYTES / rate_bps
    waited = slow_start_s(8.0 * MODEL_BYTES, np.array([transmission_s]), np.array([round_trip_s]))
    return transmission_s + float(waited[0])


@dataclass
class World:
    """A device with known numbers, and the rows that a coordinator would store of it."""

    core_speed: float = 0.4
    down_bps: list[float] = field(default_factory=lambda: [16e6])
    up_bps: list[float] = field(default_factory=lambda: [8e6])
    delay_s: float = 0.02
    cold_s: float = 1.5
    free_cores: float | None = 3.9
    clock_ratio: float | None = 1.0
    throttled: str | None = None
    compute_w: float | None = None
    """Power of the whole device outside transfers; None: it has no sensor."""
    transfer_w: float = 0.0
    part_size: int = 20
    """Examples that it computes at once."""
    rounds: int = 20
    every_s: float = 10.0

    def exchange(self, index: int) -> ExchangeRow:
        """Return the exchange of one round, the first and every fifth of them cold."""
        down_bps = self.down_bps[index % len(self.down_bps)]
        up_bps = self.up_bps[index % len(self.up_bps)]
        signal_s = 2.0 * self.delay_s
        download_s = signal_s + carried_s(down_bps, signal_s)
        upload_s = signal_s + carried_s(up_bps, signal_s)
        train_s = reference_s(self.part_size) / (self.core_speed * (self.clock_ratio or 1.0))
        was_cold = index % 5 == 0
        load_s = 0.01 + (self.cold_s if was_cold else 0.0)
        tau_s = signal_s + download_s + load_s + train_s + upload_s
        energy: dict[str, Any] = {}
        if self.compute_w is not None:
            zeros = dict.fromkeys(("decode_j", "evaluate_j", "personal_j", "encode_j"), 0.0)
            energy = {
                **zeros,
                "download_j": self.transfer_w * download_s,
                "load_j": self.compute_w * load_s,
                "train_j": self.compute_w * train_s,
                "upload_j": self.transfer_w * upload_s,
            }
            energy["energy_j"] = sum(energy.values())
        return ExchangeRow(
            round=index + 1,
            attempt=0,
            device="pi-1",
            outcome="done",
            reason="",
            is_valid=True,
            dispatched_at_s=5.0 + index * self.every_s,
            tau_wall_s=tau_s,
            queued_s=0.0,
            tau_s=tau_s,
            busy_s=tau_s,
            signal_s=signal_s,
            unaccounted_s=0.0,
            download_s=download_s,
            load_s=load_s,
            evaluate_s=0.0,
            train_s=train_s,
            train_cpu_s=train_s,
            personal_s=0.0,
            encode_s=0.0,
            upload_s=upload_s,
            decode_s=0.0,
            contended_s=None,
            contended_download_s=None,
            contended_compute_s=None,
            contended_upload_s=None,
            lag_s=0.0,
            is_contended=False,
            codec_down="float32",
            codec_up="float32",
            bytes_down=MODEL_BYTES,
            bytes_up=MODEL_BYTES,
            duplicates_up=0,
            concurrent=0,
            n_k=N_K,
            steps=STEPS,
            was_cold=was_cold,
            loss_before=None,
            loss_train=1.0,
            mu_cores=self.clock_ratio or 1.0,
            downlink_bps=None,
            uplink_bps=None,
            link_age_s=None,
            context_age_s=0.1,
            s_not_previous=0,
            s_literal_seed=0,
            tau_hat_s=None,
            width_s=None,
            steady_down_bytes=None,
            steady_down_s=None,
            steady_up_bytes=None,
            steady_up_s=None,
            staleness=0,
            aggregated_round=index + 1,
            weight=1.0,
            weight_share=1.0,
            n_share=1.0,
            defence_scale=1.0,
            **energy,
        )

    def context(self, at_s: float) -> TelemetryRow:
        """Return the context of one second."""
        return TelemetryRow(
            at_s=at_s,
            device="pi-1",
            phase="idle",
            is_available=True,
            mu_cores=self.clock_ratio or 1.0,
            downlink_bps=None,
            uplink_bps=None,
            cpu_ratio=0.1,
            rss_bytes=None,
            temperature_celsius=50.0,
            free_cores=self.free_cores,
            clock_ratio=self.clock_ratio,
            throttled=self.throttled,
        )

    def device(self) -> DeviceOfRun:
        """Return the device with all its rows."""
        length_s = 5.0 + self.rounds * self.every_s
        row = DeviceRow(
            name="pi-1",
            row=0,
            first_seen_s=0.0,
            n_k=N_K,
            capabilities="",
            has_own_data=False,
            kind="emulated",
        )
        return DeviceOfRun(
            row=row,
            capabilities=CAPABILITIES,
            exchanges=[self.exchange(index) for index in range(self.rounds)],
            telemetry=[self.context(float(t)) for t in range(int(length_s) + 1)],
            length_s=length_s,
            run_created="2026-01-01T00:00:00",
        )


def with_exchanges(device: DeviceOfRun, *exchanges: ExchangeRow) -> DeviceOfRun:
    """Return a device with these exchanges before its own."""
    return replace(device, exchanges=[*exchanges, *device.exchanges])


EXPERIMENT = """
name = "by-hand"
[training]
epochs = 2
batch_size = 20
[emulation]
host_core_speed = 2.0
"""


def make_run(
    root: Path,
    world: World,
    experiment: str = EXPERIMENT,
    *,
    is_emulated: bool = True,
    costs: WorkCosts = COSTS,
) -> Path:
    """Return the folder of a run with one device and stored training costs."""
    folder, device = root / "by-hand", world.device()
    resolved = msgspec.toml.decode(experiment, type=Experiment).resolved_toml()
    with closing(
        Store.create(
            folder,
            NewRun(
                run_id="by-hand",
                name="by-hand",
                experiment_toml=resolved,
                seed=0,
                config_hash="",
                version="0",
            ),
        )
    ) as store:
        capabilities = msgspec.json.encode(CAPABILITIES).decode()
        kind = "emulated" if is_emulated else "physical"
        store.add(replace(device.row, capabilities=capabilities, kind=kind))
        if is_emulated:
            store.add(_truth())
        for context in device.telemetry:
            store.add(context)
        for exchange in device.exchanges:
            store.add(exchange)
        end = EventRow(
            at_s=device.length_s,
            wall="",
            level="info",
            kind="done",
            round=None,
            device=None,
            text="the end",
        )
        store.add(end)
    (folder / WORK).write_bytes(msgspec.json.encode(costs))
    return folder


def _truth() -> TruthRow:
    return TruthRow(
        name="pi-1",
        profile="raspberry-pi-4b",
        cpu_speed=0.4,
        cores=4,
        down_bps=16e6,
        up_bps=8e6,
        delay_s=0.02,
        malicious=None,
        details="{}",
    )
