"""Textual's web driver with packets that stay whole.

Textual writes the screen in the thread of its app, and pieces of a file in the thread of its input,
each packet with one `write` to a pipe. Two large ones at the same time would mix there.
"""

import os
import threading
from typing import Any

from textual.app import App
from textual.drivers.web_driver import WebDriver


class WholePacketDriver(WebDriver):
    """Writes one packet after the other."""

    def __init__(self, app: App[Any], **options: Any) -> None:
        super().__init__(app, **options)
        self._writing = threading.Lock()
        self._write = self._write_whole  # type: ignore[assignment]  # was a call of os.write

    def _write_whole(self, packet: bytes) -> int:
        with self._writing:
            left = memoryview(packet)
            while left:
                left = left[os.write(self.fileno, left) :]
        return len(packet)
