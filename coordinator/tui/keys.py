"""Keys of the control room, and those that the user chose in `control-room.toml`."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec
from msgspec import Struct
from textual.binding import Binding, InvalidBinding
from textual.dom import DOMNode
from textual.keys import Keys
from textual.screen import ModalScreen

from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of

PACKAGE = "fairbed.coordinator.tui."
EVERYWHERE = ("ControlRoom", "RunScreen")
"""Classes whose keys work on every screen."""

_MODIFIERS = re.compile(r"(?:(?:ctrl|shift|alt|super|meta|hyper)\+)+")
_NAMES = frozenset(key.value for key in Keys)
_SHORT = {"slash": "/", "plus": "+", "minus": "-"}
"""Characters of names that are none of Unicode's."""


class KeysError(ValueError):
    """The user's keys cannot be used; the message is one line that explains why."""


@dataclass(frozen=True, slots=True)
class KeyAction:
    """What some keys do."""

    id: str
    """Name in the user's file."""
    keys: tuple[str, ...]
    """Keys unless the user chose others, as Textual names them."""
    names: tuple[str, ...]
    """Names in the footer; two if the key changes its meaning."""
    words: str
    places: tuple[str, ...]
    """Classes of the screens and widgets where the keys work."""


class UserKeys(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The user's file."""

    keys: dict[str, str] = {}
    """Keys by the id of what they do."""


def keys_file(environ: Mapping[str, str]) -> Path:
    """Return the file of the user's keys, as the XDG base directories place it."""
    config = environ.get("XDG_CONFIG_HOME")
    folder = Path(config) if config else Path.home() / ".config"
    return folder / "fairbed/control-room.toml"


def _declared() -> Iterator[tuple[type[DOMNode], Binding]]:
    """Yield the bindings of the control room; dialogs name their keys themselves."""
    classes: list[type[DOMNode]] = [DOMNode]
    for kind in classes:
        classes += [x for x in kind.__subclasses__() if x not in classes]
        if f"{kind.__module__}.".startswith(PACKAGE) and not issubclass(kind, ModalScreen):
            for binding in Binding.make_bindings(kind.__dict__.get("BINDINGS", [])):
                yield kind, binding


def key_actions() -> list[KeyAction]:
    """Return what keys do, those of every screen first; all screens must have been imported."""
    found: dict[str, list[tuple[type[DOMNode], Binding]]] = {}
    for kind, binding in _declared():
        if binding.id:
            found.setdefault(binding.id, []).append((kind, binding))

    def unique(texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(texts))

    actions = [
        KeyAction(
            name,
            unique(binding.key for _, binding in same),
            unique(binding.description for _, binding in same),
            "; ".join(unique(binding.tooltip for _, binding in same)),
            unique(kind.__name__ for kind, _ in same),
        )
        for name, same in found.items()
    ]
    return sorted(actions, key=lambda action: (action.places[0] not in EVERYWHERE, action.places))


def read_keys(path: Path) -> dict[str, str]:
    """Return the user's keys by id, as Textual names them; empty without a file.

    Raises:
        KeysError: The file cannot be read, names an unknown id or key, or one key for two things
            on one screen. No key of the file may be used then.
    """
    try:
        found = toml_of(text_of(path.read_bytes()))
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise KeysError(f"{path}: must be a readable text, got: {exc}") from exc
    except NotText as exc:
        raise KeysError(f"{path}: {exc}") from exc
    except TOMLDecodeError as exc:
        raise KeysError(f"{path}: not valid TOML: {exc}") from exc
    try:
        chosen = msgspec.convert(found, UserKeys).keys
    except msgspec.ValidationError as exc:
        raise KeysError(
            f'{path}: must have a table [keys] with lines such as pause = "p", got: {exc}'
        ) from exc
    actions = {action.id: action for action in key_actions()}
    for name in chosen:
        if name not in actions:
            raise KeysError(
                f"{path}: keys.{name}: no key has this name; fairbed watch --keys prints the names"
            )
    keys = {name: _normalised(text, f"{path}: keys.{name}") for name, text in chosen.items()}
    _check_clashes(path, keys, actions.values())
    return {name: ",".join(names) for name, names in keys.items()}


def _normalised(text: str, where: str) -> tuple[str, ...]:
    """Return the keys in a text such as `p, ctrl+p` as Textual names them."""
    try:
        keys = tuple(binding.key for binding in Binding.make_bindings([Binding(text, "", "")]))
    except InvalidBinding:
        keys = ("",)
    for key in keys:
        name = _MODIFIERS.sub("", key)
        if not (name in _NAMES or len(shown(name)) == 1):
            raise KeysError(
                f"{where}: must be characters or names such as f5, ctrl+p, space or escape, with "
                f"commas between them, got {text!r}"
            )
    return keys


def _check_clashes(
    path: Path, keys: Mapping[str, Sequence[str]], actions: Collection[KeyAction]
) -> None:
    """Check that no chosen key does two things in one place; what shares a key by default may.

    Raises:
        KeysError: One does.
    """
    for action, other in product(actions, actions):
        meet = bool({*action.places, *other.places} & {*EVERYWHERE})
        meet = meet or bool({*action.places} & {*other.places})
        if action.id not in keys or other.id == action.id or not meet:
            continue
        clash = {*keys[action.id]} & {*keys.get(other.id, other.keys)}
        if clash - ({*action.keys} & {*other.keys}):
            raise KeysError(
                f"{path}: keys.{action.id}: {shown(min(clash))} is also the key of {other.id}; "
                "give one of them another key"
            )


def shown(key: str) -> str:
    """Return a key as a person writes it: `?` for Textual's `question_mark`."""
    modifiers = _MODIFIERS.match(key)
    start = modifiers[0] if modifiers else ""
    name = key.removeprefix(start)
    try:
        character = _SHORT.get(name) or unicodedata.lookup(name.replace("_", " "))
    except KeyError:
        return key
    return key if character.isspace() or not character.isprintable() else start + character


def keys_toml() -> str:
    """Return the keys as a file that the user can edit."""
    lines = [
        "# Keys of the control room: copy this to ~/.config/fairbed/control-room.toml and change",
        "# what you want; lines that are left out keep their keys. A key is a character or a name",
        "# such as f5, ctrl+p, space or escape; commas stand between several.",
        "",
        "[keys]",
    ]
    for action in key_actions():
        keys = ",".join(shown(key) for key in action.keys)
        lines.append(f'{action.id} = "{keys}"  # {" / ".join(action.names)}: {action.words}')
    return "\n".join(lines) + "\n"


def keys_page(note: str) -> str:
    """Return the page of the documentation that lists the keys."""
    lines = [
        "# Keys of the control room",
        "",
        note,
        "",
        "`fairbed watch --keys` prints them as a file to edit: "
        "[your own keys](control-room.md#your-own-keys). Lists and tables also scroll with arrows, "
        "Page Up and Page Down, Home and End; Tab goes to the next part of a screen, and Ctrl-P "
        "opens the command palette.",
        "",
        "| key | id | what it does | where |",
        "|---|---|---|---|",
    ]
    for action in key_actions():
        keys = " ".join(f"`{shown(key)}`" for key in action.keys)
        is_everywhere = action.places[0] in EVERYWHERE
        places = "everywhere" if is_everywhere else ", ".join(f"`{x}`" for x in action.places)
        words = f"{' / '.join(action.names)}: {action.words}"
        lines.append(f"| {keys} | `{action.id}` | {words} | {places} |")
    return "\n".join(lines) + "\n"
