"""Contracts of plug-ins as executable checks, the same for built-in parts.

A property is a function of `make`, which returns a new part without memory, and of a clock. It
raises `Broken`, or returns a remark. A contract is a mapping of properties by name: the tests check
every part with it, `fairbed doctor` one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from fairbed.wire.plugins import PluginError, one_line

Clock: TypeAlias = Callable[[], float]
"""Monotonic seconds."""

Part = TypeVar("Part")

Properties: TypeAlias = Mapping[str, Callable[[Callable[[], Part], Clock], str | None]]
"""Properties by name."""


class Broken(Exception):
    """A part violates a property; the message states how."""


@dataclass(frozen=True, slots=True)
class ContractFinding:
    """Result of one property."""

    name: str
    is_ok: bool
    found: str
    """A remark, or how the part violates the property."""


def check_contract(
    properties: Properties[Part], make: Callable[[], Part], clock: Clock
) -> Iterator[ContractFinding]:
    """Check every property, and yield the results in order."""
    for name in properties:
        yield check_property(properties, name, make, clock)


def check_property(
    properties: Properties[Part], name: str, make: Callable[[], Part], clock: Clock
) -> ContractFinding:
    """Check one property; any exception of the part violates it."""
    try:
        return ContractFinding(name, True, properties[name](make, clock) or "")
    except Broken as exc:
        return ContractFinding(name, False, str(exc))
    except PluginError as exc:
        return ContractFinding(name, False, exc.fault)
    except Exception as exc:  # a plug-in may raise anything
        return ContractFinding(name, False, f"raised {one_line(exc, 300)}")


LIMIT_S = 1.0
"""Limit on the time of a round."""


def check_speed(
    make: Callable[[], Part], run: Callable[[Part], object], clock: Clock, what: str
) -> str:
    """Check that the fastest of three rounds, each of a new part, takes at most `LIMIT_S`.

    Args:
        make: Returns a new part.
        run: Runs the round.
        clock: Measures it.
        what: The round in words.

    Raises:
        Broken: It takes longer.
    """
    took_s = float("inf")
    for _ in range(3):
        part, started = make(), clock()
        run(part)
        took_s = min(took_s, clock() - started)
    if took_s > LIMIT_S:
        raise Broken(f"{what} must take at most {LIMIT_S} s, got {took_s:.2f}")
    return f"{took_s:.3f} s for {what}"
