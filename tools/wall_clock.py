"""A wall clock that is set during a run: what the step `clock` of kernel.py runs and checks.

The script runs in a machine of its own, because it sets the clock of that machine. The rows that it
leaves show that the clock was set, and what else changed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import pairwise

from benchmarks._chaos.audit import RoundRows, StoreAudit
from fairbed.coordinator.store.reader import RunReader
from fairbed.coordinator.store.tables import (
    CommandRow,
    EventRow,
    Record,
)
from tools.roots import StepError

DAY_S = 86_400
JUMPS_S = (0, DAY_S, -2 * DAY_S, DAY_S)
"""By how much the clock is set in turn: not at all, a day ahead, a day behind, back; seconds."""
JUMP_ROUNDS = 3
"""Rounds at each setting of the clock."""
BETA = 0.5
"""Guaranteed selection rate, in the experiments of the step."""

FORECASTS = frozenset({"tau_hat_s", "width_s"})
"""Columns that no clock measured."""
SIGNED = frozenset({"unaccounted_s"})
"""Durations that may be below 0: what the phases leave of an exchange."""
LOST_LINK = frozenset({"left", "rejoined", "disconnected"})
"""Kinds of the events of a device, or a coordinator, whose connection ended."""

ENROLLED = ("pi-1", "pi-2", "pi-3")
NEWCOMER = "pi-4"
"""Enrolled while the clock is a day ahead; so its login is made a day after it is used."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a run recorded."""

    rounds: Sequence[RoundRows]
    events: Sequence[EventRow]
    commands: Sequence[CommandRow]
    others: Sequence[Record]
    """Rows of other tables that have times."""

    @classmethod
    def read(cls, reader: RunReader) -> "Seen":
        """Return the rows of a run that has ended."""
        devices = reader.devices()
        contexts = [row for device in devices for row in reader.telemetry_of(device.name)]
        return cls(
            rounds=[
                RoundRows(
                    row, reader.selections(row.round), reader.exchanges(row.round - 1, row.round)
                )
                for row in reader.rounds()
            ],
            events=[event for _, event in reader.events()],
            commands=reader.commands(),
            others=[*devices, *reader.metrics(), *reader.alerts(), *contexts],
        )


# The script


def script(start: str, newcomer: str = "") -> str:
    """Return lines of bash that set the clock in mid-run, and then end the run.

    Args:
        start: Starts the run in /tmp/run in the background; its process id is `run` then.
        newcomer: Runs while the clock is a day ahead.
    """
    here, ahead, *rest = (f"jump {jump_s:+d}" for jump_s in JUMPS_S)
    return "\n".join([_FUNCTIONS, start, here, ahead, newcomer, *rest, "more_rounds", _END])


_FUNCTIONS = f"""
count() {{
    python3 -c 'import sqlite3, sys
run = sqlite3.connect("file:/tmp/run/run.db?mode=ro", uri=True)
print(run.execute("SELECT count(*) FROM " + sys.argv[1]).fetchone()[0])' "$1" 2>/dev/null || echo 0
}}
await() {{
    until [ "$(count "$1")" -ge "$2" ]; do
        kill -0 $run
        sleep 0.2
    done
}}
more_rounds() {{
    await round $(($(count round) + {JUMP_ROUNDS}))
}}
jump() {{
    more_rounds
    date --set "$1 seconds"
    fairbed command /tmp/run note "clock $1"
    log_in
}}
log_in() {{ :; }}
"""

_END = """
fairbed command /tmp/run stop-after-round
wait $run
rm -rf /mnt/inside/run
mkdir /mnt/inside/run
cp /tmp/run/run.db* /tmp/run/experiment.toml /mnt/inside/run
"""

START_LAB = f"""
export FAIRBED_LAB=/tmp/lab
enroll() {{
    line=$(fairbed enroll $1 --expires 2)
    token=${{line##*FAIRBED_TOKEN=}}
    FAIRBED_TOKEN=${{token%% *}} device-agent join --lab https://127.0.0.1:8884 \\
        --ca /tmp/lab/ca.pem --folder /tmp/$1 --no-service
    device-agent --config /tmp/$1/agent.toml --cache /tmp/$1/cache --state /tmp/$1/state \\
        >/tmp/logs/$1.log 2>&1 &
}}
log_in() {{
    for config in /tmp/pi-*/agent.toml; do
        device-agent doctor --config $config >/tmp/logs/doctor.log || true
        [ "$(grep -cE '^ok +(TLS|clock|identity|login) ' /tmp/logs/doctor.log)" = 4 ]
    done
}}
mkdir /tmp/logs
fairbed lab init /tmp/lab --broker mosquitto --address 127.0.0.1
fairbed lab up >/tmp/logs/lab.log 2>&1 &
until fairbed lab status; do sleep 0.5; done
for name in {" ".join(ENROLLED)}; do enroll $name; done
fairbed coordinator /mnt/inside/lab.toml --set rounds=1000 --headless --json --out /tmp/run \\
    >$OUT 2>/tmp/progress &
run=$!
"""
"""A lab with TLS, three agents with logins that are valid for two days, and a coordinator.

After each jump every device logs in once more beside its agent, and shows its identity to the lab.
"""

ENROLL_NEWCOMER = f"""
enroll {NEWCOMER}
await "exchange WHERE outcome = 'done' AND device = '{NEWCOMER}'" 1
fairbed lab status
"""


# The check


def check(seen: Seen, most_s: float) -> str:
    """Return what a run had during which the clock was set.

    Args:
        seen: Its rows.
        most_s: Seconds for which the machine was up: no time of the run is longer.

    Raises:
        StepError: The clock was not set, or something else than texts changed.
    """
    problems = [
        *_round_problems(seen.rounds),
        *_jump_problems([row for row in seen.commands if row.action == "note"], most_s),
        *(f"{row.action}: {row.answer}" for row in seen.commands if not row.is_accepted),
        *(f"{row.device}: {row.text}" for row in _while_open(seen) if row.kind in LOST_LINK),
        *odd_times([*_rows(seen.rounds), *seen.events, *seen.commands, *seen.others], most_s),
    ]
    if problems:
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise StepError("; ".join(problems[:3]) + more)
    exchanges = [row for one in seen.rounds for row in one.exchanges]
    longest_s = max(row.tau_wall_s or 0.0 for row in exchanges)
    devices = len({row.device for row in exchanges})
    return (
        f"{len(seen.rounds)} rounds, {len(exchanges)} exchanges of {devices} devices, the longest "
        f"{longest_s:.1f} s"
    )


def odd_times(rows: Iterable[Record], most_s: float) -> list[str]:
    """Return the times that a run of `most_s` seconds cannot have, one line each."""
    found = []
    for row in rows:
        for name in (field.name for field in fields(row)):
            if not name.endswith("_s") or name in FORECASTS:
                continue
            value = getattr(row, name)
            least_s = -most_s if name in SIGNED else 0.0
            if value is not None and not least_s <= value <= most_s:
                found.append(
                    f"{row.TABLE}.{name} must be in {least_s:.0f} .. {most_s:.0f} s, got {value:g}"
                )
    return found


def _rows(rounds: Sequence[RoundRows]) -> list[Record]:
    exchanges = [row for one in rounds for row in one.exchanges]
    return [*(one.round for one in rounds), *exchanges]


def _round_problems(rounds: Sequence[RoundRows]) -> list[str]:
    """Return exchanges that were lost, and rounds that break an invariant."""
    audit = StoreAudit(BETA)
    problems = [line for one in rounds for line in audit.check_next(one)]
    for one in rounds:
        if one.round.status != "done":
            problems.append(f"round {one.round.round}: must be done, got {one.round.status}")
        problems += [
            f"round {row.round}, {row.device}: must be done, got {row.outcome}: {row.reason}"
            for row in one.exchanges
            if row.outcome != "done"
        ]
    expected = JUMP_ROUNDS * (len(JUMPS_S) + 1)
    if len(rounds) < expected:
        problems.append(f"at least {expected} rounds must close, got {len(rounds)}")
    return problems


def _jump_problems(notes: Sequence[CommandRow], most_s: float) -> list[str]:
    """Return whether the wall clock of the run jumped as it was set."""
    found_s = [datetime.fromisoformat(row.wall).timestamp() for row in notes]
    if len(found_s) != len(JUMPS_S):
        return [f"a note must follow each of {len(JUMPS_S)} jumps, got {len(found_s)}"]
    jumps_s = [after - before for before, after in pairwise(found_s)]
    return [
        f"the clock of the run must jump by {jump_s} s, got {moved_s:.0f} s"
        for moved_s, jump_s in zip(jumps_s, JUMPS_S[1:], strict=True)
        if not math.isclose(moved_s, jump_s, abs_tol=most_s)
    ]


def _while_open(seen: Seen) -> list[EventRow]:
    """Return the events until the last round closed: then devices leave."""
    end_s = max((one.round.closed_at_s for one in seen.rounds), default=0.0)
    return [row for row in seen.events if row.at_s < end_s]
