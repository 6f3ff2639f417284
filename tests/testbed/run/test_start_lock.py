"""One process starts a run; the others leave its files alone."""

import signal
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunInUseError, RunReader, StoreError
from fairbed.coordinator.store.connection import StartLock
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.run.stopping import StopControl
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.testbed.run_folder import read_endpoint
from tests.coordinator.store.fake_run import make_store
from tests.testbed.small_run import Running, running, wait_until


async def start(folder: Path) -> None:
    """Start a run in this process."""
    experiment = parse_experiment({"name": "x", "fleet": [{"count": 5}]}, "test")
    plan = RunPlan(experiment, folder, folder.name)
    await run_experiment(plan, lambda progress: None, stop=StopControl())


@pytest.mark.anyio
async def test_a_second_start_leaves_the_files_of_the_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "broker-40123").mkdir(parents=True)
    (folder / "endpoint.json").write_text("{}")
    claim = StartLock(folder)
    with pytest.raises(RunInUseError, match="while another starts or runs it"):
        await start(folder)
    claim.release()
    assert {path.name for path in folder.iterdir()} == {"broker-40123", "endpoint.json"}


@pytest.mark.anyio
async def test_a_run_that_was_done_meanwhile_is_not_started(tmp_path: Path) -> None:
    store = make_store(tmp_path / "run")
    store.set_status("done")
    store.close()
    before = {path.name for path in (tmp_path / "run").iterdir()}
    with pytest.raises(StoreError, match="nothing is left to resume"):
        await start(tmp_path / "run")
    after = {path.name for path in (tmp_path / "run").iterdir()}
    assert after == before, "no broker was started"


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.broker
def test_of_three_resumes_at_once_one_runs_and_can_be_stopped(tmp_path: Path) -> None:
    with running(tmp_path, rounds=5_000) as killed:
        killed.wait_round(2)
        killed.process.kill()
        killed.process.wait()
    runs = [Running(tmp_path, 5_000, resume=True) for _ in range(3)]
    try:
        before = killed.rounds()
        wait_until(lambda: killed.rounds() >= before + 3, "three rounds of one of them")
        live = [run for run in runs if run.process.poll() is None]
        while len(live) > 1:
            live = [run for run in live if run.process.poll() is None]
        (one,) = live
        endpoint = read_endpoint(one.folder)
        assert endpoint is not None
        assert f"broker-{endpoint.port}" in {path.name for path in one.folder.iterdir()}
        one.process.send_signal(signal.SIGTERM)
        code, _, err = one.finish()
        assert code == 0, err
        with RunReader(one.folder) as reader:
            assert reader.run().status == "stopped"
        for run in runs:
            if run is not one:
                code, _, err = run.finish()
                assert code in (1, 2)
                assert "another starts or runs it" in err or "this run is live" in err
    finally:
        for run in runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.communicate()
