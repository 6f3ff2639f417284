"""Find profiles by name, and decode their files strictly."""

import re
import sys
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from profiles.errors import ProfileError, UnknownProfile
from profiles.schema import LinkProfile, Profile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

K = TypeVar("K", Profile, LinkProfile)

_HERE = Path(__file__).parent
_FOLDERS: dict[type[Profile] | type[LinkProfile], Path] = {
    Profile: _HERE / "devices",
    LinkProfile: _HERE / "links",
}
_AT = re.compile(r" - at `\$\.?([^`]*)`$")
_ADVICE = "see profiles/schema.py"


def names() -> list[str]:
    """Return the names of all device profiles, sorted."""
    return _names(Profile)


def link_names() -> list[str]:
    """Return the names of all links, sorted."""
    return _names(LinkProfile)


def load(name_or_path: str | Path) -> Profile:
    """Return the device profile with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no profile of this name, and no such file.
        ProfileError: The file breaks a rule.
    """
    return _load(name_or_path, Profile)


def load_link(name_or_path: str | Path) -> LinkProfile:
    """Return the link with this name, or in this `.toml` file.

    Raises:
        UnknownProfile: There is no link of this name, and no such file.
        ProfileError: The file breaks a rule.
    """
    return _load(name_or_path, LinkProfile)


def check(path: Path) -> list[str]:
    """Return every problem of a profile, one line each; a file of a folder `links` is a link."""
    if path.absolute().parent.name == "links":
        return _decode(path, LinkProfile)[1]
    return _decode(path, Profile)[1]


def _names(kind: type[Profile] | type[LinkProfile]) -> list[str]:
    return sorted(path.stem for path in _FOLDERS[kind].glob("*.toml"))


def _load(name_or_path: str | Path, kind: type[K]) -> K:
    text = str(name_or_path)
    path = Path(text) if text.endswith(".toml") else _FOLDERS[kind] / f"{text}.toml"
    if not path.is_file():
        what = "profile" if kind is Profile else "link"
        raise UnknownProfile(
            f"{text}: no such {what}; use one of {', '.join(_names(kind))}, or a .toml file"
        )
    decoded, problems = _decode(path, kind)
    if decoded is None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise ProfileError(problems[0] + more)
    return decoded


def _decode(path: Path, kind: type[K]) -> tuple[K | None, list[str]]:
    """Return the decoded file and no problems, or None and all its problems."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        return None, [f"{path}: must be a readable UTF-8 file, got {error}; check the path"]
    except tomllib.TOMLDecodeError as error:
        return None, [f"{path}: must be TOML, got {error}; correct that line"]
    problems = list(_field_problems(path, raw, kind))
    if problems:
        return None, problems
    try:
        return msgspec.convert({**raw, "name": path.stem}, kind), []
    except msgspec.ValidationError as error:
        return None, [f"{path}: {error}; {_ADVICE}"]


def _field_problems(path: Path, raw: dict[str, Any], kind: type[K]) -> list[str]:
    fields = {item.encode_name: item for item in msgspec.structs.fields(kind)}
    name_type = fields.pop("name").type
    problems = [
        f"{path}: {key}: unknown key, got {_short(raw[key])}; use only {', '.join(fields)}"
        for key in raw
        if key not in fields
    ]
    try:
        msgspec.convert(path.stem, name_type)
    except msgspec.ValidationError:
        rule = "the file name must be 1 to 32 of a-z, 0-9 and hyphen"
        problems.append(f"{path}: {rule}, got {path.stem!r}; rename it")
    for key, item in fields.items():
        if key not in raw:
            problems.append(f"{path}: {key}: must be given, got nothing; add it, {_ADVICE}")
            continue
        try:
            msgspec.convert(raw[key], item.type)
        except msgspec.ValidationError as error:
            problems.append(f"{path}: {_explain(error, key, raw[key])}")
    return problems


def _explain(error: msgspec.ValidationError, key: str, raw: Any) -> str:
    """Return `key path: rule, got value; what to do` of one validation error."""
    text = str(error)
    match = _AT.search(text)
    steps = [step for step in match.group(1).split(".") if step] if match else []
    value = raw
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else value
    rule = _AT.sub("", text).replace("`", "")
    rule = re.sub(r", got \w+$", "", rule.replace("Expected", "must be"))
    rule = rule.replace("Object missing required field", "must have the key")
    rule = rule.replace("Object contains unknown field", "must not have the key")
    rule = re.sub(r"^Invalid enum value .*", "must be one of the words that the schema lists", rule)
    where = ".".join([key, *steps])
    return f"{where}: {rule}, got {_short(value)}; correct it, {_ADVICE}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
