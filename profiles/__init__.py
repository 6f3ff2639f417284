"""Device profiles: what a device can do, with the source of every number."""

from profiles.errors import ProfileError, TraceError, UnknownProfile
from profiles.load import (
    check,
    find,
    link_names,
    load,
    load_link,
    load_population,
    names,
    population_names,
)
from profiles.numbers import course_of, numbers
from profiles.population import Population
from profiles.quantities import Quantity, Varying
from profiles.sampling import sample
from profiles.schema import Link, LinkProfile, Profile
from profiles.tracks import DeviceTracks, LinkTracks, device_tracks
from profiles.write import to_toml

__all__ = [
    "DeviceTracks",
    "Link",
    "LinkProfile",
    "LinkTracks",
    "Population",
    "Profile",
    "ProfileError",
    "Quantity",
    "TraceError",
    "UnknownProfile",
    "Varying",
    "check",
    "course_of",
    "device_tracks",
    "find",
    "link_names",
    "load",
    "load_link",
    "load_population",
    "names",
    "numbers",
    "population_names",
    "sample",
    "to_toml",
]
