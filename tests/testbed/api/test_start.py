"""Runs and replays from a program: results, progress, interrupts and what they leave behind."""

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import fairbed
from fairbed import RunError, UsageError
from fairbed.coordinator.policy.plugins import LOCAL_RULE, SELECTOR
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.wire import plugins
from tests.processes import own_children

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 3,
    "model": {"name": "softmax"},
    "data": {"max_examples": 200},
    "selection": {"per_round": 2, "beta": 0.3},
    "fleet": [{"name": "pi", "profile": "raspberry-pi-4b", "count": 3}],
    "emulation": {"backend": "process"},
}

Start = Callable[..., fairbed.Run]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, and no registered part."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    plugins._registered.clear()


def interrupt_at(round_: int, numbers: list[int]) -> Callable[[int, int], None]:
    """Return a progress function that sends SIGINT from another thread after a round."""

    def report(done: int, total: int) -> None:
        numbers.append(done)
        if done == round_:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    return report


def test_a_replay_returns_its_run() -> None:
    calls: list[tuple[int, int]] = []
    done = fairbed.replay(
        SMALL, set={"selection.policy": "uniform"}, seed=4, progress=lambda *n: calls.append(n)
    )
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert done.status == "done"
    assert (done.experiment.selection.policy, done.experiment.seed) == ("uniform", 4)
    assert done.summary.rounds_completed == len(done.table("round")) == 3
    assert fairbed.runs() == [done] == [fairbed.Run.open()]
    assert done.folder.parent == Path("runs")
    assert "small" not in SMALL["selection"], "the document of the caller must not change"


def test_a_document_a_file_and_an_experiment_are_the_same_run(folder: Path) -> None:
    experiment = parse_experiment(msgspec.json.decode(msgspec.json.encode(SMALL)), "small")
    path = folder / "small.toml"
    path.write_text(experiment.resolved_toml(), encoding="utf-8")
    given: list[Any] = [SMALL, path, str(path), experiment, {**SMALL, "data": {"max_examples": 9}}]
    hashes = [
        fairbed.replay(
            one, set={"rounds": 1, "data.max_examples": 100}, out=f"out-{n}"
        ).experiment.hash()
        for n, one in enumerate(given)
    ]
    assert len(set(hashes)) == 1


@pytest.mark.broker
def test_a_live_run_works_where_an_event_loop_runs() -> None:
    """As in a cell of a notebook."""
    rounds: list[int] = []

    async def cell() -> fairbed.Run:
        return fairbed.run(SMALL, out="live", progress=lambda done, total: rounds.append(done))

    done = anyio.run(cell)
    assert (done.folder, done.status, rounds) == (Path("live"), "done", [1, 2, 3])
    assert done.summary.accuracy.mean is not None


def test_an_error_of_the_experiment_does_not_wait_for_a_cluster() -> None:
    with pytest.raises(UsageError, match=r"^missing\.toml: there is no such file"):
        fairbed.run("missing.toml", cluster="127.0.0.1:9")


@pytest.mark.full
def test_a_cluster_that_cannot_be_joined_is_one_line() -> None:
    pytest.importorskip("ray")
    with pytest.raises(RunError, match=r"^cluster a/b: must be local, or HOST:PORT of the head"):
        fairbed.run(SMALL, cluster="a/b")
    assert not fairbed.runs()


@pytest.mark.broker
@pytest.mark.full
def test_an_interrupt_closes_a_live_run_that_can_be_resumed() -> None:
    rounds: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        fairbed.run(SMALL, set={"rounds": 400}, out="live", progress=interrupt_at(2, rounds))
    stopped = fairbed.Run.open("live")
    assert stopped.status == "stopped"
    assert not own_children()
    before = stopped.summary.rounds_completed
    assert 2 <= before < 400
    with pytest.raises(KeyboardInterrupt):
        fairbed.run("live", progress=interrupt_at(before + 1, []))
    assert stopped.summary.rounds_completed > before


@pytest.mark.broker
@pytest.mark.full
def test_an_error_of_the_progress_function_ends_the_run() -> None:
    def report(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fairbed.run(SMALL, set={"rounds": 400}, out="live", progress=report)
    assert fairbed.Run.open("live").status == "stopped"
    assert not own_children()


def test_an_interrupt_closes_a_replay_that_resumes_with_the_same_rounds() -> None:
    whole = fairbed.replay(SMALL, set={"rounds": 50}, out="whole", progress=False)
    with pytest.raises(KeyboardInterrupt):
        fairbed.replay(
            SMALL,
            set={"rounds": 50},
            out="cut",
            progress=lambda done, total: signal.raise_signal(signal.SIGINT) if done == 7 else None,
        )
    cut = fairbed.Run.open("cut")
    assert cut.status == "stopped"
    resumed: list[int] = []
    fairbed.replay("cut", progress=lambda done, total: resumed.append(done))
    assert resumed[-1] == 50
    assert 0 < len(resumed) < 50
    for column in ("duration_s", "queue_total"):
        expected = whole.table("round").column(column)
        assert cut.table("round").column(column).tolist() == expected.tolist()


def test_a_part_that_raises_is_one_line_and_leaves_nothing(folder: Path) -> None:
    @fairbed.register("selector", "broken")
    def broken() -> object:
        raise ZeroDivisionError("no\nluck")

    starts: list[Start] = [fairbed.replay, fairbed.run]
    for start in starts:
        with pytest.raises(UsageError) as caught:
            start(SMALL, set={"selection.policy": "broken"}, out="out")
        line = broken.__code__.co_firstlineno + 2
        assert str(caught.value) == (
            "selector broken: must be made from selection.options {}, got ZeroDivisionError: "
            f"no luck ({__file__}, line {line}); correct the options"
        )
        assert list(folder.iterdir()) == []


def test_a_registered_selector_selects() -> None:
    from examples.longest_waiting import LongestWaiting

    fairbed.register("selector", "mine", LongestWaiting)
    done = fairbed.replay(SMALL, set={"selection.policy": "mine"}, progress=False)
    assert done.experiment.selection.policy == "mine"
    assert done.summary.fairness.jain is not None


def test_a_local_rule_that_raises_leaves_no_process(folder: Path) -> None:
    """It is also made after the processes that train were started."""
    from examples.scaffold import Scaffold

    def broken() -> object:
        if own_children():
            raise ZeroDivisionError
        return Scaffold()

    fairbed.register("local-rule", "broken", broken)
    with (
        pytest.warns(UserWarning, match="without the local rule broken"),
        pytest.raises(RunError, match="local rule broken: must be made") as caught,
    ):
        fairbed.replay(
            SMALL,
            set={
                "training.rule": "broken",
                "data.max_examples": None,
                "data.min_examples": 5,
                "selection.beta": 0.0,
                "fleet.0.count": 300,
                "replay.costs_from": "shipped",
            },
            threads=2,
            out="out",
        )
    assert not own_children(), "of the frames that the error still holds"
    assert "ZeroDivisionError" in str(caught.value)
    assert list(folder.iterdir()) == []


def test_a_registered_local_rule_replays_and_is_refused_in_a_live_run() -> None:
    from examples.scaffold import Scaffold

    fairbed.register("local-rule", "mine", Scaffold)
    settings = {"training.rule": "mine", "replay.costs_from": "shipped"}
    with pytest.warns(UserWarning, match='the costs "shipped" are without the local rule mine'):
        assert fairbed.replay(SMALL, set=settings, progress=False).status == "done"
    with pytest.raises(UsageError, match=r'registered; put it into a module .* "module:Name"$'):
        fairbed.run(SMALL, set=settings, out="live")
    assert not Path("live").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fairbed.replay("nowhere"), "nowhere: there is no such experiment file or run"),
        (lambda: fairbed.replay({"name": "x", "roundz": 3}), "experiment: roundz: unknown key"),
        (
            lambda: fairbed.replay(SMALL, set={"selection.V": object()}),
            "selection.V: must be numbers, texts, lists and tables as in an experiment file, got "
            "object",
        ),
        (lambda: fairbed.replay(SMALL, set={"": 1}), "must be a key such as selection.V, got ''"),
        (lambda: fairbed.replay(SMALL, threads=0), "threads: must be from 1 to 1,000, got 0"),
        (lambda: fairbed.replay(SMALL, out="taken"), "out taken: must be a new or empty folder"),
        (lambda: fairbed.run(SMALL, set={"selection.policy": "fedcs-oracle"}), "must not need tr"),
        (lambda: fairbed.Run.open("nowhere"), "runs: must name a run, got 'nowhere'"),
    ],
)
def test_wrong_arguments_are_one_line(call: Callable[[], object], message: str) -> None:
    Path("taken").mkdir()
    Path("taken", "thesis.tex").touch()
    with pytest.raises(UsageError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--" not in str(caught.value)


def test_a_deleted_run_and_one_of_another_format_are_one_line() -> None:
    done = fairbed.replay(SMALL, progress=False)
    with pytest.raises(UsageError, match=r"table: must be one of .*round.*, got 'rounds'"):
        done.table("rounds")
    (done.folder / "run.db").write_bytes(b"")
    with pytest.raises(RunError) as caught:
        _ = done.summary
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match=str(done.folder)):
        assert fairbed.runs() == []
    shutil.rmtree(done.folder)
    with pytest.raises(UsageError, match=r"must be the folder of a run, got one without run\.db"):
        done.table("round")
    assert repr(done) == f"Run.open({str(done.folder)!r})"


def test_a_run_shows_itself_in_a_notebook() -> None:
    done = fairbed.replay(SMALL, set={"name": "small", "rounds": 2}, progress=False)
    accuracy = done.summary.accuracy.mean
    assert done._repr_html_() == (
        f"<b>{done.id}</b>: done, 2 of 2 rounds, 3 devices, accuracy {accuracy:.3f}"
        f"<br><code>{done.folder}</code>"
    )


def test_names_that_are_built_in_or_unknown_cannot_be_registered() -> None:
    with pytest.raises(UsageError, match="register: 'uniform' is a built-in selector; choose"):
        fairbed.register("selector", "uniform", dict)
    with pytest.raises(UsageError, match=r"register: the kind must be one of .*, got 'policy'"):
        fairbed.register("policy", "mine", dict)  # type: ignore[call-overload]  # what a user does
    with pytest.raises(UsageError, match="register: the name must be letters"):
        fairbed.register("selector", "a:b")(dict)
    assert not plugins.registered(SELECTOR.group)
    assert not plugins.registered(LOCAL_RULE.group)
