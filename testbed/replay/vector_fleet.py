"""A vector fleet: columns instead of one object per device, for very large fleets.

Every device has the numbers that `plan_fleet` would draw for it, because both draw them from the
same stream. The numbers of a population are constant over time; only availability varies
(`AvailabilityCycles`).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import overload

import msgspec
import numpy as np

from fairbed import profiles
from fairbed.coordinator.algorithms.arrays import Floats, Ints
from fairbed.coordinator.algorithms.random_streams import uniforms
from fairbed.coordinator.store.tables import DRAWN_LINK, DeviceRow, Record, TruthRow
from fairbed.profiles import Link, Population
from fairbed.profiles.sampling import columns
from fairbed.profiles.tracks import DAY_S
from fairbed.testbed.emulation.power import POWERS, PhasePower, phase_powers
from fairbed.testbed.experiment.file import Experiment, ExperimentError, FleetConfig
from fairbed.testbed.experiment.fleet import MAX_EMULATED, MAX_NAME, drawn_link, stream
from fairbed.testbed.experiment.noise import device_levels
from fairbed.testbed.replay.world.columns import (
    AvailabilityCycles,
    MeanConditions,
    VaryingConditions,
)
from fairbed.testbed.replay.world.phases import Purpose


class DeviceNames(Sequence[str]):
    """Device names by row: PREFIX-1, PREFIX-2, ..., group after group.

    Args:
        groups: Prefix and number of devices of each group; all prefixes differ.
    """

    def __init__(self, groups: Sequence[tuple[str, int]]) -> None:
        self._prefixes = [prefix for prefix, _ in groups]
        self._starts = list(accumulate((count for _, count in groups), initial=0))

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return self._starts[-1]

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[str]: ...

    def __getitem__(self, row: int | slice) -> str | Sequence[str]:
        """Return the name of a row, or the names of some.

        Raises:
            IndexError: There is no such row.
        """
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        at = row + len(self) if row < 0 else row
        if not 0 <= at < len(self):
            raise IndexError(f"row must be below {len(self)}, got {row}")
        return f"{self._prefixes[self.group(at)]}-{at - self.first(at) + 1}"

    def group(self, row: int) -> int:
        """Return the group of a row, 0 for the first."""
        return bisect_right(self._starts, row) - 1

    def first(self, row: int) -> int:
        """Return the first row of the group of a row."""
        return self._starts[self.group(row)]


@dataclass(frozen=True, slots=True)
class PowerColumns(Sequence[PhasePower]):
    """The power of each device, by row."""

    transfer_w: Floats
    """Shape (N,); NaN is unknown, likewise below."""
    compute_w: Floats

    def __len__(self) -> int:
        """Return the number of devices, N."""
        return len(self.transfer_w)

    @overload
    def __getitem__(self, row: int) -> PhasePower: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[PhasePower]: ...

    def __getitem__(self, row: int | slice) -> PhasePower | Sequence[PhasePower]:
        """Return the power of the device of a row, or those of some."""
        if isinstance(row, slice):
            return PowerColumns(self.transfer_w[row], self.compute_w[row])
        return PhasePower(float(self.transfer_w[row]), float(self.compute_w[row]))


@dataclass(frozen=True, slots=True)
class VectorFleet:
    """Devices of a fleet that is drawn from populations."""

    names: DeviceNames
    populations: tuple[str, ...]
    """Population of each group."""
    means: MeanConditions
    availability: AvailabilityCycles
    powers: PowerColumns
    memory_bytes: Ints
    """Main memory of each device, shape (N,)."""
    drawn: Sequence[tuple[Sequence[str], Ints]]
    """Of each group the links of which its devices drew, and their places, shape (n,)."""
    lossy: tuple[str, ...] = ()
    """Groups whose links lose packets, which a replay of so many devices leaves out."""

    @property
    def left_out(self) -> str | None:
        """What a replay leaves out of the links, as a line; None is nothing."""
        if not self.lossy:
            return None
        return (
            f"left out of this replay: packet loss of {', '.join(self.lossy)}; at most "
            f"{MAX_EMULATED:,} devices are replayed with it"
        )

    @property
    def varying(self) -> VaryingConditions:
        """Conditions that vary over time: only availability."""
        return VaryingConditions(available=self.availability)

    def device_records(
        self, row: int, examples: Ints, base: tuple[int, Floats] | None = None
    ) -> list[Record]:
        """Return the reported and the true values of one device.

        Args:
            row: Row of the device.
            examples: n_k of all devices, shape (N,).
            base: Size of the frozen part of the model, and how long each device downloads it,
                seconds, shape (N,); None: there is none.
        """
        means, name = self.means, self.names[row]
        population, cores = self.populations[self.names.group(row)], int(means.cores[row])
        names = [column.name for column in fields(MeanConditions)]
        numbers = {name: float(getattr(means, name)[row]) for name in names}
        numbers |= {"available": float(self.availability.share[row])}
        details = {DRAWN_LINK: self._drawn_link(row), **numbers}
        capabilities = {"machine": "replayed", "model": population, "cores": cores}
        return [
            DeviceRow(
                name=name,
                row=row,
                first_seen_s=0.0,
                n_k=int(examples[row]),
                capabilities=msgspec.json.encode(capabilities).decode(),
                has_own_data=False,
                kind="replayed",
                base_bytes=None if base is None else base[0],
                base_s=None if base is None else float(base[1][row]),
            ),
            TruthRow(
                name=name,
                profile=population,
                cpu_speed=float(means.per_core[row]),
                cores=cores,
                down_bps=float(means.down_bps[row]),
                up_bps=float(means.up_bps[row]),
                delay_s=float(means.delay_s[row]),
                malicious=None,
                details=msgspec.json.encode(details).decode(),
            ),
        ]

    def _drawn_link(self, row: int) -> str | None:
        links, places = self.drawn[self.names.group(row)]
        return links[places[row - self.names.first(row)]] if links else None


def is_vector_fleet(experiment: Experiment) -> bool:
    """Return whether a fleet has too many devices to plan them one by one."""
    return experiment.devices > MAX_EMULATED


def vector_fleet_of(experiment: Experiment) -> VectorFleet:
    """Return the devices of a large fleet.

    Args:
        experiment: Its seed `fleet` draws the devices, its seed `traces` their availability.

    Raises:
        ExperimentError: A group is not drawn from a population, or has a trace or an outage.
        ProfileError: A population or link is unknown, or breaks a rule.
    """
    groups = []
    for number, group in enumerate(experiment.fleet):
        where = f"fleet[{number}]"
        if group.malicious is not None:
            raise ExperimentError(
                f"{where}.malicious: must not be set in a fleet of over {MAX_EMULATED:,} devices, "
                f"got {experiment.devices:,}; lower the counts"
            )
        if group.population is None or group.trace is not None or group.outage:
            raise ExperimentError(
                f"{where}: must be drawn from a population, without trace and outage, in a fleet "
                f"of over {MAX_EMULATED:,} devices, got {experiment.devices:,}; lower the counts"
            )
        population = profiles.load_population(group.population)
        prefix = group.name or population.name
        if len(f"{prefix}-{group.count}") > MAX_NAME:
            raise ExperimentError(
                f"{where}.name: must leave room for the device's number, got {prefix!r}; "
                "give a shorter name"
            )
        groups.append((prefix, group, population))
    prefixes = [prefix for prefix, _, _ in groups]
    if len(set(prefixes)) < len(prefixes):
        raise ExperimentError("fleet: names must differ, got a name twice; name the groups apart")
    if experiment.emulation.unavailable_as == "unplugged":
        raise ExperimentError(
            f"emulation.unavailable_as: must be unwilling for over {MAX_EMULATED:,} devices, "
            "got unplugged"
        )
    seed = experiment.seed_for("traces")
    drawn = [
        _drawn(
            group,
            population,
            stream(experiment.seed_for("fleet"), number),
            _places(seed, prefix, group),
        )
        for number, (prefix, group, population) in enumerate(groups)
    ]
    rows = np.arange(experiment.devices, dtype=np.int64)
    numbers = _joined([group.numbers for group in drawn])
    down, compute, up = device_levels(experiment.noise, seed, rows)
    for key, level in (("down_bps", down), ("per_core", compute), ("up_bps", up)):
        numbers[key] = numbers[key] / level
    return VectorFleet(
        DeviceNames([(prefix, group.count) for prefix, group, _ in groups]),
        tuple(population.name for _, _, population in groups),
        MeanConditions(**numbers),
        AvailabilityCycles(
            np.concatenate([group.share for group in drawn]),
            np.concatenate([group.cycle_s for group in drawn]),
            uniforms(seed, 0, rows, Purpose.AVAILABILITY),
        ),
        PowerColumns(
            np.concatenate([group.powers[0] for group in drawn]),
            np.concatenate([group.powers[1] for group in drawn]),
        ),
        np.concatenate([group.memory_bytes for group in drawn]),
        [
            (group.links if group.draws_link else (), found.places)
            for (_, group, _), found in zip(groups, drawn, strict=True)
        ],
        tuple(prefix for (prefix, _, _), group in zip(groups, drawn, strict=True) if group.loses),
    )


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Columns of one group, each of shape (n,)."""

    numbers: dict[str, Floats]
    """For `MeanConditions`."""
    share: Floats
    """Share of the time in which a device is available."""
    cycle_s: Floats
    """From one availability window to the next."""
    powers: tuple[Floats, Floats]
    """`transfer_w` and `compute_w`."""
    memory_bytes: Ints
    loses: bool
    """Links lose packets."""
    places: Ints
    """Place of each device's link among those of the group."""


def _places(seed: int, prefix: str, group: FleetConfig) -> Ints:
    """Return the place of the link of each device, shape (n,)."""
    if not group.draws_link:
        return np.zeros(group.count, dtype=np.int64)
    names = (f"{prefix}-{number}" for number in range(1, group.count + 1))
    places = (drawn_link(seed, name, len(group.links)) for name in names)
    return np.fromiter(places, dtype=np.int64, count=group.count)


def _drawn(
    group: FleetConfig, population: Population, rng: np.random.Generator, places: Ints
) -> _Drawn:
    n, found = group.count, columns(population, group.count, rng)
    links = [profiles.load_link(name).link for name in group.links]
    none = np.zeros(n)
    numbers = {
        "per_core": found["core_speed"],
        "cores": found["cores"],
        "threads": found["engine_threads"],
        "busy_cores": found["background_load"],
        "clock_ratio": np.ones(n),
        "storage_bytes_per_s": found["storage_read_bytes_per_s"],
        "cold_start_s": np.full(n, np.nan),
        **{
            name: _of_links(links, name)[places] if links else found.get(f"link.{name}", none)
            for name in ("down_bps", "up_bps", "delay_s", "jitter_s")
        },
    }
    availability, share, cycle_s = population.availability, np.ones(n), np.full(n, DAY_S)
    if availability is not None and not group.always_available:
        share = found["availability.available"]
        if availability.session_s is not None:
            np.divide(availability.session_s.value, share, out=cycle_s, where=share > 0.0)
    watts = {key: found[f"energy.{key}"] for key in POWERS if f"energy.{key}" in found}
    powers = phase_powers(watts, found["engine_threads"] / found["cores"])
    loss = _of_links(links, "loss_ratio") if links else found.get("link.loss_ratio", none)
    return _Drawn(
        numbers,
        share,
        cycle_s,
        powers,
        found["memory_bytes"].astype(np.int64),
        loses=bool(loss.any()),
        places=places,
    )


def _of_links(links: Sequence[Link], name: str) -> Floats:
    """Return a number of each link, shape (L,)."""
    return np.array([float(getattr(link, name)) for link in links])


def _joined(groups: Sequence[dict[str, Floats]]) -> dict[str, Floats]:
    return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}
