"""Where a run comes from: commits, versions and hashes, and what happens without git."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fairbed.coordinator.report.html import read_page, report_page
from fairbed.coordinator.report.summary import summarise_run
from fairbed.coordinator.report.summary_table import summary_table
from fairbed.coordinator.store import Provenance, RunReader
from fairbed.testbed import provenance as module
from fairbed.testbed.api.replay import plan_replay
from fairbed.testbed.experiment.data import DataConfig
from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.file import parse_experiment
from fairbed.testbed.experiment.shards import FleetData
from fairbed.testbed.provenance import (
    data_sha256,
    difference,
    packages,
    partition_sha256,
    provenance,
    revision,
)
from fairbed.testbed.replay.run import replay_experiment, replay_setup

AUTHOR = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")


def git(folder: Path, *arguments: str) -> str:
    """Run git as a test author, without the configuration of this machine."""
    environment = {
        **os.environ,
        **{f"GIT_{who}": "a@b.c" for who in AUTHOR},
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=environment, capture_output=True, check=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one commit; its folder `deep/er` has one tracked file."""
    folder = tmp_path / "checkout"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "experiment.toml").write_text('name = "x"\n', encoding="utf-8")
    git(tmp_path, "init", "-q", str(folder))
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "One.")
    return folder


def test_a_revision_is_the_commit_and_whether_tracked_files_differ(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    inside = checkout / "deep" / "er"
    assert revision(inside) == commit
    (checkout / "untracked.txt").write_text("a run, or data", encoding="utf-8")
    assert revision(checkout) == commit
    (inside / "experiment.toml").write_text('name = "y"\n', encoding="utf-8")
    assert revision(checkout) == revision(inside) == f"{commit}-dirty"
    git(checkout, "add", ".")
    assert revision(inside) == f"{commit}-dirty"


def test_reading_a_revision_writes_nothing_and_runs_no_program_of_the_repository(
    checkout: Path, tmp_path: Path
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    git(checkout, "config", "core.fsmonitor", str(hook))
    os.utime(checkout / "deep" / "er" / "experiment.toml", (1.0, 1.0))
    before = (checkout / ".git" / "index").read_bytes()
    assert revision(checkout) is not None
    assert (checkout / ".git" / "index").read_bytes() == before
    assert not (tmp_path / "ran").exists()


def test_the_repository_of_a_hook_is_not_taken_for_that_of_the_experiment(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    assert revision(checkout) == commit


def test_without_a_checkout_a_commit_or_git_the_revision_is_unknown(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert revision(tmp_path) is None
    assert revision(tmp_path / "not" / "there") is None
    git(tmp_path, "init", "-q", "empty")
    assert revision(tmp_path / "empty") is None
    (tmp_path / "damaged" / ".git").mkdir(parents=True)
    assert revision(tmp_path / "damaged") is None
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert revision(loop) is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision(checkout) is None


def test_a_git_that_hangs_is_given_up(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n", encoding="utf-8")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "GIT_TIMEOUT_S", 0.05)
    assert revision(checkout) is None


def test_versions_are_those_that_are_installed_and_nothing_is_imported() -> None:
    code = (
        "import sys, json; from fairbed.testbed.provenance import packages; "
        "print(json.dumps([packages(), 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    found, has_torch = msgspec.json.decode(done.stdout)
    assert found == packages()
    assert found["numpy"] == np.__version__
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"fairbed", "onnxruntime", "msgspec"} < set(found)
    assert not has_torch


def divided(seed: int = 3, *, scale: float = 1.0) -> FleetData:
    """Return twenty examples on two devices."""
    x = scale * np.arange(40, dtype=np.float32).reshape(20, 2)
    dataset = Dataset(
        name="twenty",
        x=x,
        y=np.arange(20) % 2,
        classes=2,
        description="twenty",
        source="this test",
        origin="generated",
    )
    return FleetData(dataset, DataConfig(min_examples=2), devices=2, seed=seed)


def test_hashes_change_with_the_data_and_with_the_partition_alone() -> None:
    one, again, other_rows, other_values = (
        divided(),
        divided(),
        divided(seed=4),
        divided(scale=2.0),
    )
    assert data_sha256(one) == data_sha256(again) == data_sha256(other_rows)
    assert data_sha256(one) != data_sha256(other_values)
    assert partition_sha256(one) == partition_sha256(again) == partition_sha256(other_values)
    assert partition_sha256(one) != partition_sha256(other_rows)


def test_a_hash_is_the_same_on_a_machine_of_the_other_byte_order() -> None:
    one, other = divided(), divided()
    object.__setattr__(other.dataset, "x", one.dataset.x.astype(">f4"))
    assert data_sha256(one) == data_sha256(other)


def test_a_difference_names_what_changed_since_the_start() -> None:
    before = Provenance(
        git_revision="abc", experiment_revision="x", packages={"numpy": "2.0"}, data_sha256="1"
    )
    assert difference(before, before) is None
    now = Provenance(git_revision="abc-dirty", packages={"numpy": "2.1", "torch": "3"})
    assert difference(before, now) == (
        "resumed with a different provenance: git revision abc-dirty (was abc), "
        "data none (was 1), numpy 2.1 (was 2.0), torch 3 (was none)"
    )


def test_a_replay_records_its_provenance_and_warns_when_it_resumes_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {
        "name": "x",
        "rounds": 4,
        "selection": {"policy": "uniform", "per_round": 2},
        "fleet": [{"model": "linear", "theta": [1.0, 1.0, 0.1], "count": 4}],
        "data": {"dataset": "digits"},
        "model": {"name": "softmax"},
    }
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        replay_experiment(parse_experiment(raw, "x"), folder, "run", interrupt, checkpoint_s=0.0)
    with RunReader(folder) as reader:
        summary = summarise_run(reader)
    found = summary.provenance
    assert found.packages == packages()
    assert found.git_revision == revision(module.CHECKOUT)
    assert len(found.data_sha256 or "") == len(found.partition_sha256 or "") == 64
    table = summary_table(summary).splitlines()
    code, data = (next(x for x in table if x.startswith(y)) for y in ("provenance", "data "))
    assert f"python {packages()['python']}, numpy {np.__version__}, onnxruntime " in code
    hashes = found.data_sha256 or "", found.partition_sha256 or ""
    assert data.startswith(f"data       set {hashes[0][:8]}, partition {hashes[1][:8]}")
    assert all(len(line) < 120 for line in (code, data))
    monkeypatch.setattr(module, "packages", lambda: {**packages(), "numpy": "0.1"})
    replay_experiment(parse_experiment(raw, "x"), folder, "run", lambda _: None)
    with RunReader(folder) as reader:
        warnings = [event.text for _, event in reader.events() if event.kind == "provenance"]
        assert summarise_run(reader).provenance == found
    assert warnings == [f"resumed with a different provenance: numpy 0.1 (was {np.__version__})"]


def test_a_replay_without_data_has_no_hash() -> None:
    assert provenance(Path(), None).data_sha256 is None


def interrupt(replayed: object) -> None:
    """End the replay after its first round."""
    raise KeyboardInterrupt


ORIGINS = """
name = "origins"
rounds = 3
[selection]
per_round = 1
beta = 0.2
[[fleet]]
profile = "raspberry-pi-4b"
count = 2
"""


def test_a_run_stores_what_set_each_key_and_its_machine(tmp_path: Path) -> None:
    path = tmp_path / "origins.toml"
    path.write_text(ORIGINS)
    plan = plan_replay(
        path, settings=["rounds=2", "replay.training=false"], seed=9, out=tmp_path / "run"
    )
    replay_setup(
        plan.setup, plan.folder, plan.run_id, lambda _: None, origin=tmp_path, origins=plan.origins
    )
    with RunReader(plan.folder) as reader:
        found = msgspec.json.decode(reader.run().row.provenance, type=Provenance)
        page = report_page([read_page(reader, has_figures=False)])
    assert found.origins == {
        "name": "origins.toml",
        "rounds": "--set",
        "seed": "--seed",
        "selection.per_round": "origins.toml",
        "selection.beta": "origins.toml",
        "fleet.0.profile": "origins.toml",
        "fleet.0.count": "origins.toml",
        "replay.training": "--set",
    }
    assert set(found.machine) == {"processor", "cores", "memory", "system"}
    assert "Settings that are not defaults" in page
    assert found.machine["system"] in page


def test_keys_that_a_program_sets_are_of_the_script(tmp_path: Path) -> None:
    document = {
        "name": "origins",
        "rounds": 3,
        "fleet": [{"profile": "raspberry-pi-4b"}],
        "selection": {"per_round": 1, "beta": 0.2},
        "replay": {"training": False},
    }
    given = plan_replay(document, settings={"selection.beta": 0.3}).origins
    assert given["rounds"] == given["fleet.0.profile"] == "script"
    assert given["selection.beta"] == "--set"
    whole = parse_experiment(document, "here")
    made = plan_replay(whole, settings={"selection.beta": 0.3}).origins
    assert made["rounds"] == made["selection.per_round"] == "script"
    assert made["selection.beta"] == "--set"
    assert "selection.V" not in made
