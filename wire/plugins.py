"""Loading of third-party parts by entry point, path or registered name.

Both sides of the wire have them; a registered name exists in the process that registered it only.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fairbed.wire.printable import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class PluginError(Exception):
    """A plug-in cannot be loaded or violates its contract; the message states how.

    `fault` is the violation alone, without the name of the plug-in and the advice.
    """

    def __init__(self, message: str, fault: str = "") -> None:
        super().__init__(message)
        self.fault = fault or message


def is_path(name: str) -> bool:
    """Return whether a plug-in is written as `package.module:Name`."""
    return ":" in name


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""A registered name; a colon would make it a path."""

_registered: Final[dict[str, dict[str, "Registered"]]] = {}
"""Factories by group and name, of this process."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A factory that the program registered under a name."""

    factory: Callable[..., Any]

    def load(self) -> Callable[..., Any]:
        """Return the factory, as an entry point does."""
        return self.factory


def register(group: str, name: str, factory: Callable[..., Any]) -> None:
    """Make a factory known by a name of a group, in this process; the newest one counts.

    Args:
        group: Group of entry points, as in `fairbed.selectors`.
        name: Letters, digits and `_.+-`. An installed plug-in of this name is hidden.
        factory: A class, or a function that makes one.

    Raises:
        PluginError: The name has another form, or the factory cannot be called.
    """
    if not NAME.fullmatch(name):
        raise PluginError(
            f"register: the name must be letters, digits and _.+-, got {name!r}; choose another"
        )
    if not callable(factory):
        raise PluginError(
            f"register {name}: must be a class or a function that makes one, got "
            f"{type(factory).__name__}"
        )
    _registered.setdefault(group, {})[name] = Registered(factory)


def registered(group: str) -> Mapping[str, Registered]:
    """Return the factories that this process registered in a group, by name."""
    return _registered.get(group, {})


def installed(group: str) -> dict[str, "EntryPoint | Registered"]:
    """Return the installed plug-ins of a group and those of `register`, by name."""
    from importlib.metadata import entry_points  # with it comes `email`: 3 MiB of an agent

    return {point.name: point for point in entry_points(group=group)} | dict(registered(group))


def import_from_here() -> None:
    """Let modules of the working directory be imported."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that it shadows no installed package


def factory_of(noun: str, group: str, name: str, choices: str) -> Any:
    """Return the class, or the function that makes one, that a name stands for.

    Args:
        noun: What it is, as in "selector", for messages.
        group: Group of entry points.
        name: Name of an entry point or of `register`, or `package.module:Name` on the import path
            or below the working directory.
        choices: What the name may be, for messages.

    Raises:
        PluginError: It is not installed, or cannot be imported.
    """

    def broken(problem: str) -> PluginError:
        return PluginError(
            f"{noun} {name}: must be importable as package.module:Name, got {problem}; install "
            "it, or run fairbed in its folder"
        )

    with users_code(broken):
        if not is_path(name):
            found = installed(group)
            if name not in found:
                raise PluginError(
                    f"{noun} {name}: must be {choices}, got no entry point {name!r} of {group}; "
                    "install it"
                )
            return found[name].load()
        module, _, path = name.partition(":")
        import_from_here()
        made = importlib.import_module(module)
        for part in path.split("."):
            made = getattr(made, part)
    if not callable(made):
        raise PluginError(
            f"{noun} {name}: must be a class or a function that makes one, "
            f"got {type(made).__name__}"
        )
    return made


_PYTHON = ("stdlib", "platstdlib", "purelib", "platlib")
"""Folders of Python and of installed packages, as `sysconfig` names them."""


@cache
def folders_of_python() -> tuple[str, ...]:
    """Return the folders of Python, of installed packages and of Fairbed, each with a `/`."""
    import sysconfig

    package = next(iter(sys.modules[__name__.partition(".")[0]].__path__))
    places = [sysconfig.get_path(name) for name in _PYTHON]
    if sys.prefix != sys.base_prefix:
        places.append(sys.prefix)
    inside = (os.path.join(package, name) for name in os.listdir(package) if name != "examples")
    return tuple(os.path.realpath(place) + os.sep for place in [*places, package, *inside])


def is_of_user(path: str) -> bool:
    """Return whether a file is no part of Python, of an installed package, or of Fairbed."""
    return not os.path.realpath(path).startswith(folders_of_python())


CANCELLED: Final = "CancelledError"
"""Of asyncio, which this package does not import: raised through the code of a user, not by it."""


@contextmanager
def users_code(
    error: Callable[[str], Exception], *passed: type[Exception], length: int = 200
) -> Iterator[None]:
    """Raise one error of Fairbed for anything that code of the user raises.

    All code of the user runs in it: imports, factories, modules, data functions and plug-ins. Also
    `sys.exit` in it is an error: a module must not end a run.

    Args:
        error: Makes the error of type, message, file and line of what was raised, one line.
        *passed: Errors of Fairbed that pass as they are, besides `PluginError`.
        length: Maximum length of the message of what was raised.
    """
    ours: tuple[type[Exception], ...] = (PluginError, *passed)
    try:
        yield
    except ours:
        raise
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as exc:
        if type(exc).__name__ == CANCELLED:
            raise
        raise error(one_line(exc, length)) from exc


def one_line(exc: BaseException, length: int = 200) -> str:
    """Return type, message, file and line of an exception of third-party code on one line."""
    text = str(exc.msg) if isinstance(exc, SyntaxError) else str(exc)
    message = " ".join(printable(" ".join(text.split())).split())[:length]
    place = place_of(exc)
    return f"{type(exc).__name__}{f': {message}' if message else ''}{place and f' ({place})'}"


def place_of(exc: BaseException) -> str:
    """Return the file and line of the user's code that raised an exception; empty if unknown."""
    place: tuple[str, int | None] | None = None
    trace = exc.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and is_of_user(file):
            place = file, trace.tb_lineno
        trace = trace.tb_next
    if isinstance(exc, SyntaxError) and exc.filename:
        place = exc.filename, exc.lineno
    if place is None:
        return ""
    file, line = place
    here = os.path.join(os.path.realpath(os.getcwd()), "")
    return f"{os.path.realpath(file).removeprefix(here)}, line {line}"


def described(value: object) -> str:
    """Return type and shape of a value in a few words."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__
