"""A comparison as lines for people."""

from collections.abc import Iterable

from coordinator.quantities import MISSING, percent
from testbed.live_replay.comparison import Comparison, Verdict
from testbed.live_replay.distances import Off

GAPS = {
    "tau_ratio": "exchange times, Wasserstein distance / mean",
    "round_ratio": "round times, Wasserstein distance / mean",
    "total_ratio": "total time",
    "rate": "selection rate, mean difference",
    "queue": "sum of queues, difference of the means",
}


def report(found: Comparison) -> str:
    """Return what a comparison found."""
    links = "links that move" if found.has_moving_links else "links that never move"
    wholes = f"as wholes, mean distance of {len(found.counted) - 1} live, {found.replays} replays"
    counted = ", ".join(f"{count} in {run}" for run, count in found.counted.items())
    lines = [
        f"{found.name}: {found.devices} devices on {links}, {found.rounds} rounds; exchanges that "
        f"count: {counted}",
        "",
        f"{'one by one, relative':<46}{'count':>8}{'median':>10}{'p95':>10}{'bias':>10}",
        *_off("replay with b-1's cohorts: exchange times", found.forced.tau),
        *_off("replay with b-1's cohorts: round times", found.forced.round),
        *_off("b-2, where it did the same: exchange times", found.repeat.tau),
        *_off("b-2, where it did the same: round times", found.repeat.round),
        "",
        f"{wholes:<46}{'replay':>10}{'live':>10}{'ratio':>10}",
    ]
    ours, theirs = found.replay_gap.as_dict(), found.live_gap.as_dict()
    for key, title in GAPS.items():
        ratio = found.ratios[key]
        shown = MISSING if ratio is None else f"{ratio:.2f}"
        cells = [f"{v:.2f}" if key == "queue" else percent(v) for v in (ours[key], theirs[key])]
        lines.append(f"{title:<46}{cells[0]:>10}{cells[1]:>10}{shown:>10}")
    return "\n".join([*lines, "", *map(_verdict, found.verdicts)])


def _off(title: str, off: Off) -> Iterable[str]:
    numbers = percent(off.median), percent(off.p95), percent(off.bias, is_signed=True)
    cells = "".join(f"{number:>10}" for number in numbers)
    yield f"{title:<46}{off.count:>8}{cells}"


def _verdict(verdict: Verdict) -> str:
    word = {True: "ok", False: "missed", None: "not known"}[verdict.ok]
    return f"{verdict.what}: {_number(verdict)}: {word}"


def _number(verdict: Verdict) -> str:
    if verdict.limit < 1.0:
        return f"{percent(verdict.achieved)}, at most {percent(verdict.limit)}"
    shown = MISSING if verdict.achieved is None else f"{verdict.achieved:.2f}"
    return f"{shown}, at most {verdict.limit:.2f}"
