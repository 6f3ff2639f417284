"""Plug-ins: third-party parts of a run, loaded by entry point or path, checked on every call."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fairbed.coordinator.policy.config import (
    ESTIMATORS,
    LOCAL_RULES,
    POLICIES,
    PSEUDO_GRADIENTS,
    RULES,
    SERVER_STEPS,
)
from fairbed.wire.local_training import NOUN
from fairbed.wire.messages import LOCAL_RULES_GROUP
from fairbed.wire.plugins import PluginError, factory_of, installed, is_path, users_code


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plug-in."""

    noun: str
    """What it is, as in "selector"."""
    group: str
    """Group of entry points; the name of each one is a value of `key`."""
    key: str
    """Key of the experiment that names it."""
    options: str
    """Key of the experiment with its keyword arguments."""
    built_in: tuple[str, ...]
    """Names that are no plug-ins."""

    def installed(self) -> Collection[str]:
        """Return the names of plug-ins: entry points, and those that this process registered."""
        return installed(self.group).keys()

    def check_name(self, name: str, options: Mapping[str, Any]) -> None:
        """Check a value of `key`; a plug-in is imported only when the run begins.

        Raises:
            ValueError: There is no such name, or it has options and is built in.
        """
        if name in self.built_in:
            if options:
                section = self.options.partition(".")[0]
                raise ValueError(
                    f"{self.options}: only a plug-in has options, got some for {name!r}; "
                    f"set them in [{section}]"
                )
        elif not is_path(name) and not self.has(name):
            raise ValueError(f"{self.key}: must be {self._choices()}, got {name!r}")

    def names(self) -> list[str]:
        """Return the names of the built-in and of the installed ones."""
        return [*self.built_in, *sorted(self.installed())]

    def has(self, name: str) -> bool:
        """Return whether there is a built-in or an installed one with this name."""
        return name in self.built_in or name in self.installed()

    def _choices(self) -> str:
        return f"one of {', '.join(map(repr, self.names()))} or package.module:Name"

    def make(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return a plug-in that is not checked yet, with empty state.

        Args:
            name: Name of an entry point, or `package.module:Name` of a class or a function, on the
                import path or below the working directory.
            options: Its keyword arguments.

        Raises:
            PluginError: It is not installed, cannot be imported, or does not take the options.
        """
        make = factory_of(self.noun, self.group, name, self._choices())

        def broken(problem: str) -> PluginError:
            return PluginError(
                f"{self.noun} {name}: must be made from {self.options} {dict(options)}, got "
                f"{problem}; correct the options"
            )

        with users_code(broken):
            return make(**options)


SELECTOR = Kind("selector", "fairbed.selectors", "selection.policy", "selection.options", POLICIES)
ESTIMATOR = Kind(
    "estimator",
    "fairbed.estimators",
    "selection.estimator",
    "selection.estimator_options",
    ESTIMATORS,
)
RULE = Kind("weight rule", "fairbed.rules", "aggregation.rule", "aggregation.rule_options", RULES)
PSEUDO_GRADIENT = Kind(
    "pseudo-gradient",
    "fairbed.pseudo_gradients",
    "aggregation.pseudo_gradient",
    "aggregation.pseudo_gradient_options",
    PSEUDO_GRADIENTS,
)
LOCAL_RULE = Kind(NOUN, LOCAL_RULES_GROUP, "training.rule", "training.rule_options", LOCAL_RULES)
SERVER_STEP = Kind(
    "server step",
    "fairbed.server_steps",
    "aggregation.server",
    "aggregation.server_options",
    SERVER_STEPS,
)
