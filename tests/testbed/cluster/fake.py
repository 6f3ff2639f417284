"""A cluster in this process: each object of a host is called in a thread of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fairbed.testbed.cluster.hosts import Host
from fairbed.testbed.errors import HostLostError


class FakeObject:
    """As `RemoteObject`."""

    def __init__(self, cluster: "FakeCluster", host: Host, thread: ThreadPoolExecutor) -> None:
        self.host = host
        self._cluster, self._thread = cluster, thread
        self.made: Future[Any] = Future()

    def call(self, method: str, *arguments: Any) -> "Future[Any]":
        return self._thread.submit(self._call, method, arguments)

    def _call(self, method: str, arguments: Sequence[Any]) -> Any:
        self._cluster.check(self.host, method)
        answer = getattr(self.made.result(), method)(*arguments)
        self._cluster.check(self.host)
        return answer

    def kill(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


class FakeCluster:
    """As `Cluster`.

    Args:
        cores: Cores of each host; this process is on the first one.
    """

    warnings = ()

    def __init__(self, *cores: int) -> None:
        self.hosts = tuple(
            Host(f"host-{n}", str(n), f"10.0.0.{n}", float(count), 1 << 30, is_here=n == 0)
            for n, count in enumerate(cores)
        )
        self.lost = set[Host]()
        self.started = list[tuple[str, Any]]()
        self.on_call: Callable[[Host, str], None] = lambda host, method: None
        """Called before each call; it may raise."""

    def check(self, host: Host, method: str = "") -> None:
        if method:
            self.on_call(host, method)
        if host in self.lost:
            raise HostLostError(f"host {host.name}: its process is lost")

    def is_alive(self, host: Host) -> bool:
        return host not in self.lost

    def share(self, value: Any) -> Any:
        return value

    def submit(self, host: Host, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        answer: Future[Any] = Future()
        answer.set_result(function(*arguments))
        return answer

    def start(
        self, host: Host, make: Callable[..., Any], *arguments: Any, cores: float = 0.0
    ) -> FakeObject:
        made = FakeObject(self, host, ThreadPoolExecutor(1))
        made.made.set_result(make(*arguments))
        self.started.append((host.name, made))
        return made
