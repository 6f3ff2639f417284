"""The view after a past round: equal to the live view of that time."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.tables import CommandRow, PersonalScoreRow
from fairbed.coordinator.tui.reading import ViewReader
from fairbed.coordinator.tui.view import UNKNOWN, RunView
from tests.coordinator.store.fake_run import FakeRun, fake_run
from tests.tiers import examples

DEVICES, GAP_S = 8, 0.5
ACTIONS = ("leave", "mute", "speak", "exclude", "include", "pause", "resume", "personal", "idle")


class EventfulRun(FakeRun):
    """A run whose devices leave and fall silent, and whose operator intervenes."""

    muted: frozenset[int] = frozenset()

    def telemetry(self, row: int, phase: str) -> None:
        """Write a context, unless the device is silent."""
        if row not in self.muted:
            super().telemetry(row, phase)

    def act(self, action: str, row: int) -> None:
        """Let one thing happen between two rounds."""
        self.now_s += GAP_S
        name = self.names[row]
        if action in ("leave", "mute"):
            self.muted |= {row}
        if action == "leave":
            self.event("left", "the device disconnected", device=name)
        elif action == "speak":
            self.muted -= {row}
            self.telemetry(row, "idle")
        elif action in ("exclude", "include", "pause", "resume"):
            device = name if action in ("exclude", "include") else None
            self.store.add(
                CommandRow(
                    id=str(self.now_s),
                    at_s=self.now_s,
                    action=action,
                    device=device,
                    operator="alice",
                )
            )
            if device is None:
                self.store.set_status("paused" if action == "pause" else "running")
        elif action == "personal":
            number = self.round + 1
            score = 1.0 / (number + row)
            self.store.add(
                PersonalScoreRow(round=number, device=name, n=20, accuracy=score, loss=0.5)
            )


Acts = list[tuple[str, int]]
acts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, DEVICES - 1)), max_size=3)


@settings(max_examples=examples(40))
@given(plan=st.lists(acts, min_size=1, max_size=11), seed=st.integers(0, 2**16))
def test_a_past_round_is_shown_as_it_was(plan: list[Acts], seed: int) -> None:
    """The rounds are visited in a random order, while the run goes on and after its end."""
    chance = Random(seed)
    with TemporaryDirectory() as folder:
        run = EventfulRun(Path(folder) / "run", devices=DEVICES, watts=chance.choice([None, 2.0]))
        with closing(run.store), RunReader(run.folder) as reader:
            feed, view, seen = ViewReader(reader), RunView(), dict[int, RunView]()
            for round_acts in plan:
                for action, row in round_acts:
                    run.act(action, row)
                run.now_s += GAP_S
                run.play(1)
                run.store.flush()
                view = feed.refresh(view) or view
                seen[run.round] = view
            run.now_s += GAP_S
            run.begin_round()
            run.store.flush()
            view = feed.refresh(view) or view
            order = [*seen] * 2
            chance.shuffle(order)
            for number in order[: len(seen)]:
                assert_same(feed.at(number, view), seen[number])
            run.close_round()
            run.finish()
            view = feed.refresh(view) or view
            for number in order[len(seen) :]:
                assert_same(feed.at(number, view), seen[number])


def assert_same(past: RunView, live: RunView) -> None:
    """Compare two views field by field; sums of numbers to their rounding."""
    assert past.info is not None
    assert live.info is not None
    assert past.info == live.info
    for field in fields(RunView):
        if field.name not in ("info", "devices", "device_s", "until_round"):
            assert getattr(past, field.name) == getattr(live, field.name), field.name
    assert past.device_s == pytest.approx(live.device_s)
    assert [device.name for device in past.devices] == [device.name for device in live.devices]
    for one, other in zip(past.devices, live.devices, strict=True):
        for name, value in structs.asdict(other).items():
            is_sum = name == "energy_j" and value is not None
            expected: Any = pytest.approx(value) if is_sum else value
            assert getattr(one, name) == expected, (one.name, name)


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[ViewReader]:
    with RunReader(fake_run(tmp_path / "run", rounds=12)) as reader:
        yield ViewReader(reader)


def test_only_closed_rounds_have_a_past(feed: ViewReader) -> None:
    now = feed.refresh(RunView())
    assert now is not None
    for number in (0, 13):
        with pytest.raises(ValueError, match=f"must be from 1 to 12, .*, got {number}"):
            feed.at(number, now)
    with pytest.raises(ValueError, match="must be from 1 to 0"):
        feed.at(1, RunView())


def test_a_device_whose_contexts_are_not_retained_is_unknown(tmp_path: Path) -> None:
    run = FakeRun(tmp_path / "run")
    run.play(6)
    run.store.flush()
    run.store._writer.put("DELETE FROM telemetry WHERE at_s < ?", [(run.now_s,)])
    with RunReader(run.finish()) as reader:
        feed = ViewReader(reader)
        now = feed.refresh(RunView())
        assert now is not None
        assert {device.state for device in feed.at(3, now).devices} == {UNKNOWN}
        assert {device.state for device in feed.at(6, now).devices} == {"idle"}


def test_a_step_reads_the_rounds_between_and_no_others(
    feed: ViewReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = feed.refresh(RunView())
    assert now is not None
    feed.at(6, now)
    asked: list[tuple[int, int | None]] = []
    counts, exchanges = feed.reader.selection_counts, feed.reader.exchanges

    def selection_counts(since: int = 0, until: int | None = None) -> Any:
        asked.append((since, until))
        return counts(since, until)

    def exchanges_of_rounds(since: int = 0, until: int | None = None) -> Any:
        asked.append((since, until))
        return exchanges(since, until)

    monkeypatch.setattr(feed.reader, "selection_counts", selection_counts)
    monkeypatch.setattr(feed.reader, "exchanges", exchanges_of_rounds)
    feed.at(7, now)
    feed.at(5, now)
    assert asked == [(6, 7), (6, 7), (5, 7), (4, 5)]


def test_a_past_view_is_forgotten_when_rows_became_void(feed: ViewReader) -> None:
    now = feed.refresh(RunView())
    assert now is not None
    before = feed.at(6, now)
    resumed = replace(now, cursor=replace(now.cursor, resumes=now.cursor.resumes + 1))
    assert feed.at(6, resumed).devices == before.devices
