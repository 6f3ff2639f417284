"""Start a live run or a replay from a program, and wait for its end."""

from fairbed.coordinator.store.connection import DATABASE
from fairbed.testbed.api.planning import ReplayPlan
from fairbed.testbed.progress import Bar
from fairbed.testbed.replay.engine.engine import ReplayedRound
from fairbed.testbed.replay.run import replay_setup
from fairbed.testbed.run.notify import notifying
from fairbed.testbed.run_folder import clear, is_untouched


def run_replay(plan: ReplayPlan, bar: Bar, threads: int | None = None) -> int:
    """Replay all rounds of a plan; return the number of rounds that were replayed.

    An interrupt closes the run; one before its first row leaves no file behind.

    Args:
        plan: The replay.
        bar: Counts the rounds; those before a resumed one have no rate.
        threads: Devices trained at the same time; None is one per core.

    Raises:
        Exception: A one-line error of a package: data, profile, store, ...
    """

    def on_round(replayed: ReplayedRound) -> None:
        bar.skip(max(replayed.choice.round - 1 - bar.done, 0))
        bar.advance()

    is_new = is_untouched(plan.folder)
    try:
        with notifying(plan.notify, plan.folder):
            return replay_setup(
                plan.setup,
                plan.folder,
                plan.run_id,
                on_round,
                threads=threads,
                origin=plan.origin,
            )
    finally:
        if is_new and not (plan.folder / DATABASE).exists():
            clear(plan.folder)
