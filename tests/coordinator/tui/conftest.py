"""What tests of the control room share: the looks of a screen, as golden files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

import pytest

from fairbed.coordinator.report.measures import device as of_device
from fairbed.coordinator.report.measures import run as of_run
from fairbed.coordinator.tui.app import ControlRoom
from tests.coordinator.tui.screen import SMALL, WIDE, room, settled

GOLDEN = Path(__file__).parent / "golden"

Colours = Literal["all", "16", "none"]
"""Colours of the terminal: all, the 16 of ANSI, or `NO_COLOR`."""


class Looks(Protocol):
    """Compares a screen with golden files `NAME-80x24.txt` and so on."""

    async def __call__(
        self,
        folder: Path,
        name: str,
        keys: Sequence[str] = (),
        *,
        sizes: Sequence[tuple[int, int]] = (SMALL, WIDE),
        colours: Colours = "all",
        **options: object,
    ) -> None:
        """Open the run in `folder`, press keys, and compare; `options` are of `ControlRoom`.

        With 16 colours and with none the characters must carry every meaning: both are compared
        with the same `NAME-letters-80x24.txt`, at the first size only.
        """


@pytest.fixture
def looks(
    golden: Callable[[Path, bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> Looks:
    """Return a check that a screen looks as in its golden files (`pytest --snap` writes them).

    The fast tier compares the first of the sizes. A measure without a field of its own is on no
    golden screen, so that a new one changes none; tests/cases/test_measures.py has one on a screen.
    """
    is_fast = pytestconfig.getoption("--tier") == "fast" and not pytestconfig.getoption("--snap")

    async def check(
        folder: Path,
        name: str,
        keys: Sequence[str] = (),
        *,
        sizes: Sequence[tuple[int, int]] = (SMALL, WIDE),
        colours: Colours = "all",
        **options: object,
    ) -> None:
        with monkeypatch.context() as terminal:
            terminal.setattr(of_run, "RUN", tuple(x for x in of_run.RUN if not x.is_own))
            devices = tuple(x for x in of_device.DEVICE if not x.is_own)
            terminal.setattr(of_device, "DEVICE", devices)
            if colours == "16":
                terminal.setattr(ControlRoom, "lacks_colours", True)
            elif colours == "none":
                terminal.setenv("NO_COLOR", "1")
            for size in sizes[:1] if is_fast or colours != "all" else sizes:
                async with room(folder, size, **options) as (app, pilot):
                    for key in keys:
                        await settled(app, pilot)
                        await pilot.press(key)
                    picture = await settled(app, pilot) + "\n"
                kind = "" if colours == "all" else "-letters"
                golden(GOLDEN / f"{name}{kind}-{size[0]}x{size[1]}.txt", picture.encode())

    return check
