"""Examines the conditions of a live run, and records when its alerts begin and end."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import numpy as np

from fairbed.coordinator.policy.config import CoordinatorConfig
from fairbed.coordinator.state.alerts import (
    MIN_DISK_ROUNDS,
    AlertChange,
    AlertKind,
    Alerts,
    AvailabilityWindow,
    HostLoad,
    LossGrowth,
    broker_lost,
    disk_low,
    infeasible,
    no_device,
    other_scales,
    troubles,
)
from fairbed.coordinator.state.registry import Registry
from fairbed.coordinator.state.waits import SHOWN_AFTER_S, Waits
from fairbed.coordinator.store.event_log import EventLog
from fairbed.coordinator.store.tables import AlertRow, ExchangeRow, MetricRow
from fairbed.wire.scale import Scale

PERIOD_S = 1.0
"""Time between two examinations."""

DISK_PERIOD_S = 30.0
"""Time between two measurements of the disk, which list all files of the run."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The disk of a run."""

    free_bytes: int
    """For users without privileges."""
    run_bytes: int
    """Files of the run, without the write-ahead log of its store, which is reused."""


def disk_use(folder: Path) -> DiskUse:
    """Return the free space of the disk of a folder, and the size of its files.

    Raises:
        OSError: The folder cannot be read.
    """
    run_bytes = 0
    for parent, _, files in os.walk(folder):
        for name in files:
            if not name.endswith(("-wal", "-shm")):
                try:
                    run_bytes += os.lstat(os.path.join(parent, name)).st_size
                except OSError:  # removed meanwhile
                    continue
    return DiskUse(shutil.disk_usage(folder).free, run_bytes)


class AlertMonitor:
    """Begins and ends the alerts of one run.

    Args:
        registry: The devices.
        event_log: Clock, store and log.
        config: Returns the configuration of the open round.
        on_alert: Receives each alert that begins or ends.
        measure_disk: Measures the disk of the folder of the run; called off the event loop.
        task_scale: Scale of the data set of the run; None for tokens.
        is_emulated: This machine emulates devices of the run.
        waits: What the run waits for.
        open_devices: Returns the devices with an open exchange.
        stall_alert_s: Age of a wait from which a person gets a message, seconds of the run's clock;
            None: never.
    """

    def __init__(
        self,
        registry: Registry,
        event_log: EventLog,
        config: Callable[[], CoordinatorConfig],
        on_alert: Callable[[AlertChange], None],
        measure_disk: Callable[[Path], DiskUse] = disk_use,
        task_scale: Scale | None = None,
        *,
        is_emulated: bool = True,
        waits: Waits | None = None,
        open_devices: Callable[[], Sequence[str]] = tuple,
        stall_alert_s: float | None = None,
    ) -> None:
        self._registry = registry
        self._event_log = event_log
        self._config = config
        self._on_alert = on_alert
        self._measure_disk = measure_disk
        self._task_scale = task_scale
        self._is_emulated = is_emulated
        self._waits = waits or Waits(event_log.now, event_log.clock)
        self._open_devices = open_devices
        self._stall_alert_s = stall_alert_s
        self._waiting = ""
        """What the store states that the run waits for."""
        self._is_long = False
        """The standing wait was reported as a long one."""
        self._alerts = Alerts()
        self._availability = AvailabilityWindow()
        self._host = HostLoad()
        self._loss = LossGrowth(event_log.store.task, event_log.store.earlier_losses())
        self._is_training = False
        self._down_reason: str | None = None
        self._first_round_bytes: tuple[int, int] | None = None
        """Round and size of the run at the first measurement of this process."""
        self._last_round = self._rounds_empty = 0

    def set_link(self, down_reason: str | None) -> None:
        """Note whether the link to the broker is up (None), or why it is down."""
        self._down_reason = down_reason

    def begin_training(self) -> None:
        """Note that the devices of round 1 are ready: from here on a device is expected."""
        self._is_training = True
        self._update({"infeasible": self._infeasible()})

    def close_round(
        self, round_id: int, exchanges: Iterable[ExchangeRow], rounds_empty: int = 0
    ) -> None:
        """Examine what a round shows.

        Args:
            round_id: The round.
            exchanges: Its exchanges, and earlier ones that ended in it.
            rounds_empty: Empty rounds up to it: so many more are to come.
        """
        self._last_round, self._rounds_empty = round_id, rounds_empty
        now = self._event_log.now()
        at_work = (x.busy_round is not None and x.is_present(now) for x in self._registry)
        flags = np.fromiter(at_work, dtype=np.bool_, count=len(self._registry))
        self._availability.add(flags | self._registry.available(now))
        for row in exchanges:
            if row.outcome == "done" and row.tau_s is not None:
                self._host.add(row.device, row.is_contended)
        is_standing = self._alerts.stands("host busy")
        self._update(
            {
                "infeasible": self._infeasible(),
                "host busy": self._host.text(
                    is_standing=is_standing, is_emulated=self._is_emulated
                ),
            }
        )

    def evaluate(self, metric: MetricRow) -> None:
        """Examine an evaluation of the global model."""
        self._loss.add(metric.round, metric.loss_mean)
        self._update({"diverged": self._loss.text})

    async def run(self) -> None:
        """Examine link, devices and disk until cancelled."""
        disk_due = self._event_log.now()
        while True:
            now = self._event_log.now()
            found = self._link_and_devices(now)
            if now >= disk_due:
                disk_due = now + DISK_PERIOD_S
                found["disk low"] = await self._disk_low()
            self._update(found)
            await anyio.sleep(PERIOD_S)

    def close(self) -> None:
        """End the alerts that are over as the run ends; the others stay, as its last state."""
        now = self._event_log.now()
        self._update(self._link_and_devices(now))
        self._record(self._alerts.finish())

    def _link_and_devices(self, now: float) -> dict[AlertKind, str | None]:
        reason = self._down_reason
        found: dict[AlertKind, str | None] = {
            "broker lost": None if reason is None else broker_lost(reason),
            "no device": None,  # nothing is known of them without the broker
            "other scale": other_scales(self._scales(), self._task_scale),
            "stalled": None,
            "trouble": troubles(
                (x.name, x.trouble.text) for x in self._registry if x.trouble is not None
            ),
        }
        found["stalled"] = self._stalled(now) if reason is None else None
        if self._is_training and reason is None and found["stalled"] is None:
            statuses = [device.status(now) for device in self._registry]
            found["no device"] = no_device(statuses, self._registry.present(now))
        return found

    def _stalled(self, now: float) -> str | None:
        """Note what the run waits for; return it in one line if that needs a person."""
        waits = self._waits
        wait = waits.find(self._registry, self._open_devices(), now, is_training=self._is_training)
        age_s = waits.age_s(now)
        waiting = "" if wait is None or age_s < SHOWN_AFTER_S else wait.status
        if waiting != self._waiting:
            self._waiting = waiting
            self._event_log.store.set_waiting(waiting)
        limit_s = self._stall_alert_s
        if wait is None or limit_s is None or age_s < limit_s:
            self._is_long = self._is_long and wait is not None
        elif not self._is_long:
            self._is_long = True
            begin_s = self._event_log.at_s(now - age_s)
            self._on_alert(AlertChange("stalled", wait.text, begin_s, is_long=True))
        return wait.text if wait is not None and waits.is_alert(now) else None

    def _scales(self) -> Iterable[tuple[str, Scale]]:
        return ((x.name, x.scale) for x in self._registry if x.scale is not None)

    async def _disk_low(self) -> str | None:
        try:
            use = await anyio.to_thread.run_sync(
                self._measure_disk, self._event_log.store.folder, abandon_on_cancel=True
            )
        except OSError:  # the folder is gone, which the store reports
            return None
        if self._first_round_bytes is None and self._last_round:
            self._first_round_bytes = self._last_round, use.run_bytes
        per_round = None
        first_round, first_bytes = self._first_round_bytes or (self._last_round, use.run_bytes)
        if (rounds := self._last_round - first_round) >= MIN_DISK_ROUNDS:
            per_round = max(use.run_bytes - first_bytes, 0) / rounds
        return disk_low(
            use.free_bytes,
            per_round,
            self._config().rounds + self._rounds_empty - self._last_round,
            is_standing=self._alerts.stands("disk low"),
        )

    def _infeasible(self) -> str | None:
        config = self._config()
        if not config.selection.has_queues:
            return None
        upper = self._availability.upper_bounds(len(self._registry))
        counted = [
            device for device in self._registry if not (device.is_excluded or device.is_refused)
        ]
        rows = [device.row for device in counted]
        return infeasible(
            [device.name for device in counted],
            upper[rows],
            config.updates_per_version,
            config.selection.beta,
        )

    def _update(self, found: dict[AlertKind, str | None]) -> None:
        self._record(self._alerts.update(found, self._event_log.at_s()))

    def _record(self, changes: Iterable[AlertChange]) -> None:
        for change in changes:
            self._event_log.add(
                AlertRow(
                    kind=change.kind, begin_s=change.begin_s, end_s=change.end_s, text=change.text
                )
            )
            if change.is_new:
                self._event_log.event(change.kind, change.text, level="warning", is_logged=False)
            elif change.end_s is not None:
                text = f"over after {change.end_s - change.begin_s:.0f} s"
                self._event_log.event(change.kind, text, is_logged=False)
            if change.is_new or change.is_over:
                self._on_alert(change)
