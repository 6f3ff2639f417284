"""Guard of a plug-in: each violation of its contract is one line that names it."""

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeVar

import msgspec
import numpy as np

from fairbed.coordinator.algorithms.arrays import Floats
from fairbed.wire.plugins import PluginError, described, users_code

T = TypeVar("T")


class Guard:
    """A plug-in whose every result is checked; a kind of plug-in is a subclass.

    Args:
        name: Its name in the experiment.
        plugin: The plug-in.

    Raises:
        PluginError: It lacks a method, or its state cannot be saved and restored.
    """

    noun: ClassVar[str]
    """What it is, as in "selector"."""
    doctor: ClassVar[str]
    """Option of `fairbed doctor` that tests it."""
    page: ClassVar[str]
    """Page in docs/ that describes the kind."""
    verbs: ClassVar[tuple[str, ...]]
    """Methods that it must have, besides those of its state."""

    def __init__(self, name: str, plugin: Any) -> None:
        self.name, self.plugin = name, plugin
        verbs = (*self.verbs, "to_state", "load_state")
        missing = [verb for verb in verbs if not callable(getattr(plugin, verb, None))]
        if missing:
            raise PluginError(
                f"{self.noun} {name}: must have {', '.join(f'{verb}()' for verb in verbs)}, but "
                f"lacks {', '.join(missing)}; docs/{self.page} has an example"
            )
        self.load_state(msgspec.msgpack.decode(msgspec.msgpack.encode(self.to_state())))

    def to_state(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            PluginError: It cannot be stored in a checkpoint.
        """
        state: object = self.call("to_state()", self.plugin.to_state)
        if not isinstance(state, dict):
            self.fail("to_state()", f"must return a dict, got {type(state).__name__}")
        try:
            msgspec.msgpack.encode(state)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:
            got = f"got: {exc}; float(x) and x.tolist() make them plain"
            self.fail("to_state()", f"must be plain numbers and lists, {got}", exc)
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `to_state` returned.

        Raises:
            PluginError: It raised.
        """
        self.call("load_state()", lambda: self.plugin.load_state(state))

    def call(self, where: str, verb: Callable[[], T]) -> T:
        """Return what a method returns; `where` is its name in the message.

        Raises:
            PluginError: It raised.
        """
        with users_code(lambda got: self.error(where, f"must not raise, got {got}")):
            return verb()

    def numbers(self, where: str, returned: object, shape: tuple[int, ...]) -> Floats:
        """Return an array that a method returned as float64.

        Raises:
            PluginError: It is no array of finite numbers of this shape.
        """
        is_numbers = isinstance(returned, np.ndarray) and returned.dtype.kind in "fiu"
        if not (is_numbers and isinstance(returned, np.ndarray) and returned.shape == shape):
            self.fail(where, f"must return numbers of shape {shape}, got {described(returned)}")
        is_finite = np.isfinite(returned)
        if not is_finite.all():
            at = int(np.argmin(is_finite))
            self.fail(where, f"must return finite numbers, got {returned.flat[at]} at {at}")
        return returned.astype(np.float64)

    def fail(self, where: str, what: str, cause: Exception | None = None) -> NoReturn:
        """Report a violation of the contract; `where` is the method, `what` the rule and the value.

        Raises:
            PluginError: Always.
        """
        raise self.error(where, what) from cause

    def error(self, where: str, what: str) -> PluginError:
        """Return the error of a violation; the arguments are those of `fail`."""
        return PluginError(
            f"{self.noun} {self.name}: {where} {what}; run fairbed doctor {self.doctor} "
            f"{self.name} to check it",
            f"{where} {what}",
        )
