"""Device profiles: devices and links as numbers, each with its source."""

from fairbed.profiles.errors import ProfileError, TraceError, UnknownProfile
from fairbed.profiles.load import (
    cell_names,
    check,
    find,
    link_names,
    load,
    load_cell,
    load_link,
    load_population,
    names,
    population_names,
    warnings,
)
from fairbed.profiles.numbers import numbers, schedule_text, unknown_numbers
from fairbed.profiles.population import Population
from fairbed.profiles.quantities import Quantity, Varying
from fairbed.profiles.sampling import sample
from fairbed.profiles.schema import (
    CellProfile,
    CellShare,
    Discipline,
    Link,
    LinkProfile,
    LinkQueue,
    Profile,
    StepTime,
)
from fairbed.profiles.tracks import DeviceTracks, LinkTracks, device_tracks
from fairbed.profiles.write import to_toml

__all__ = [
    "CellProfile",
    "CellShare",
    "DeviceTracks",
    "Discipline",
    "Link",
    "LinkProfile",
    "LinkQueue",
    "LinkTracks",
    "Population",
    "Profile",
    "ProfileError",
    "Quantity",
    "StepTime",
    "TraceError",
    "UnknownProfile",
    "Varying",
    "cell_names",
    "check",
    "device_tracks",
    "find",
    "link_names",
    "load",
    "load_cell",
    "load_link",
    "load_population",
    "names",
    "numbers",
    "population_names",
    "sample",
    "schedule_text",
    "to_toml",
    "unknown_numbers",
    "warnings",
]
