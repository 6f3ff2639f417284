"""A Ray cluster as Fairbed uses it: hosts, functions and objects on them, and futures.

    with connect("10.0.0.1:6379") as cluster:     # or "local": this machine alone
        for host in cluster.hosts:
            cluster.submit(host, function, argument).result()
        worker = cluster.start(host, SomeClass, argument)
        worker.call("method", argument).result()

Functions and classes are those of modules that every host has installed. An error that a function
raises arrives as itself. `HostLostError` means that the process or its host is gone, so that the
work may be done again elsewhere.
"""

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fairbed.testbed.cluster.hosts import Host, difference, facts_here, processors_line, reporter
from fairbed.testbed.cluster.joining import check_joinable, split_address
from fairbed.testbed.errors import ClusterError, HostLostError
from fairbed.testbed.experiment.datasets.loading import FOLDER_VARIABLE
from fairbed.testbed.host.threads import ONE_THREAD

T = TypeVar("T")

LOCAL = "local"
"""The address that starts a cluster on this machine, which ends with this process."""

REPORT_S = 60.0
"""Longest wait for a host to report its software; its first process takes seconds to start."""

ALIVE_S = 60.0
"""A host that starts no process within this time counts as lost; seconds."""

LOCAL_STORE_BYTES = 256 * 2**20
"""Memory for objects of a local cluster; Ray takes 30 % of the machine by default. Objects that do
not fit move to the disk."""

_QUIET = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it Ray prints a warning for each process
    "RAY_USAGE_STATS_ENABLED": "0",  # sends nothing to the makers of Ray
}

_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables by which a user decides how the processes of a cluster authenticate themselves."""


class RemoteObject:
    """An object in a process of its own on a host; it ends with the cluster or by `kill`."""

    def __init__(self, cluster: "Cluster", host: Host, actor: Any) -> None:
        self.host = host
        self._cluster, self._actor = cluster, actor

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method there; calls are executed one after another, in their order.

        The future raises what the method raises, or `HostLostError`.
        """
        reference = self._actor.call.remote(method, *arguments)
        return self._cluster.future_of(reference, self.host)

    def kill(self) -> None:
        """End its process now."""
        ray.kill(self._actor)


class Cluster:
    """The hosts of a Ray cluster that this process has joined; made by `connect`."""

    def __init__(self, hosts: Sequence[Host], warnings: Sequence[str] = ()) -> None:
        self.hosts = tuple(hosts)
        """The hosts at the time of joining, this machine first, then by name."""
        self.warnings = tuple(warnings)
        """What a person should know before the work begins, one line each."""

    @property
    def cores(self) -> int:
        """Whole cores of all hosts."""
        return sum(int(host.cores) for host in self.hosts)

    def is_alive(self, host: Host) -> bool:
        """Return whether a host still runs processes; waits until Ray knows, which takes 15 s."""
        try:
            self.submit(host, os.getpid).result(ALIVE_S)
        except (HostLostError, FutureTimeoutError):
            return False
        return True

    def share(self, value: Any) -> Any:
        """Return a reference to a value that each host then fetches once.

        As an argument of a call, the reference is replaced by the value; its arrays are read-only.
        """
        return ray.put(value)

    def submit(
        self, host: Host, function: Callable[..., T], *arguments: Any, cores: float = 0.0
    ) -> "Future[T]":
        """Call a function on a host, in a process of its own; `cores` are reserved for it."""
        task = _call.options(num_cpus=cores, max_retries=0, scheduling_strategy=_only(host))
        return self.future_of(task.remote(_surroundings(), function, *arguments), host)

    def start(
        self,
        host: Host,
        make: Callable[..., Any],
        *arguments: Any,
        cores: float = 0.0,
        concurrency: int = 1,
    ) -> RemoteObject:
        """Make an object on a host, in a process of its own.

        Args:
            host: The host.
            make: The class, or a function that makes the object.
            *arguments: Its arguments.
            cores: Cores that are reserved for it; without enough free ones, its calls wait.
            concurrency: Calls that may run at the same time, in threads.
        """
        actor = _REMOTE_SHELL.options(
            num_cpus=cores,
            max_restarts=0,
            max_concurrency=concurrency,
            scheduling_strategy=_only(host),
        )
        return RemoteObject(self, host, actor.remote(_surroundings(), make, *arguments))

    def future_of(self, reference: Any, host: Host) -> "Future[Any]":
        """Return the future of a reference, with errors in place of those of Ray."""
        outcome: Future[Any] = Future()

        def copy(done: "Future[Any]") -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            problem = done.exception()
            if problem is None:
                outcome.set_result(done.result())
            else:
                outcome.set_exception(_translated(problem, host))

        reference.future().add_done_callback(copy)
        return outcome


@contextmanager
def connect(address: str, *, cores: int | None = None) -> Iterator[Cluster]:
    """Join a Ray cluster, or start one on this machine; leave or end it at the end.

    All hosts must have the versions of this machine. A program that has joined a cluster already
    keeps it.

    Args:
        address: HOST:PORT of the head of a cluster of which this machine is a node, or `LOCAL`.
        cores: Cores of a local cluster; without it, all cores.

    Raises:
        ClusterError: No cluster answers there in time, this machine is not one of its nodes, or the
            software of a host differs; one line.
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
    is_ours = not ray.is_initialized()
    if is_ours and address == LOCAL:
        _start_here(cores)
    elif is_ours:
        check_joinable(address)
        _init(address, address=":".join(map(str, split_address(address))))
    elif address != LOCAL and ray.get_runtime_context().gcs_address != address:
        raise ClusterError(
            f"--cluster {address}: must be the cluster that this program has joined, got another "
            f"one than {ray.get_runtime_context().gcs_address}; call ray.shutdown() before"
        )
    try:
        hosts = _hosts()
        yield Cluster(hosts, _checked(hosts))
    finally:
        if is_ours:
            ray.shutdown()


def _start_here(cores: int | None) -> None:
    if not any(name in os.environ for name in _AUTHENTICATION):
        # Ray would write a token into the home folder; this one ends with the process.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    _init(
        LOCAL,
        address=LOCAL,
        num_cpus=cores,
        include_dashboard=False,
        object_store_memory=LOCAL_STORE_BYTES,
    )


def _init(name: str, **options: Any) -> None:
    """Start or join Ray, and let SIGTERM run the `finally` blocks of this process.

    Ray takes SIGTERM over below Python, prints a stack and aborts.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(logging_level=logging.ERROR, **options)
    except Exception as exc:  # Ray raises many kinds
        line = (str(exc).splitlines() or [type(exc).__name__])[0]
        raise ClusterError(f"--cluster {name}: Ray must start here, got: {line}") from exc
    if threading.current_thread() is threading.main_thread():
        of_ray = signal.getsignal(signal.SIGTERM)  # raises SystemExit
        is_default = before in (signal.SIG_DFL, None)
        signal.signal(signal.SIGTERM, of_ray if is_default else before)


def _hosts() -> list[Host]:
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]  # it has no types
    nodes.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerHostname"]))
    found = list[Host]()
    seen = dict[str, int]()
    for node in nodes:
        name = str(node["NodeManagerHostname"])
        seen[name] = seen.get(name, 0) + 1
        resources: Mapping[str, float] = node["Resources"]
        found.append(
            Host(
                name=name if seen[name] == 1 else f"{name}#{seen[name]}",
                node_id=node["NodeID"],
                address=node["NodeManagerAddress"],
                cores=resources.get("CPU", 0.0),
                memory_bytes=int(resources.get("memory", 0)),
                is_here=node["NodeID"] == here,
            )
        )
    return found


def _checked(hosts: Sequence[Host]) -> list[str]:
    """Check that all hosts have the software of this machine; return the warnings.

    Raises:
        ClusterError: A host differs, or does not answer.
    """
    ours, report = facts_here(), reporter()
    futures = {
        host: ray.remote(report)
        .options(num_cpus=0, max_retries=0, scheduling_strategy=_only(host))
        .remote()
        for host in hosts
    }
    processors = dict[str, str]()
    give_up = time.monotonic() + REPORT_S
    for host, reference in futures.items():
        try:
            theirs = ray.get(reference, timeout=max(0.0, give_up - time.monotonic()))
        except GetTimeoutError as exc:
            raise ClusterError(
                f"host {host.name}: must start a process within {REPORT_S:g} s, got no answer; "
                "look at the logs of Ray there, or stop Ray there: ray stop"
            ) from exc
        except RayError as exc:
            raise ClusterError(
                f"host {host.name}: must start a process, got: {_first_line(exc)}; look at the "
                "logs of Ray there, or stop Ray there: ray stop"
            ) from exc
        problem = difference(host.name, theirs, ours)
        if problem is not None:
            raise ClusterError(problem)
        processors[host.name] = theirs["processor"]
    line = processors_line(processors)
    return [] if line is None else [line]


def _only(host: Host) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=host.node_id, soft=False)


def _translated(problem: BaseException, host: Host) -> BaseException:
    """Return the error of the work itself, or `HostLostError`."""
    if isinstance(problem, RayTaskError):
        cause = problem.cause
        return cause if isinstance(cause, BaseException) else RuntimeError(_first_line(problem))
    if isinstance(problem, RayError):
        return HostLostError(f"host {host.name}: its process is lost: {_first_line(problem)}")
    return problem


def _first_line(problem: BaseException) -> str:
    return (str(problem).splitlines() or [type(problem).__name__])[0]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a process on a host takes over from this process, where the host has it."""

    folder: str
    environment: Mapping[str, str]

    def enter(self) -> None:
        """Set them in this process."""
        os.dup2(2, 1)  # what is printed reaches the standard error of the program
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        for name, value in self.environment.items():
            os.environ.setdefault(name, value)


def _surroundings() -> _Surroundings:
    given = {name: os.environ[name] for name in (FOLDER_VARIABLE,) if name in os.environ}
    return _Surroundings(os.getcwd(), {**ONE_THREAD, **given})


@ray.remote
def _call(surroundings: _Surroundings, function: Callable[..., Any], *arguments: Any) -> Any:
    surroundings.enter()
    return function(*arguments)


class _Shell:
    """Holds an object in a process on a host."""

    def __init__(
        self, surroundings: _Surroundings, make: Callable[..., Any], *arguments: Any
    ) -> None:
        surroundings.enter()
        self._object = make(*arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self._object, method)(*arguments)


_REMOTE_SHELL: Any = ray.remote(_Shell)
