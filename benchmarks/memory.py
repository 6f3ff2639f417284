"""Peak memory of agents in training: predicted from two steps, and measured in emulated runs.

    fairbed bench memory [--only NAME] [--tasks FOLDER] [--json]

Each case is a run of one emulated board whose memory a control group limits. `predicted` is what
the run assumes before its first round, `measured` the largest resident memory of the agent. Parts
of 0 examples are chosen from the memory of the board. `above` is without the 46 MiB of an agent
that has imported its modules. The export of a large network takes minutes: `--tasks` keeps them.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import anyio
import msgspec
import psutil

from benchmarks._live_run import save_random_examples
from fairbed import profiles
from fairbed.coordinator.rounds.loop import RoundProgress
from fairbed.coordinator.state.memory import TaskMemory
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.task.catalogue import load_task
from fairbed.device_agent.peak_memory import peak_resident_bytes
from fairbed.testbed.emulation.work import StepCost, WorkCosts
from fairbed.testbed.experiment.file import Experiment, load_experiment
from fairbed.testbed.host.memory import fitting_of, measured_memory
from fairbed.testbed.host.step_work import step_work
from fairbed.testbed.run import supervisor
from fairbed.testbed.run.supervisor import RunPlan, run_experiment
from fairbed.testbed.run_folder import WORK
from fairbed.wire.artifact import Artifact, decode_artifact, encode_artifact

EXPERIMENT = """
name = "memory"
rounds = {rounds}
[data]
source = "{data}"
[model]
name = "{model}"
[training]
batch_size = {batch}
max_steps = 2
{micro_batch}
micro_batch_statistics = true
learning_rate = 1e-6
[selection]
policy = "uniform"
per_round = 1
[evaluation]
every = 0
[round]
deadline_s = 100000
join_timeout_s = 3600
[emulation]
host_core_speed = 1.0
[[fleet]]
name = "board"
profile = "{board}"
link = "gigabit-ethernet"
"""

ROUNDS = 2

FORK_SERVER = "fairbed.testbed.backends.fork_server"

NETS = "benchmarks._memory_nets"


@dataclass(frozen=True, slots=True)
class Case:
    """A network, its examples, and the parts of its mini-batches."""

    model: str
    x_shape: tuple[int, ...]
    batch: int
    micro_batch: int | None = None
    """Not set: a whole mini-batch; 0: as many as the memory of the board allows."""
    board: str = "raspberry-pi-4b"

    @property
    def name(self) -> str:
        """Model and shape."""
        return f"{self.model.rpartition(':')[2]}-{'x'.join(map(str, self.x_shape))}"


CASES = (
    Case("cnn", (1, 28, 28), 64),
    Case("cnn", (1, 28, 28), 512),
    Case(f"{NETS}:transformer", (64, 32), 16),
    Case(f"{NETS}:transformer", (64, 32), 64),
    Case(f"{NETS}:resnet18", (3, 64, 64), 16),
    Case(f"{NETS}:narrow_mobilenet_v2", (3, 96, 96), 16),
    Case(f"{NETS}:mobilenet_v2", (3, 96, 96), 16),
    Case(f"{NETS}:resnet18", (3, 224, 224), 16, 4, "raspberry-pi-3b"),
    Case(f"{NETS}:resnet18", (3, 224, 224), 16, 0, "raspberry-pi-3b"),
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one case, MiB."""

    case: str
    board: str
    batch: int
    part: int
    predicted_mib: float
    measured_mib: float
    above_mib: float

    @property
    def error(self) -> float:
        """Prediction relative to the measurement, less 1."""
        return self.predicted_mib / self.measured_mib - 1.0


IMPORTED_MIB = 46.0


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the table; return 1 if a prediction misses by 20 %."""
    parser = argparse.ArgumentParser(prog="fairbed bench memory", description=__doc__)
    parser.add_argument("--only", help="cases whose name contains this")
    parser.add_argument("--tasks", type=Path, help="folder that keeps the exported tasks")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = []
    if not options.json:
        print("| network | board | B | part | predicted | measured | above the modules | error |")
        print("|---|---|---|---|---|---|---|---|")
    for row in _rows(options.only or "", options.tasks):
        rows.append(row)
        if not options.json:
            print(
                f"| {row.case} | {row.board} | {row.batch} | {row.part} "
                f"| {row.predicted_mib:.0f} MiB | {row.measured_mib:.0f} MiB "
                f"| {row.above_mib:.0f} MiB | {row.error:+.0%} |",
                flush=True,
            )
    if options.json:
        print(msgspec.json.encode(rows).decode())
    return int(any(abs(row.error) > 0.2 for row in rows))


def _rows(only: str, tasks: Path | None) -> Iterator[Row]:
    for case in CASES:
        if only in case.name:
            with tempfile.TemporaryDirectory(prefix="fairbed-bench-") as folder:
                yield _row(case, Path(folder), _task(case, tasks))


def _task(case: Case, tasks: Path | None) -> Artifact:
    file = None if tasks is None else tasks / f"{case.name}.task"
    if file is not None and file.exists():
        return decode_artifact(file.read_bytes())
    artifact = load_task(case.model, case.x_shape, 10, engine="onnx")
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode_artifact(artifact))
    return artifact


def _row(case: Case, folder: Path, artifact: Artifact) -> Row:
    data = folder / "random.npz"
    save_random_examples(data, 4 * case.batch, case.x_shape)
    micro_batch = {None: None, 0: '"auto"'}.get(case.micro_batch, case.micro_batch)
    file = folder / "experiment.toml"
    text = EXPERIMENT.format(
        rounds=ROUNDS,
        data=data,
        model=case.model,
        batch=case.batch,
        micro_batch="" if micro_batch is None else f"micro_batch = {micro_batch}",
        board=case.board,
    )
    file.write_text(text, encoding="utf-8")
    experiment = load_experiment(file)
    hyperparameters, work = experiment.training.hyperparameters(1), step_work(artifact)
    assert work is not None, "steps of a graph are counted"
    memory = measured_memory(encode_artifact(artifact), hyperparameters, work)
    measured, n_k = _run(experiment, folder / "run", artifact, memory)
    fitting = fitting_of(experiment.training, artifact.spec, memory)
    assert fitting is not None, "there is a memory"
    part = fitting.part_size(profiles.load(case.board).memory_bytes, n_k)
    predicted = fitting.memory.peak_bytes(part, n_k * fitting.data_bytes)
    return Row(
        case=case.name,
        board=case.board,
        batch=case.batch,
        part=part,
        predicted_mib=predicted / 2**20,
        measured_mib=measured / 2**20,
        above_mib=measured / 2**20 - IMPORTED_MIB,
    )


def _run(
    experiment: Experiment, folder: Path, artifact: Artifact, memory: TaskMemory
) -> tuple[int, int]:
    """Return the peak memory of the agent of a run, bytes, and its training examples.

    Steps cost nothing in the fleet's time, so that the board takes no longer than this machine.
    """
    peak, free = 0, StepCost(fixed_s=0.0, per_example_s=0.0)
    folder.mkdir()
    costs = WorkCosts(train=free, evaluate=free, memory=memory)
    (folder / WORK).write_bytes(msgspec.json.encode(costs))

    def after_round(progress: RoundProgress) -> None:
        nonlocal peak
        peak = max(peak, *(peak_resident_bytes(str(pid)) for pid in _agents()))

    plan = RunPlan(experiment, folder, "memory")
    # The export of a large network takes minutes, so the run takes the one that was measured.
    with patch.object(supervisor, "task_of", return_value=artifact):
        end = anyio.run(run_experiment, plan, after_round)
    if end != "done":
        raise SystemExit(f"the run must be done, got {end}")
    with RunReader(folder) as reader:
        [device] = reader.devices()
    return peak, device.n_k


def _agents() -> list[int]:
    """Return the processes of agents that this process has started."""
    here = os.getpid()
    return [
        child.pid
        for child in psutil.Process(here).children(recursive=True)
        if FORK_SERVER in " ".join(child.cmdline()) and child.ppid() != here
    ]
