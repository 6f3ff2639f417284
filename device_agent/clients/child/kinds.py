"""What a kind of client gives to the server of clients (`serve.py`).

A kind is a module of this folder, `own.py` or `flower.py`, with these functions:

    load(folder, path, options) -> loaded         once, in the server, before it forks
    open_client(loaded, about, state, report, should_stop) -> Client        in a fork
    initial(loaded, header) -> (header, parts)    the arrays before round 1; in a fork

`folder` is the first entry of `sys.path` and the working directory during `load` and after it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fairbed.device_agent.clients.child.frames import Buffer, Header, Parts

Answer = tuple[Mapping[str, Any], Mapping[str, Buffer]]
"""Header and parts of a frame. The server adds `is`, and to those of work `cpu_s`."""

Report = Callable[[float], None]
"""Reports the share of the work that is done, 0 to 1."""

ShouldStop = Callable[[], bool]
"""Returns whether the work in progress should end: its deadline has passed."""


class ClientError(Exception):
    """The client cannot be loaded, or returned a wrong value; the message is one line."""


class Client(Protocol):
    """The client of one device, in its fork. Any exception fails the exchange."""

    has_evaluate: bool

    @property
    def n_examples(self) -> int | None:
        """Training examples of the device, as far as the client knows them before `fit`."""
        ...

    def fit(self, header: Header, parts: Parts) -> Answer:
        """Train; the header and the parts are those of the frames `fit` and `done`."""
        ...

    def evaluate(self, header: Header, parts: Parts) -> Answer:
        """Evaluate; the header and the parts are those of the frames `evaluate` and `done`."""
        ...
