"""Count the product's calls in a warm round of any checkout: tools/count_calls.py [TREE].

For a bisection over revisions since 4e2efb5, whose packages have other names and other places: the
tests' laboratory of that tree runs a coordinator and three agents in memory, and each function has
the least count of three warm rounds. On a clock that runs: repeat it, and take the least.
tools/measure_costs.py counts this checkout, on a clock that stands still.
"""

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

WARM, ROUNDS = 3, 3
PARTS = {"coordinator": "coordinator", "device_agent": "agent", "wire": "wire"}


def count(tree: Path) -> Counter[str]:
    """Return the calls of a warm round by part."""
    sys.path.insert(0, str(tree))
    import anyio

    from tests.coordinator import lab

    names = vars(lab)
    codes, rounds, is_on = Counter[CodeType](), list[Counter[CodeType]](), False

    def note(frame: FrameType, event: str, argument: Any) -> None:
        caller = frame.f_back
        is_ours = caller is None or not caller.f_code.co_filename.endswith("memory.py")
        if event == "call" and is_on and is_ours:
            codes[frame.f_code] += 1

    def on_progress(progress: Any) -> None:
        nonlocal is_on
        is_on = progress.round.round >= WARM - 1
        if progress.round.round >= WARM:
            rounds.append(Counter(codes))
        codes.clear()

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with lab.lab(Path(folder)) as place:
                place.on_progress = on_progress
                kind = names["SelectionConfig"]  # the constant has had several names
                fleet = next(value for value in names.values() if isinstance(value, kind))
                settings = {"selection": fleet, "round": names["PATIENT"]}
                await place.run(lab.make_config(rounds=WARM + ROUNDS - 1, **settings))

    threading.setprofile(note)
    sys.setprofile(note)
    anyio.run(run)
    sys.setprofile(None)
    threading.setprofile(None)
    calls = Counter[str]()
    for code in rounds[0]:
        path = Path(code.co_filename).resolve()
        if path.is_relative_to(tree) and (at := path.relative_to(tree).parts)[0] in PARTS:
            part = "client" if at[:2] == ("wire", "transport") else PARTS[at[0]]
            calls[part] += min(one[code] for one in rounds)
    return calls


if __name__ == "__main__":
    root = Path(__file__).parent.parent if len(sys.argv) < 2 else Path(sys.argv[1])
    found = count(root.resolve())
    print(", ".join(f"{part} {found[part]}" for part in sorted(found)), f"= {found.total()}")
