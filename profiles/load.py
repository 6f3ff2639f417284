"""Find profiles and links by name or file."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from profiles.decode import decode_file, read_toml
from profiles.errors import ProfileError, TraceError, UnknownProfile
from profiles.numbers import numbers
from profiles.population import Population
from profiles.quantities import DATA, Varying
from profiles.schema import LinkProfile, Profile
from profiles.traces import TraceReader

K = TypeVar("K", bound=msgspec.Struct)

_HERE = Path(__file__).parent
_FOLDERS = {
    "profile": _HERE / "devices",
    "link": _HERE / "links",
    "population": _HERE / "populations",
}

NEAR = 5
"""As many near names are suggested."""


def names() -> list[str]:
    """Return the names of all device profiles, sorted."""
    return _names("profile")


def link_names() -> list[str]:
    """Return the names of all links, sorted."""
    return _names("link")


def population_names() -> list[str]:
    """Return the names of all populations, sorted."""
    return _names("population")


def load(name_or_path: str | Path) -> Profile:
    """Return the device profile with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no profile of this name, and no such file.
        ProfileError: The file breaks a rule.
    """
    return _load(name_or_path, "profile", Profile)


def load_link(name_or_path: str | Path) -> LinkProfile:
    """Return the link with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no link of this name, and no such file.
        ProfileError: The file breaks a rule.
    """
    return _load(name_or_path, "link", LinkProfile)


def load_population(name_or_path: str | Path) -> Population:
    """Return the population with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no population of this name, and no such file.
        ProfileError: The file breaks a rule.
    """
    return _load(name_or_path, "population", Population)


def find(name_or_path: str | Path) -> Path:
    """Return the file of a device profile, a link or a population.

    Raises:
        UnknownProfile: There is none.
    """
    text = str(name_or_path)
    for what in _FOLDERS:
        path = _path(text, what)
        if path.is_file():
            return path
    raise _unknown(text, "profile", [name for what in _FOLDERS for name in _names(what)])


def kind_of(path: Path) -> type[Profile] | type[LinkProfile] | type[Population]:
    """Return what a file is meant to be: by its folder, or else by what it holds."""
    folder = path.absolute().parent.name
    if folder == "links":
        return LinkProfile
    if folder == "populations":
        return Population
    raw = read_toml(path)
    if isinstance(raw, str):
        return Profile
    link = raw.get("link")
    if link is not None and "class" not in raw and "cores" not in raw:
        return LinkProfile
    numbers = [*raw.values(), *(link.values() if isinstance(link, dict) else ())]
    is_drawn = any(isinstance(number, dict) and "quantiles" in number for number in numbers)
    return Population if is_drawn else Profile


def check(path: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    """Return every problem of a device profile, a link or a population, one line each.

    Args:
        path: The file.
        environ: Read for `FAIRBED_DATA`, where traces of others are; None leaves these unread.
    """
    item: msgspec.Struct | None
    item, problems = decode_file(path, kind_of(path))
    if item is not None:
        problems = [f"{path}: {line}" for line in _trace_problems(item, environ)]
    return problems


def _trace_problems(item: msgspec.Struct, environ: Mapping[str, str] | None) -> Iterator[str]:
    read = TraceReader({} if environ is None else environ)
    for key, number in numbers(item):
        if not isinstance(number, Varying) or number.trace is None:
            continue
        if environ is None and number.trace.startswith(DATA):
            continue
        try:
            read.with_column(number.trace, key.rpartition(".")[2])
        except TraceError as exc:
            yield f"{key}: {exc}"


def _names(what: str) -> list[str]:
    return sorted(path.stem for path in _FOLDERS[what].glob("*.toml"))


def _path(text: str, what: str) -> Path:
    return Path(text) if text.endswith(".toml") else _FOLDERS[what] / f"{text}.toml"


def _load(name_or_path: str | Path, what: str, kind: type[K]) -> K:
    text = str(name_or_path)
    path = _path(text, what)
    if not path.is_file():
        raise _unknown(text, what, _names(what))
    decoded, problems = decode_file(path, kind)
    if decoded is None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ProfileError(problems[0] + more)
    return decoded


def _unknown(text: str, what: str, known: Sequence[str]) -> UnknownProfile:
    near = near_names(text, known)
    if near:
        hint = f"near are {', '.join(near)}; fairbed profiles list shows all"
    else:
        hint = f"use one of {', '.join(known)}, or a .toml file"
    return UnknownProfile(f"{text}: no such {what}; {hint}")


def near_names(text: str, known: Sequence[str]) -> list[str]:
    """Return the names that a person may have meant, best first.

    Near is what is spelled alike, or has all letters of `text` in their order; of the latter
    those come first that begin words with them (`pi4` is near `raspberry-pi-4b`).
    """
    wanted = text.lower().removesuffix(".toml")
    letters = "".join(letter for letter in wanted if letter.isalnum())
    alike = difflib.get_close_matches(wanted, known, n=NEAR, cutoff=0.6)
    within = [name for name in known if letters and _has_in_order(name, letters)]
    within.sort(key=lambda name: (-_words_begun(name, letters), len(name)))
    return list(dict.fromkeys([*alike, *within]))[:NEAR]


def _has_in_order(name: str, letters: str) -> bool:
    rest = iter(name)
    return all(letter in rest for letter in letters)


def _words_begun(name: str, letters: str) -> int:
    """Return how many words of a name begin where it agrees with `letters`."""
    blocks = difflib.SequenceMatcher(None, name, letters, autojunk=False).get_matching_blocks()
    return sum(block.size > 0 and f"-{name}"[block.a] == "-" for block in blocks)
