"""The text of a comparison."""

from experiments.replay_fidelity.comparison import FidelityComparison, Verdict
from experiments.replay_fidelity.distances import RelativeErrors
from experiments.replay_fidelity.pooled import FEW_WINDOWS, Pooled
from fairbed.coordinator.report.quantities import MISSING, percent

GAPS = {
    "tau_ratio": "exchange times, Wasserstein distance / mean",
    "round_ratio": "round times, Wasserstein distance / mean",
    "total_ratio": "total time",
    "rate": "selection rate, mean difference",
    "queue": "sum of queues, difference of the means",
}


def report(found: FidelityComparison) -> str:
    """Return a comparison as text."""
    links = "variable links" if found.has_moving_links else "constant links"
    links += " that lose packets" if found.loses_packets else ""
    gaps = f"mean distance of {len(found.counted) - 1} live runs and {found.replays} replays"
    counted = ", ".join(f"{count} in {run}" for run, count in found.counted.items())
    lines = [
        f"{found.name}: {found.devices} devices on {links}, {found.rounds} rounds; valid "
        f"exchanges: {counted}",
        "",
        f"{'relative errors':<46}{'count':>8}{'median':>10}{'p95':>10}{'bias':>10}",
        _error_line("replays with the live cohorts: exchange times", found.forced.tau),
        _error_line("replays with the live cohorts: round times", found.forced.round),
        _error_line("b-2, same exchanges: exchange times", found.repeat.tau),
        _error_line("b-2, same cohorts: round times", found.repeat.round),
        "",
        f"{gaps:<46}{'replay':>10}{'live':>10}{'ratio':>10}",
    ]
    of_replay, of_live = found.replay_gap.as_dict(), found.live_gap.as_dict()
    for key, title in GAPS.items():
        ratio = found.ratios[key]
        shown = MISSING if ratio is None else f"{ratio:.2f}"
        values = of_replay[key], of_live[key]
        cells = [f"{value:.2f}" if key == "queue" else percent(value) for value in values]
        lines.append(f"{title:<46}{cells[0]:>10}{cells[1]:>10}{shown:>10}")
    lines += ["", *pooled_lines(found.pooled), "", *map(_verdict_line, found.verdicts)]
    return "\n".join(lines)


def pooled_lines(found: Pooled) -> list[str]:
    """Return the statement about all repeats as lines."""
    lines = [f"{'replays with the live cohorts, by run':<46}{'pairs':>8}{'live':>10}{'replay':>10}"]
    lines[0] += f"{'ratio':>10}{'windows':>10}"
    for one in found.runs:
        times = f"{one.live_s:>8.2f} s{one.replay_s:>8.2f} s{one.ratio:>10.3f}"
        seen = "" if one.windows is None else f"{one.windows:>10}"
        lines.append(f"{one.name + ': median exchange':<46}{one.pairs:>8}{times}{seen}")
    for part in found.parts:
        times = f"{part.live_s:>8.2f} s{part.replay_s:>8.2f} s"
        share = f"{part.replay_s / part.live_s:>10.3f}" if part.live_s > 0.0 else ""
        lines.append(f"{part.name + ', mean over all pairs':<54}{times}{share}")
    return [*lines, "", _ratio_line(found), *_window_lines(found)]


def _ratio_line(found: Pooled) -> str:
    if found.ratio is None:
        return "all repeats: no exchange is valid in a live run and in its replay"
    interval = "no interval: it needs two runs with valid exchanges"
    if found.low is not None and found.high is not None:
        interval = f"95 % {found.low:.3f} to {found.high:.3f}, the runs as clusters"
    return (
        f"all repeats: median of replay / live {found.ratio:.3f} ({interval}; "
        f"{len(found.runs)} runs, {found.pairs} pairs)"
    )


def _window_lines(found: Pooled) -> list[str]:
    if found.windows is None:
        return []
    line = f"loss windows seen: {found.windows}, the same in every repeat ([seeds] traces)"
    if found.has_few_windows:
        line += (
            f"; fewer than {FEW_WINDOWS}, so the times of this fleet on other windows may be quite "
            "different: replay more rounds or other seeds"
        )
    return [line]


def _error_line(title: str, found: RelativeErrors) -> str:
    numbers = percent(found.median), percent(found.p95), percent(found.bias, is_signed=True)
    cells = "".join(f"{number:>10}" for number in numbers)
    return f"{title:<46}{found.count:>8}{cells}"


def _verdict_line(verdict: Verdict) -> str:
    word = {True: "ok", False: "missed", None: "unknown"}[verdict.ok]
    return f"{verdict.what}: {_number(verdict)}: {word}"


def _number(verdict: Verdict) -> str:
    if verdict.limit < 1.0:
        return f"{percent(verdict.achieved)}, at most {percent(verdict.limit)}"
    shown = MISSING if verdict.achieved is None else f"{verdict.achieved:.2f}"
    return f"{shown}, at most {verdict.limit:.2f}"
