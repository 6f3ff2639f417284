"""Device profiles: what a device can do, with the source of every number."""

from profiles.errors import ProfileError, UnknownProfile
from profiles.load import check, link_names, load, load_link, names
from profiles.schema import Link, LinkProfile, Profile, Quantity

__all__ = [
    "Link",
    "LinkProfile",
    "Profile",
    "ProfileError",
    "Quantity",
    "UnknownProfile",
    "check",
    "link_names",
    "load",
    "load_link",
    "names",
]
