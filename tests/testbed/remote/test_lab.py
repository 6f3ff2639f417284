"""Viewers and operators of a lab watch a run through its broker; others get one clear line."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fairbed.coordinator.store import RunReader, StoreError
from fairbed.coordinator.store.tables import CommandRow
from fairbed.testbed.broker.permissions import Role, user_of
from fairbed.testbed.errors import RunError
from fairbed.testbed.lab.folder import Lab, LabBroker
from fairbed.testbed.lab.identities import Identities
from fairbed.testbed.lab.service import pid_of_broker
from fairbed.testbed.remote import viewer as viewer_module
from fairbed.testbed.remote.viewer import followed, parse_target
from tests.brokers import PRODUCTION_BROKERS
from tests.testbed.cli.test_command import UNKNOWN
from tests.testbed.lab.labs import FAIRBED, lab_up, make_lab
from tests.testbed.small_run import EXPERIMENT, LIMIT_S, UNTHROTTLED, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ROLES: dict[str, Role] = {"alice": "viewer", "bob": "operator", "pi-9": "device"}


@pytest.fixture(params=PRODUCTION_BROKERS)
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    kind: LabBroker = request.param
    made = make_lab(tmp_path, kind)
    enrol(made, tmp_path)
    with lab_up(made):
        yield made


def enrol(lab: Lab, folder: Path) -> None:
    """Enrol each of `ROLES`, and write the files with their addresses."""
    with Identities(lab.database) as identities:
        for name, role in ROLES.items():
            password = identities.create(name, role)
            url = f"mqtts://{user_of(name, role)}:{password}@127.0.0.1:{lab.settings.port}"
            file = folder / f"{name}.toml"
            file.write_text(f'broker_url = "{url}?cafile={lab.ca}"\n')


def password_in(file: Path) -> str:
    return file.read_text().split(":")[2].split("@")[0]


@contextmanager
def run_in(lab: Lab, folder: Path) -> Iterator[Path]:
    """Run an emulated fleet in a lab for the duration of a block; yield its folder."""
    experiment = folder / "small.toml"
    text = EXPERIMENT.format(rounds=5_000, epochs=1, fleet=UNTHROTTLED)
    experiment.write_text(text.replace('kind = "mosquitto"', 'url = "lab"'))
    with (folder / "run.out").open("wb") as out:
        process = subprocess.Popen(
            [*FAIRBED, "run", str(experiment), "--out", str(folder / "run"), "--headless"],
            env=os.environ | {"FAIRBED_LAB": str(lab.folder)},
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        wait_until(lambda: rounds(folder / "run") >= 2, "round 2")
        yield folder / "run"
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def rounds(folder: Path) -> int:
    try:
        with RunReader(folder) as reader:
            return reader.run().rounds_completed
    except StoreError:
        return 0


def fairbed(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*FAIRBED, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.full
def test_a_viewer_watches_and_an_operator_steers(lab: Lab, tmp_path: Path) -> None:
    alice, bob = tmp_path / "alice.toml", tmp_path / "bob.toml"
    with (
        run_in(lab, tmp_path) as run,
        followed(parse_target(str(alice))) as first,
        followed(parse_target(str(bob))) as second,
    ):
        assert min(rounds(first), rounds(second)) >= 2
        paused = fairbed("command", str(bob), "pause")
        assert paused.returncode == 0, paused.stderr
        pid = pid_of_broker(lab)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: pid_of_broker(lab) not in (pid, None), "another broker")
        noted = fairbed("command", str(bob), "note", "seen from afar")
        assert (noted.returncode, noted.stdout) == (0, "noted\n"), noted.stderr
        for folder in (first, second):
            wait_until(lambda folder=folder: len(commands(folder)) == 2, "the note")  # type: ignore[misc]
        unknown = fairbed("command", str(bob), "kick", "pi-55")
        assert (unknown.returncode, unknown.stderr) == (1, UNKNOWN), "before the question"
        refused = fairbed("command", str(alice), "pause")
        assert refused.returncode == 2
        assert "a command needs the role operator" in refused.stderr
        stopped = fairbed("command", str(bob), "stop", "--yes")
        assert stopped.returncode == 0, stopped.stderr
        for folder in (first, second):
            wait_until(lambda folder=folder: not is_alive(folder), "the end of the run")  # type: ignore[misc]
            with RunReader(folder) as reader:
                assert reader.run().status == "stopped"
                assert reader.run().rounds_completed == rounds(run)
            assert [row.action for row in commands(folder)] == ["pause", "note", "stop"]
            assert {row.operator for row in commands(folder)} == {"bob"}
            data = b"".join(path.read_bytes() for path in folder.iterdir())
            for file in tmp_path.glob("*.toml"):
                if file.name != "small.toml":
                    assert password_in(file).encode() not in data


def commands(folder: Path) -> list[CommandRow]:
    with RunReader(folder) as reader:
        return reader.commands()


def is_alive(folder: Path) -> bool:
    with RunReader(folder) as reader:
        return reader.is_alive()


@pytest.mark.full
def test_a_user_without_the_role_fails_in_one_line(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer_module, "ATTACH_S", 2.0)
    alice, wrong = tmp_path / "alice.toml", tmp_path / "wrong.toml"
    wrong.write_text(alice.read_text().replace(password_in(alice), "wrong"))
    assert "must be live in the tenant main, got none" in refusal(alice)
    with run_in(lab, tmp_path):
        assert "viewer" in refusal(tmp_path / "pi-9.toml")
        assert "check the password" in refusal(wrong)


def refusal(file: Path) -> str:
    """Return the error of a viewer that must see nothing."""
    with pytest.raises(RunError) as found, followed(parse_target(str(file))):
        raise AssertionError("it is shown")
    assert "\n" not in str(found.value)
    assert password_in(file) not in str(found.value)
    return str(found.value)
