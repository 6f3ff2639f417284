"""Durations of exchanges drawn from logs (`[[fleet]] exchange_times`).

Device n of a group replays device n of the log; with more devices than the log has, they begin
again. In each round one recorded round is taken for the group, so that devices which were slow
together, because they shared a server or a network, are slow together in the replay:

    r = P_e(t mod R)   in round t, with R recorded rounds and a drawn permutation P_e of them for
                       every R rounds, e = floor(t / R)
    duration of device n = that of its row in r

A device without a row in that round draws one of its own rows, as all devices do if the log has no
rounds. Further copies of the log's devices have permutations of their own.

Phases that the log has are replaced. With a total, the other phases of the profile are scaled to
the rest of it, so an exchange lasts the recorded total.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairbed.coordinator.algorithms.arrays import Bools, Floats, Ints
from fairbed.coordinator.algorithms.random_streams import uniforms
from fairbed.profiles.exchange_log import TOTAL, ExchangeLog
from fairbed.testbed.replay.world.phases import PHASES, Purpose
from fairbed.testbed.replay.world.world import Exchanges


@dataclass(frozen=True, slots=True)
class LoggedGroup:
    """Devices that replay a log."""

    first: int
    """Row of the first device."""
    count: int
    log: ExchangeLog


class RecordedTimes:
    """Draws the durations of the exchanges of devices with a log.

    Args:
        groups: The devices; no two groups share a row.
        n: Devices of the fleet.
        seed: Seed of the draws.
    """

    def __init__(self, groups: Sequence[LoggedGroup], n: int, seed: int) -> None:
        self._seed = seed
        self._groups = [_IndexedLog(group, number) for number, group in enumerate(groups)]
        self._mean_s: Floats = np.full(n, np.nan)
        for group in self._groups:
            members = slice(group.first, group.first + group.count)
            self._mean_s[members] = group.mean_total_s()

    @property
    def mean_total_s(self) -> Floats:
        """Mean duration of an exchange by the log, seconds, shape (N,); NaN without a total."""
        return self._mean_s

    def has(self, rows: Ints) -> Bools:
        """Return which devices have a log, shape (K,)."""
        found = np.zeros(len(rows), dtype=np.bool_)
        for group in self._groups:
            found |= group.members(rows)
        return found

    def applied(self, round_id: int, rows: Ints, exchanges: Exchanges) -> Exchanges:
        """Return exchanges with the durations of the logs, for the devices that have one.

        Args:
            round_id: The round of the dispatch.
            rows: Devices, shape (K,).
            exchanges: Their exchanges by profile and link.
        """
        columns = {name: getattr(exchanges, name).astype(np.float64) for name in PHASES}
        for group in self._groups:
            at = np.flatnonzero(group.members(rows))
            if at.size:
                group.write(columns, at, group.drawn(self._seed, round_id, rows[at]))
        return replace(exchanges, **columns)


class _IndexedLog:
    """A log with its rows by device and round."""

    def __init__(self, group: LoggedGroup, number: int) -> None:
        self.first, self.count = group.first, group.count
        self._number, self._log = number, group.log
        log = group.log
        self._by_device = np.argsort(log.device, kind="stable")
        self._begin = np.searchsorted(log.device[self._by_device], np.arange(len(log.devices)))
        self._rows_of = np.bincount(log.device, minlength=len(log.devices))
        rounds = np.zeros_like(log.device) if log.round is None else log.round
        keys = log.device * max(log.n_rounds, 1) + rounds
        self._by_key = np.argsort(keys, kind="stable")
        self._keys = keys[self._by_key]
        self._orders: dict[tuple[int, int], Ints] = {}
        """Permutations of the rounds by copy of the devices and `e`."""

    def members(self, rows: Ints) -> Bools:
        """Return which rows are devices of the group, shape (K,)."""
        return (rows >= self.first) & (rows < self.first + self.count)

    def mean_total_s(self) -> Floats:
        """Return the mean total of each device, shape (count,); NaN without a total."""
        device = np.arange(self.count) % len(self._log.devices)
        totals = self._log.durations_s.get(TOTAL)
        if totals is None:
            return np.full(self.count, np.nan)
        sums = np.bincount(self._log.device, weights=totals, minlength=len(self._log.devices))
        means: Floats = (sums / self._rows_of)[device]
        return means

    def drawn(self, seed: int, round_id: int, rows: Ints) -> Ints:
        """Return the row of the log for each device, shape (K,)."""
        n_devices = len(self._log.devices)
        copy, device = np.divmod(rows - self.first, n_devices)
        own = uniforms(seed, round_id, rows, Purpose.RECORDED_ROW)
        place = self._begin[device] + (own * self._rows_of[device]).astype(np.int64)
        found: Ints = self._by_device[place]
        if self._log.round is None:
            return found
        taken = np.empty_like(copy)
        for one in np.unique(copy).tolist():
            taken[copy == one] = self._round(seed, one, round_id)
        keys = device * self._log.n_rounds + taken
        where = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[where] == keys, self._by_key[where], found)

    def _round(self, seed: int, copy: int, round_id: int) -> int:
        """Return the recorded round that a copy of the devices replays in a round."""
        epoch, place = divmod(round_id, self._log.n_rounds)
        if (copy, epoch) not in self._orders:
            self._orders = {key: o for key, o in self._orders.items() if key[1] == epoch}
            rng = np.random.Generator(np.random.PCG64([seed, self._number, copy, epoch]))
            self._orders[copy, epoch] = rng.permutation(self._log.n_rounds)
        return int(self._orders[copy, epoch][place])

    def write(self, columns: dict[str, Floats], at: Ints, drawn: Ints) -> None:
        """Write the durations of log rows `drawn` into the columns of the exchanges `at`."""
        durations_s = self._log.durations_s
        given = {f"{key}_s": v[drawn] for key, v in durations_s.items() if key != TOTAL}
        for name, values in given.items():
            columns[name][at] = values
        if TOTAL not in durations_s:
            return
        rest_s = durations_s[TOTAL][drawn] - sum(given.values(), np.zeros(len(at)))
        rest_s = np.maximum(rest_s, 0.0)
        others = [name for name in columns if name not in given]
        known_s = sum((columns[name][at] for name in others), np.zeros(len(at)))
        is_known = (known_s > 0.0) & np.isfinite(known_s)
        scale = np.where(is_known, rest_s / np.where(is_known, known_s, 1.0), 0.0)
        for name in others:
            columns[name][at] = np.where(is_known, columns[name][at] * scale, 0.0)
        columns["signal_s"][at] += np.where(is_known, 0.0, rest_s)
