"""The control room at a fixed refresh rate and at normal priority: FOLDER HERTZ as arguments.

`fairbed watch` refreshes less often where a refresh costs much, and gives way to other processes,
so that its processor time depends on them.
"""

import sys
from pathlib import Path

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.tui import app


def main(folder: str, hertz: str) -> None:
    """Show a run until the user leaves it."""
    app.SHORTEST_PAUSE_S = app.LONGEST_PAUSE_S = 1.0 / float(hertz)
    with RunReader(Path(folder)) as reader:
        app.ControlRoom(reader).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
