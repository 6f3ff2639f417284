"""The link of a run to its exporter (`testbed.metrics.exporter`)."""

import argparse
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fairbed.testbed.errors import RunError, UsageError
from fairbed.testbed.install import install_command

LOOPBACK = "127.0.0.1"

EXPORTER = "fairbed.testbed.metrics.exporter"
"""Module that runs as the exporter."""

END_S = 10.0
"""Longest wait for the exporter's last files after the run; then it is killed."""


def follower(options: argparse.Namespace) -> "ExportTargets":
    """Return what the options of a command ask for: a `testbed.cli.following.Follower`."""
    return ExportTargets(options.metrics, options.tensorboard)


class ExportTargets:
    """Where a run exports its numbers, checked before it starts; a context manager.

    Args:
        metrics: `[HOST]:PORT` at which to serve them; a host is needed beyond this machine.
        tensorboard: Folder of event files, in which each run has a folder of its own.

    Raises:
        UsageError: An address is malformed, or a package is missing.
        RunError: The port is taken, or the folder cannot be written.
    """

    def __init__(self, metrics: str | None, tensorboard: Path | None) -> None:
        if metrics is not None:
            _check_installed("--metrics", "prometheus_client")
        if tensorboard is not None:
            _check_installed("--tensorboard", "tensorboardX")
            try:
                tensorboard.mkdir(parents=True, exist_ok=True)
            except OSError as exc:
                raise RunError(
                    f"--tensorboard {tensorboard}: must be a folder that can be written, got: "
                    f"{exc.strerror}; choose another"
                ) from exc
        self._tensorboard = tensorboard
        self._listener = None if metrics is None else _listen(metrics)
        self.url = None if self._listener is None else _url(self._listener)
        """Address of the metrics; None if none are served."""

    def __enter__(self) -> "ExportTargets":
        return self

    def __exit__(self, *_: object) -> None:
        if self._listener is not None:
            self._listener.close()

    @property
    def lines(self) -> list[str]:
        """What a person should know when the run starts."""
        return [] if self.url is None else [f"metrics at {self.url}"]

    @contextmanager
    def following(self, folder: Path) -> Iterator[None]:
        """Export the run in a folder, which need not exist yet, until the context ends."""
        if self._listener is None and self._tensorboard is None:
            yield
            return
        command = [sys.executable, "-m", EXPORTER, str(folder.resolve())]
        passed: tuple[int, ...] = ()
        if self._tensorboard is not None:
            command += ["--curves", str(self._tensorboard.resolve() / folder.resolve().name)]
        if self._listener is not None:
            passed = (self._listener.fileno(),)
            command += ["--listener", str(self._listener.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=passed,
            start_new_session=True,  # a closed terminal or Ctrl-C must not end it
        )
        if self._listener is not None:
            self._listener.close()
        assert process.stdin is not None
        try:
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _check_installed(option: str, module: str) -> None:
    if find_spec(module) is None:
        raise UsageError(
            f"{option}: the package {module} must be installed, got none; run: "
            f"{install_command('fairbed[metrics]')}"
        )


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _listen(where: str) -> socket.socket:
    """Return a socket that listens at `[HOST]:PORT`; port 0 is any free one."""
    host, _, port = where.rpartition(":")
    host = host.strip("[]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise UsageError(f"--metrics: must be [HOST]:PORT, as in :9464, got {where!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, int(port)), family=family)
    except OSError as exc:
        problem = (exc.strerror or str(exc)).partition(" (")[0]
        raise RunError(
            f"--metrics {where}: must be a free address of this machine, got: {problem}; "
            "choose another port"
        ) from exc
