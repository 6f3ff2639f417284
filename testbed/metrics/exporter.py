"""The exporter: the process that serves the metrics of one run and writes its TensorBoard files.

It reads the store, so that a run pays nothing for it, at a rate that keeps its own processor time
within `BUDGET`. It ends with the run, whose process holds the other end of its standard input.
"""

import argparse
import os
import socket
import sys
import threading
import time
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.testbed.metrics.totals import Totals
from fairbed.wire.console import print_line

if TYPE_CHECKING:
    from fairbed.testbed.metrics.prometheus import RunCollector
    from fairbed.testbed.metrics.tensorboard import Curves

NICENESS = 10
"""A number may wait; a measured process may not."""

BUDGET = 0.005
"""Share of a core that reading and rendering may take."""

MIN_PERIOD_S, MAX_PERIOD_S = 2.0, 30.0
"""Limits of the time between two readings."""

START_PERIOD_S = 0.1
"""Time between two looks for the store of a run that starts."""

SWITCH_S = 5e-4
"""Longest wait of an answer for each step of it while another thread reads the run; Python's own
5 ms would make a scrape of several steps slow."""

CLIENT_S = 10.0
"""Longest wait for the request of a client."""


class Page:
    """What the exporter serves; replaced as a whole."""

    def __init__(self) -> None:
        self.content = b""
        self.content_type = ""


def serve(listener: socket.socket, page: Page) -> None:
    """Answer requests at a listening socket, in threads of this process."""

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_S

        def do_GET(self) -> None:
            """Answer one request."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "the metrics are at /metrics")
                return
            content = page.content
            self.send_response(200)
            self.send_header("Content-Type", page.content_type)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    server.server_activate()
    threading.Thread(target=server.serve_forever, name="metrics.http", daemon=True).start()


class Follower:
    """Keeps page and event files of a run up to date.

    Args:
        folder: Folder of the run, which may not exist yet.
        page: Gets the metrics; None: no metrics.
        curves: Folder for the event files; None: none are written.
        pid: Process of the run.
    """

    def __init__(self, folder: Path, page: Page | None, curves: Path | None, pid: int) -> None:
        self._folder, self._page, self._curves_folder = folder, page, curves
        self._resources = ExitStack()
        self._totals: Totals | None = None
        self._curves: Curves | None = None
        self._collector = None if page is None else _collector(pid)
        if page is not None and self._collector is not None:
            page.content_type = self._collector.CONTENT_TYPE
            page.content = self._collector.text()

    @property
    def has_run(self) -> bool:
        """The run has begun."""
        return self._totals is not None

    def refresh(self, *, is_last: bool = False) -> None:
        """Read what is new; a run that has not begun only if it has ended.

        Raises:
            StoreError: The store cannot be read.
        """
        if self._totals is not None and self._totals.reader.run().row.resumes != (
            self._totals.resumes
        ):
            self.close()  # rows of open rounds are void
        if self._totals is None and not self._open(is_last):
            return
        assert self._totals is not None
        began_s = time.perf_counter()
        rounds, metrics = self._totals.refresh(time.monotonic())
        if self._collector is not None and self._page is not None:
            self._collector.totals = self._totals
            self._collector.refresh_s = time.perf_counter() - began_s
            self._page.content = self._collector.text()
        if self._curves is not None:
            self._curves.write(rounds, metrics, self._totals.reader)

    def _open(self, is_last: bool) -> bool:
        """Open the store of the run; return whether its process owns it yet, or has ended."""
        with ExitStack() as stack:
            reader = stack.enter_context(RunReader(self._folder))
            if not (is_last or reader.is_alive()):
                return False
            totals = Totals(reader)
            self._curves = None
            if self._curves_folder is not None:
                from fairbed.testbed.metrics.tensorboard import Curves

                self._curves = Curves(self._curves_folder, totals)
                stack.callback(self._curves.close)
            self._totals, self._resources = totals, stack.pop_all()
        return True

    def close(self) -> None:
        """Close the store and the event files."""
        self._totals = None
        self._resources.close()


def _collector(pid: int) -> "RunCollector":
    from fairbed.testbed.metrics.prometheus import RunCollector

    return RunCollector(pid)


def follow(follower: Follower, is_ended: threading.Event) -> None:
    """Refresh until the run has ended, then once more."""
    period_s, problem = START_PERIOD_S, ""
    while True:
        is_last = is_ended.wait(period_s)
        began_s = time.thread_time()
        try:
            follower.refresh(is_last=is_last)
            problem = ""
        except StoreError as exc:
            if follower.has_run and str(exc) != problem:
                problem = str(exc)
                print_line(f"fairbed: metrics: the run cannot be read: {problem}")
        if is_last:
            return
        if follower.has_run and period_s == START_PERIOD_S:
            period_s = MIN_PERIOD_S  # the first reading also loads modules
        elif follower.has_run:
            cost_s = time.thread_time() - began_s
            period_s = min(max(cost_s / BUDGET, MIN_PERIOD_S), MAX_PERIOD_S)


def main() -> None:
    """Follow the run that started this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--listener", type=int, help="file descriptor of a listening socket")
    parser.add_argument("--curves", type=Path)
    options = parser.parse_args()
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    # tensorboardX imports torch where it can, which costs seconds and 180 MiB, for tensors.
    sys.modules["torch"] = cast(ModuleType, None)
    sys.setswitchinterval(SWITCH_S)
    is_ended = threading.Event()

    def await_end() -> None:
        sys.stdin.buffer.read()
        is_ended.set()

    threading.Thread(target=await_end, name="metrics.end", daemon=True).start()
    page = None if options.listener is None else Page()
    follower = Follower(options.folder, page, options.curves, os.getppid())
    if page is not None:
        serve(socket.socket(fileno=options.listener), page)
    try:
        follow(follower, is_ended)
    finally:
        follower.close()


if __name__ == "__main__":
    main()
