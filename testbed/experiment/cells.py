"""`[[cell]]` of an experiment file: devices that share a rate."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from fairbed import profiles
from fairbed.coordinator.policy.config import PositiveFloat, Section
from fairbed.profiles import CellShare
from fairbed.testbed.emulation.cell import Cell

CellName = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,26}$")]

MAX_DEPTH = 4
"""Cells on the way from a device to the coordinator; the kernel's HTB has eight levels."""


class CellConfig(Section, frozen=True, kw_only=True):
    """`[[cell]]`: a radio cell, an access point or a line whose rate several devices share."""

    name: CellName
    """Name for `fleet.cell` and `cell.behind`."""
    profile: str | None = None
    """Name of a cell profile, or path of a `.toml`; the keys below replace its values."""
    down_bps: PositiveFloat | None = None
    """Rate towards the devices, all together, bit/s of TCP payload; not set: that of the
    profile."""
    up_bps: PositiveFloat | None = None
    """Rate away from the devices, all together, bit/s; not set: that of the profile."""
    share: CellShare | None = None
    """How the devices that transfer share the rate: equal, proportional-fair (an equal share of the
    time, each at the rate of its own link) or priority (`fleet.priority`); not set: that of the
    profile, or equal."""
    behind: CellName | None = None
    """Name of the cell in front of this one, such as the line of the coordinator; not set: none."""

    def __post_init__(self) -> None:
        if self.profile is None:
            for key in ("down_bps", "up_bps"):
                if getattr(self, key) is None:
                    raise ValueError(
                        f"{key} must be given without a profile, got none for the cell "
                        f"{self.name!r}; give the rate in bit/s, such as 20e6"
                    )

    def cell(self) -> Cell:
        """Return the cell.

        Raises:
            ProfileError: The profile is unknown, or breaks a rule.
        """
        found = None if self.profile is None else profiles.load_cell(self.profile)
        down_bps = self.down_bps if found is None else self.down_bps or found.down_bps
        up_bps = self.up_bps if found is None else self.up_bps or found.up_bps
        assert down_bps is not None, "without a profile both rates are given"
        assert up_bps is not None, "without a profile both rates are given"
        share = self.share or (found.share if found is not None else "equal")
        return Cell(
            name=self.name, down_bps=down_bps, up_bps=up_bps, share=share, behind=self.behind
        )


def cells_problem(cells: Sequence[CellConfig], groups: Sequence[str | None]) -> str | None:
    """Return a problem of the cells of an experiment, in one line; None if there is none.

    Args:
        cells: All cells.
        groups: Name of the cell of each `[[fleet]]`; None is no cell.
    """
    names, used = [cell.name for cell in cells], set(groups)
    listed = ", ".join(names)
    for number, name in enumerate(groups):
        if name is not None and name not in names:
            return f"fleet[{number}].cell must be the name of a [[cell]], got {name!r}; the " + (
                f"cells are {listed}" if names else "experiment has no [[cell]]; add one"
            )
    by_name = {cell.name: cell for cell in cells}
    fronts = {cell.behind for cell in cells}
    for number, cell in enumerate(cells):
        if names.count(cell.name) > 1:
            return (
                f"cell[{number}].name must differ from those of the other cells, got "
                f"{cell.name!r} twice; rename one"
            )
        if cell.name not in used | fronts:
            return (
                f"cell[{number}].name must be named by a group of the fleet or by another cell, "
                f"got {cell.name!r}, which none names; set cell = {cell.name!r} in a [[fleet]], or "
                "remove the cell"
            )
        if cell.behind is not None and cell.behind not in by_name:
            return (
                f"cell[{number}].behind must be the name of a [[cell]], got {cell.behind!r}; the "
                f"cells are {listed}"
            )
    for number, cell in enumerate(cells):
        depth, at = 1, cell
        while at.behind is not None:
            depth, at = depth + 1, by_name[at.behind]
            if depth > MAX_DEPTH:
                return (
                    f"cell[{number}].behind must lead to a cell that is behind no other, with at "
                    f"most {MAX_DEPTH} cells on the way, got more from {cell.name!r}; remove one"
                )
    return None


def make_cells(
    configs: Sequence[CellConfig], groups: Sequence[tuple[str | None, int | None]]
) -> dict[str, Cell]:
    """Return the cells of an experiment, by name.

    Args:
        configs: All cells, without a problem of `cells_problem`.
        groups: Of each `[[fleet]]`, the name of its cell and its priority.

    Raises:
        ProfileError: A profile is unknown, or breaks a rule.
        ValueError: A rule does not fit the groups or the other cells; the message is one line.
    """
    cells = {config.name: config.cell() for config in configs}
    fronts = {cell.behind for cell in cells.values()}
    for number, cell in enumerate(cells.values()):
        if cell.share != "equal" and (cell.behind is not None or cell.name in fronts):
            other = "is behind another" if cell.behind is not None else "has others behind it"
            raise ValueError(
                f'cell[{number}].share: must be "equal" for a cell that {other}, got '
                f"{cell.share!r} for {cell.name!r}; change the rule, or remove `behind`"
            )
    for number, (name, priority) in enumerate(groups):
        if priority is not None and (name is None or cells[name].share != "priority"):
            got = "no cell" if name is None else f"{cells[name].share!r} in the cell {name!r}"
            raise ValueError(
                f'fleet[{number}].priority: needs a cell with share = "priority", got {got}; '
                "remove the priority, or change the cell"
            )
    return cells
