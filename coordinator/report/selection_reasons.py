"""Why devices were selected in a round, or not, in words: read from the store."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fairbed.coordinator.algorithms.selection.base import Reason
from fairbed.coordinator.report.quantities import MISSING, ratio, seconds
from fairbed.coordinator.report.text_table import TextColumn, table_lines
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import RoundRow, SelectionRow

MAX_DEVICES = 40
"""Maximum number of devices listed."""


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """What the numbers of a policy are."""

    score: str
    """The number by which it ranks a device."""
    objective: str = ""
    """What it optimises; empty if it draws."""
    unit: str = ""
    """Of the objective, with a space before it."""
    is_low_good: bool = True


_TIME = PolicyTerms("predicted time, s", "predicted duration of the round", " s")
_RBCS_F = PolicyTerms("V x predicted time - Z", "V x longest predicted time - sum of queues Z")

TERMS: Mapping[str, PolicyTerms] = {
    "uniform": PolicyTerms("probability of being drawn"),
    "weighted": PolicyTerms("probability of being drawn first"),
    "fedcs": _TIME,
    "fedcs-oracle": _TIME,
    "fastest-known": _TIME,
    "rbcs-f": _RBCS_F,
    "rbcs-f-known": _RBCS_F,
    "oort": PolicyTerms("utility and speed"),
    "power-of-choice": PolicyTerms("loss, nats", "sum of the losses", " nats", is_low_good=False),
}
"""By policy."""

PLUGIN_TERMS = PolicyTerms("score of the policy", "objective of the policy")


class DeviceChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One device at the selection of a round, and the outcome of its exchange."""

    device: str
    is_selected: bool
    is_aggregated: bool
    reason: str
    """The word in the store; empty: there is none."""
    why: str
    """The reason in a few words, with its number."""
    score: float | None
    margin: float | None
    tau_hat_s: float | None
    """Predicted exchange time; None before the first exchange."""
    tau_s: float | None
    """Measured exchange time."""
    queue_before: float
    queue: float
    """Virtual queue after the round."""
    outcome: str
    """Of its exchange: done, late, ...; empty if it was not selected."""


class RoundChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The selection of one closed round."""

    run_id: str
    round: int
    policy: str
    available: int
    selected: int
    score_is: str
    objective_is: str
    """Empty if the policy draws."""
    is_low_good: bool
    objective: float | None
    alternative: float | None
    alternative_out: str | None
    alternative_in: str | None
    devices: tuple[DeviceChoice, ...]
    """The cohort first, then the nearest alternatives; those that were no candidates last."""

    @property
    def unit(self) -> str:
        """Unit of the objective, with a space before it."""
        return terms_of(self.policy).unit


def terms_of(policy: str) -> PolicyTerms:
    """Return what the numbers of a policy are."""
    return TERMS.get(policy, PLUGIN_TERMS)


def read_choice(reader: RunReader, round_id: int) -> RoundChoice | None:
    """Return the selection of a round; None if no such round is closed."""
    with reader.snapshot():
        rounds = reader.rounds(round_id - 1, round_id)
        if not rounds:
            return None
        selections = reader.selections(round_id)
        before = dict(
            reader.columns(SelectionRow, ("device", "queue"), "WHERE round = ?", (round_id - 1,))
        )
        exchanges = {x.device: x for x in reader.exchanges(round_id - 1, round_id)}
        run_id = reader.run().run_id
    policy = reader.plan.selection.policy or "rbcs-f"
    terms = terms_of(policy)
    devices = []
    for row in selections:
        exchange = exchanges.get(row.device)
        devices.append(
            DeviceChoice(
                device=row.device,
                is_selected=row.is_selected,
                is_aggregated=row.is_aggregated,
                reason=row.reason,
                why=reason_text(row, terms),
                score=row.score,
                margin=row.margin,
                tau_hat_s=row.tau_hat_s or None,
                tau_s=None if exchange is None else exchange.tau_s,
                queue_before=before.get(row.device, 0.0),
                queue=row.queue,
                outcome="" if exchange is None else exchange.outcome,
            )
        )
    return _choice(run_id, policy, rounds[0], sorted(devices, key=_order))


def _choice(run_id: str, policy: str, row: RoundRow, devices: list[DeviceChoice]) -> RoundChoice:
    terms = terms_of(policy)
    return RoundChoice(
        run_id=run_id,
        round=row.round,
        policy=policy,
        available=row.available,
        selected=row.selected,
        score_is=terms.score,
        objective_is=terms.objective,
        is_low_good=terms.is_low_good,
        objective=row.objective,
        alternative=row.alternative,
        alternative_out=row.alternative_out,
        alternative_in=row.alternative_in,
        devices=tuple(devices),
    )


def _order(one: DeviceChoice) -> tuple[bool, bool, float, str]:
    margin = 0.0 if one.margin is None or one.is_selected else one.margin
    return not one.is_selected, one.score is None and one.margin is None, margin, one.device


def reason_text(row: SelectionRow, terms: PolicyTerms) -> str:
    """Return why a device was selected, or not, in a few words."""
    if row.reason in _WORDS:
        return _WORDS[row.reason]
    if row.margin is None:
        is_best = row.reason == Reason.RANKED.word
        return "best cohort" if is_best else row.reason or "no reason is stored"
    amount = f"{row.margin:.3g}"
    if row.reason == Reason.OVER_DEADLINE.word:
        return f"{amount} s over the deadline"
    if row.margin == 0.0:
        return "chosen in a tie" if row.is_selected else "lost a tie"
    if row.reason == Reason.RANKED.word:
        return f"best cohort; without it {amount}{terms.unit} worse"
    if not terms.objective:
        return f"score {amount} below the cut-off"
    return f"outranked; with it {amount}{terms.unit} worse"


_WORDS: Mapping[str, str] = {
    Reason.DRAWN.word: "drawn at random",
    Reason.EXPLORED.word: "drawn to be tried for the first time",
    Reason.NEEDED.word: "no more candidates than places",
    Reason.FALLBACK.word: "fastest; none meets the deadline",
    Reason.EARLIER.word: "selected earlier in this round",
    Reason.AUDIT.word: "drawn for the audit sample",
    Reason.NOT_DRAWN.word: "not drawn",
    Reason.AUDITED_OUT.word: "chosen, but the audit sample replaced it",
    Reason.MISS_LIMIT.word: "missed too many deadlines in a row",
    Reason.NO_LOSS.word: "queried, but reported no loss",
    Reason.UNAVAILABLE.word: "not available",
    Reason.OFFLINE.word: "offline, or silent",
    Reason.EXCLUDED.word: "excluded by an operator",
    Reason.PREPARING.word: "not ready yet",
    Reason.UNWILLING.word: "unwilling",
    Reason.BUSY.word: "busy with an earlier exchange",
    Reason.UNFIT.word: "cannot do what the run asks",
}
"""Reasons without a number."""


def objective_line(choice: RoundChoice) -> str:
    """Return the objective of the cohort in words; empty if the policy has none."""
    if choice.objective is None:
        return ""
    good = "lower" if choice.is_low_good else "higher"
    value = f"{choice.objective:.4g}{choice.unit}"
    return f"{choice.objective_is} = {value} ({good} is better)"


def alternative_line(choice: RoundChoice) -> str:
    """Return the best alternative in words; empty if there is none."""
    if choice.alternative is None or choice.objective is None:
        return ""
    worse = abs(choice.alternative - choice.objective)
    return (
        f"{choice.alternative_in} instead of {choice.alternative_out}: "
        f"{choice.alternative:.4g}{choice.unit}, {f'{worse:.3g} worse' if worse else 'as good'}"
    )


COLUMNS: tuple[TextColumn[DeviceChoice], ...] = (
    TextColumn("device", lambda d: d.device, "<"),
    TextColumn("selected", lambda d: "yes" if d.is_selected else "no", "<"),
    TextColumn("predicted s", lambda d: seconds(d.tau_hat_s), priority=3),
    TextColumn("measured s", lambda d: seconds(d.tau_s), priority=4),
    TextColumn("Z before", lambda d: ratio(d.queue_before, 2), priority=2),
    TextColumn("Z after", lambda d: ratio(d.queue, 2), priority=5),
    TextColumn("score", lambda d: MISSING if d.score is None else f"{d.score:.3g}", priority=1),
    TextColumn("why", lambda d: d.why, "<"),
)
"""Of the devices of a round."""


def columns_of(choice: RoundChoice) -> list[TextColumn[DeviceChoice]]:
    """Return the columns for the devices of a round; without queues if all are empty."""
    has_queues = any(one.queue_before or one.queue for one in choice.devices)
    return [column for column in COLUMNS if has_queues or not column.heading.startswith("Z ")]


def choice_facts(choice: RoundChoice) -> list[tuple[str, str]]:
    """Return what is known of the whole selection: labels and texts."""
    facts = [
        ("selected", f"{choice.selected} of {choice.available} available, by {choice.policy}"),
        ("objective", objective_line(choice)),
        ("best other", alternative_line(choice)),
        ("score", choice.score_is),
    ]
    return [(label, text) for label, text in facts if text]


def choice_table(choice: RoundChoice, width: int | None = None) -> str:
    """Return the selection of a round as text, one line per device.

    Args:
        choice: The selection.
        width: Columns of the terminal: those that do not fit are left out; None for all.
    """
    facts = [("round", f"{choice.round} of {choice.run_id}"), *choice_facts(choice)]
    lines = [f"{label:<12}{text}" for label, text in facts]
    lines += ["", *table_lines(columns_of(choice), choice.devices[:MAX_DEVICES], width)]
    if len(choice.devices) > MAX_DEVICES:
        lines.append(f"and {len(choice.devices) - MAX_DEVICES} more devices")
    return "\n".join(lines)
