"""Join the cluster of `--cluster`, which the commands and the functions share."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fairbed.testbed.api.register import registered_parts
from fairbed.testbed.errors import UsageError
from fairbed.testbed.experiment.file import Experiment

if TYPE_CHECKING:
    from fairbed.testbed.cluster.connection import Cluster
    from fairbed.testbed.cluster.device_hosts import DeviceHosts


@contextmanager
def joined(
    address: str | None, experiments: Iterable[Experiment], note: Callable[[str], object]
) -> Iterator["Cluster | None"]:
    """Join a cluster that replays while the context lasts; None without an address.

    Args:
        address: HOST:PORT of its head, or `local`.
        experiments: What its hosts will do.
        note: Called with each warning.

    Raises:
        ClusterError: It cannot be joined.
        UsageError: An experiment needs a part that exists in this process only.
        ModuleNotFoundError: Ray is not installed.
    """
    if address is None:
        yield None
        return
    for experiment in experiments:
        if parts := registered_parts(experiment):
            raise UsageError(
                f"--cluster: {parts[0]} must be importable on other hosts, got a name that this "
                "program registered; put the part into a module and write module:Name"
            )
    from fairbed.testbed.cluster.connection import connect

    with connect(address) as cluster:
        for line in cluster.warnings:
            note(line)
        yield cluster


@contextmanager
def device_hosts(
    address: str | None, note: Callable[[str], object]
) -> Iterator["DeviceHosts | None"]:
    """Join a cluster that emulates devices while the context lasts; None without an address.

    Args:
        address: HOST:PORT of its head, or `local`.
        note: Called with each warning.

    Raises:
        ClusterError: It cannot be joined, or a host cannot run devices.
        BackendError: The speed of this machine cannot be measured.
        ModuleNotFoundError: Ray is not installed.
    """
    if address is None:
        yield None
        return
    from fairbed.testbed.cluster.device_hosts import open_hosts

    with open_hosts(address) as hosts:
        for line in hosts.warnings:
            note(line)
        yield hosts
