"""Strategies of a Flower app, followed from outside: cohorts, merged arrays, resumed rounds.

The methods of every class of strategies are wrapped before the app is imported, and those of
classes that the app defines when it defines them. Of nested calls (`super()`, a strategy inside
another one) only the outermost counts. What the app has written runs unchanged.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fairbed.device_agent.clients.child.flower_records import (
    decode,
    encode,
    from_records,
    to_records,
)
from fairbed.testbed.flower.child.app_link import AppLink, Start
from fairbed.wire.records import Record

WAIT_REPORTS = 2
"""An app that waits for nodes is reported once in so many times `poll_s`."""

MIN_POLLS = 4
"""Polls of the nodes in a row that are a wait, not a computation with them."""

MAX_METRICS = 64

TRAIN = "train"

SETTINGS = ("fraction_train", "min_train_nodes", "min_available_nodes")
"""Attributes of a strategy that select nodes."""


class Strategies:
    """What the strategies of one app do, seen from the grid."""

    def __init__(self, link: AppLink, start: Start) -> None:
        self._link, self._start = link, start
        self._depth = threading.local()
        self._outermost: Any = None
        self._shift = 0
        self._cohort: tuple[int, ...] | None = None
        """The nodes that a strategy sees while it configures training."""
        self._due: tuple[int, ...] | None = None
        """The nodes to which the next messages of training must go."""
        self._polls, self._polled_s, self._reported_s = 0, 0.0, 0.0
        self._arrays: Any = None
        self._instead: dict[str, Callable[..., Any]] = {
            "configure_train": self._configure_train,
            "aggregate_train": self._aggregate_train,
            "configure_evaluate": self._configure_evaluate,
            "aggregate_evaluate": self._aggregate_evaluate,
            "start": self._begin,
        }
        self.round = 0
        """Round of the strategy; 0 without one."""

    def wrap(self) -> None:
        """Wrap all classes of strategies, also those that come later."""
        follow = self._follow
        original = Strategy.__init_subclass__

        def define(cls: Any, /, **kwargs: Any) -> None:
            original(**kwargs)
            follow(cls)

        Strategy.__init_subclass__ = classmethod(define)
        known = [Strategy]
        for each in known:  # the list grows in the loop
            follow(each)
            known += each.__subclasses__()

    def finish(self) -> None:
        """Report the end of the app."""
        parts = {} if self._arrays is None else {"arrays": _encoded(self._arrays)}
        self._link.send({"is": "done", "rounds": self.round}, parts)

    # For the grid.

    def nodes(self) -> tuple[int, ...]:
        """Return the nodes that the app sees; note an app that polls them."""
        self._link.check()
        nodes = self._link.nodes if self._cohort is None else self._cohort
        if threading.current_thread() is threading.main_thread():
            self._note_poll(nodes)
        return nodes

    def check_node(self, type_: str, node: int) -> None:
        """Refuse a message of training outside a cohort.

        Raises:
            StopApp: The coordinator selects, and the message is not for its cohort.
        """
        self._polls = 0
        if not self._start.has_cohorts or type_.partition(".")[0] != TRAIN:
            return
        if self._due is None:
            raise self._link.fail(
                "selection: an app without a Strategy, or with messages of its own, must select "
                'itself, got messages of training outside configure_train; set policy = "app"'
            )
        if node not in self._due:
            raise self._link.fail(
                f"selection: the strategy must train the {len(self._due)} devices of the cohort, "
                f"got another one, {node}; let it send to all of get_node_ids(), or set "
                'policy = "app"'
            )

    def check_push(self, type_: str, nodes: list[int]) -> None:
        """Refuse messages of training to a part of the cohort.

        Raises:
            StopApp: As stated.
        """
        if self._start.has_cohorts and type_.partition(".")[0] == TRAIN:
            due, self._due = self._due, None
            self._check_cohort(due or (), nodes)

    def _check_cohort(self, cohort: tuple[int, ...], nodes: list[int]) -> None:
        if sorted(nodes) == sorted(cohort):
            return
        raise self._link.fail(
            f"selection: the strategy must train all {len(cohort)} devices of the cohort, once "
            f"each, got {len(nodes)} messages for {len(set(nodes))}; set fraction-train = 1.0, or "
            'policy = "app"'
        )

    # Polling.

    def _note_poll(self, nodes: tuple[int, ...]) -> None:
        now_s = time.monotonic()
        if not self._polls:
            self._polled_s = self._reported_s = now_s
        self._polls += 1
        waited_s = now_s - self._polled_s
        if self._polls < MIN_POLLS:
            return
        needed = _needed(self._outermost)
        if self._cohort is not None and waited_s > self._start.poll_s:
            raise self._link.fail(_too_few(len(nodes), needed))
        if now_s - self._reported_s > WAIT_REPORTS * self._start.poll_s or self._polls == MIN_POLLS:
            self._reported_s = now_s
            header = {"round": self.round, "waited_s": waited_s, "offered": len(nodes)}
            self._link.send({"is": "waits", **header, "needed": needed})

    # The wrapped methods.

    def _follow(self, cls: Any) -> None:
        for name, instead in self._instead.items():
            method = cls.__dict__.get(name)
            if inspect.isfunction(method):
                setattr(cls, name, self._wrapped(method, instead))

    def _wrapped(self, method: Callable[..., Any], instead: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def call(strategy: Any, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._depth, method.__name__, 0):
                return method(strategy, *args, **kwargs)
            setattr(self._depth, method.__name__, 1)
            try:
                self._link.check()
                return instead(functools.partial(method, strategy), strategy, args, kwargs)
            finally:
                setattr(self._depth, method.__name__, 0)

        return call

    def _configure_train(
        self, original: Callable[..., Any], strategy: Any, args: Any, kwargs: Any
    ) -> list[Any]:
        call = self._in_round(original, args, kwargs)
        self._outermost, self._polls = strategy, 0
        self._note_arrays(call.arguments.get("arrays"))
        if not self._start.has_cohorts:
            return list(original(*call.args, **call.kwargs))
        self._cohort = self._link.cohort(self.round)
        try:
            needed = _needed(strategy)
            if needed > len(self._cohort):
                raise self._link.fail(_too_few(len(self._cohort), needed))
            messages = list(original(*call.args, **call.kwargs))
        finally:
            cohort, self._cohort = self._cohort, None
        self._check_cohort(cohort, [each.metadata.dst_node_id for each in messages])
        self._due = cohort
        return messages

    def _configure_evaluate(
        self, original: Callable[..., Any], strategy: Any, args: Any, kwargs: Any
    ) -> list[Any]:
        call = self._in_round(original, args, kwargs)
        self._outermost, self._polls = strategy, 0
        return list(original(*call.args, **call.kwargs))

    def _aggregate_train(
        self, original: Callable[..., Any], strategy: Any, args: Any, kwargs: Any
    ) -> Any:
        call = self._in_round(original, args, kwargs)
        is_ours = self._start.merge == "ours"
        try:
            arrays, metrics = original(*call.args, **call.kwargs)
        except Exception:
            if not is_ours:
                raise
            arrays = metrics = None  # its metrics are lost; our rule merges
        parts = {} if arrays is None or is_ours else {"arrays": _encoded(arrays)}
        header = {"is": "aggregated", "round": self.round, "metrics": numbers(metrics)}
        self._link.send(header, parts)
        if is_ours:
            merged = self._link.merged(self.round)
            arrays = _arrays_of(merged) if len(merged) else None
        self._note_arrays(arrays)
        return arrays, metrics

    def _aggregate_evaluate(
        self, original: Callable[..., Any], strategy: Any, args: Any, kwargs: Any
    ) -> Any:
        call = self._in_round(original, args, kwargs)
        metrics = original(*call.args, **call.kwargs)
        self._report(self.round, "devices", metrics)
        return metrics

    def _begin(self, original: Callable[..., Any], strategy: Any, args: Any, kwargs: Any) -> Any:
        call = inspect.signature(original).bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        is_resumed = self._start.first_round > 1
        num_rounds = int(given.get("num_rounds", 0) or 0)
        if is_resumed:
            self._shift = self._start.first_round - 1
            given["num_rounds"] = max(0, num_rounds - self._shift)
            given["initial_arrays"] = _arrays_of(self._start.arrays)
        if given.get("evaluate_fn") is not None:
            given["evaluate_fn"] = self._evaluated(given["evaluate_fn"])
        self._outermost = strategy
        self._arrays = given.get("initial_arrays")
        header = {
            "is": "strategy",
            "name": type(strategy).__name__,
            "num_rounds": num_rounds,
            "first_round": self._start.first_round,
            "weighted_by": str(_setting(strategy, "weighted_by_key") or ""),
            "arrays_key": str(_setting(strategy, "arrayrecord_key") or ""),
            "lost": "the state of the strategy, such as its momentum, and its earlier metrics"
            if is_resumed
            else "",
            "settings": {
                name: value
                for name in SETTINGS
                if isinstance(value := _setting(strategy, name), (int, float))
            },
        }
        parts = {} if self._arrays is None else {"arrays": _encoded(self._arrays)}
        self._link.send(header, parts)
        return original(*call.args, **call.kwargs)

    def _evaluated(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(evaluate)
        def call(server_round: int, *args: Any, **kwargs: Any) -> Any:
            round_number = server_round + self._shift
            metrics = evaluate(round_number, *args, **kwargs)
            self._report(round_number, "server", metrics)
            return metrics

        return call

    def _in_round(
        self, original: Callable[..., Any], args: Any, kwargs: Any
    ) -> inspect.BoundArguments:
        """Return the arguments with the round of the run, which a resume has shifted."""
        call = inspect.signature(original).bind(*args, **kwargs)
        if "server_round" in call.arguments:
            call.arguments["server_round"] += self._shift
            self.round = int(call.arguments["server_round"])
        return call

    def _report(self, round_number: int, where: str, metrics: Any) -> None:
        found = numbers(metrics)
        if found:
            header = {"is": "metrics", "round": round_number, "where": where, "metrics": found}
            self._link.send(header)

    def _note_arrays(self, arrays: Any) -> None:
        if isinstance(arrays, ArrayRecord):
            self._arrays = arrays


def numbers(metrics: Any) -> dict[str, float]:
    """Return the finite numbers of a MetricRecord by name; lists have one name per element."""
    found: dict[str, float] = {}
    for name, value in dict(metrics or {}).items():
        values: Iterable[Any] = value if isinstance(value, list) else [value]
        for at, each in enumerate(values):
            full = f"{name}.{at}" if isinstance(value, list) else name
            if (
                isinstance(each, (bool, int, float))
                and np.isfinite(each)
                and len(found) < MAX_METRICS
            ):
                found[full] = float(each)
    return found


def _encoded(arrays: Any) -> bytes:
    return encode(to_records({"arrays": arrays}))


def _arrays_of(data: Any) -> Any:
    records = decode(data)
    return from_records({"arrays": records.get("arrays", Record("arrays"))})["arrays"]


def _setting(strategy: Any, name: str) -> Any:
    """Return an attribute of a strategy, or of the one that it wraps."""
    for _ in range(8):
        if strategy is None:
            return None
        if hasattr(strategy, name):
            return getattr(strategy, name)
        strategy = getattr(strategy, "strategy", None)
    return None


def _needed(strategy: Any) -> int:
    """Return the least number of nodes for which a strategy waits; 0 if it does not state it."""
    found = [_setting(strategy, name) for name in ("min_train_nodes", "min_available_nodes")]
    return max((x for x in found if isinstance(x, int)), default=0)


def _too_few(offered: int, needed: int) -> str:
    wanted = f", as it waits for {needed}" if needed > offered else ""
    return (
        f"selection: the strategy must train the {offered} devices of the cohort, got "
        f"none{wanted}; set min-train-nodes and min-available-nodes to at most {offered}, or "
        'policy = "app"'
    )
