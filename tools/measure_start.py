"""Processor time of a start by phase: python tools/measure_start.py [--agents 20] [--turns 5].

`fairbed run` starts the experiment of `fairbed bench round-time`. Each of its processes notes its
processor time where a phase begins, and the time that its imports take; the phases are without it.
At the end of the first round the processor times of all processes are read. Modules are compiled
first. `--tree DIR` measures another checkout, also that of 4e2efb5, whose names differ.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks._live_run import ALL_STEPS, EXPERIMENT, save_random_examples  # noqa: E402
from benchmarks._meter import cpu_s  # noqa: E402

EXAMPLES = 400
"""Per device, as in `fairbed bench round-time`."""
KINDS = ("coordinator", "fork server", "an agent")

Phases = tuple[tuple[str, str], ...]
"""Function at whose first call a phase begins, `module:name`, and the name of the phase."""
BEFORE = {
    "coordinator": "command line, plan",
    "fork server": "look at the machine",
    "an agent": "fork",
}
"""Name of what precedes them."""

PHASES: Phases = (
    ("fairbed.testbed.run.supervisor:run_experiment", "data, task, broker"),
    ("fairbed.testbed.backends.process:ProcessBackend.start", "wait for agents, store"),
    ("fairbed.coordinator.server.service:Coordinator.run", "joining, preparing"),
    ("fairbed.coordinator.rounds.loop:TrainingLoop.run_round", "first round"),
    ("fairbed.testbed.backends.launcher:launch", "start"),
    ("fairbed.device_agent.agent:Agent.run", "joining"),
    ("fairbed.device_agent.worker:TrainingThread.prepare", "preparing"),
    ("fairbed.device_agent.worker:TrainingThread.compute", "first round"),
)
PHASES_OF_4E2EFB5: Phases = (
    ("testbed.run:run_experiment", "data, task, broker"),
    ("testbed.backends.process:ProcessBackend.start", "wait for agents, store"),
    ("coordinator.service:Coordinator.run", "joining, preparing"),
    ("coordinator.campaign:Campaign._play", "first round"),
    ("testbed.launcher:launch", "start"),
    ("device_agent.agent:Agent.run", "joining"),
    ("device_agent.worker:Worker.prepare", "preparing"),
    ("device_agent.worker:Worker.compute", "first round"),
)

HOOK = """
import functools, importlib.machinery, os, sys, threading, time
import _frozen_importlib as frozen

PHASES = dict(line.split("=") for line in os.environ["START_PHASES"].splitlines())
IMPORTS, PLACE, SEEN = [0], threading.local(), set()
import_module = frozen._find_and_load

def note(phase):
    cpu, file = time.process_time_ns(), f"{os.environ['START_FOLDER']}/{os.getpid()}"
    with open(file, "a") as out:
        out.write(f"{phase}={cpu}={IMPORTS[0]}\\n")

def counted(name, function):
    if getattr(PLACE, "is_inside", False):
        return import_module(name, function)
    PLACE.is_inside, began = True, time.thread_time_ns()
    try:
        return import_module(name, function)
    finally:
        PLACE.is_inside = False
        IMPORTS[0] += time.thread_time_ns() - began

def noted(place, phase):
    def decorate(function):
        @functools.wraps(function)
        def wrapped(*arguments, **options):
            if place not in SEEN:
                SEEN.add(place)
                note(phase)
            return function(*arguments, **options)
        return wrapped
    return decorate

class Finder:
    def find_spec(self, name, path=None, target=None):
        places = [place for place in PHASES if place.startswith(f"{name}:")]
        spec = importlib.machinery.PathFinder.find_spec(name, path) if places else None
        if spec is not None:
            execute = spec.loader.exec_module
            def run(module):
                execute(module)
                for place in places:
                    *owners, last = place.partition(":")[2].split(".")
                    owner = functools.reduce(getattr, owners, module)
                    setattr(owner, last, noted(place, PHASES[place])(getattr(owner, last)))
            spec.loader.exec_module = run
        return spec

def forking():
    if "forks" not in SEEN:
        SEEN.add("forks")
        note("forks")

def forked():
    IMPORTS[0] = 0
    note("fork")

if os.environ.get("START_FOLDER"):
    note("interpreter")
    frozen._find_and_load = counted
    sys.meta_path.insert(0, Finder())
    os.register_at_fork(before=forking, after_in_child=forked)
"""
"""`sitecustomize.py` of the processes of a run."""

Columns = dict[tuple[str, str], float]
"""Processor time by kind of process and phase, ms."""


def measure(tree: Path, agents: int) -> Columns:
    """Return the processor times of one start in a checkout.

    Raises:
        SystemExit: The run failed.
    """
    is_old = not (tree / "fairbed").is_dir()
    phases = PHASES_OF_4E2EFB5 if is_old else PHASES
    with tempfile.TemporaryDirectory(prefix="fairbed-start-") as name:
        folder = Path(name)
        save_random_examples(folder / "random.npz", EXAMPLES * agents)
        values = {
            "rounds": 2,  # the model is evaluated after the last one
            "data_key": "dataset" if is_old else "source",
            "data": folder / "random.npz",
            "model": "mlp",
            "engine": "auto",
            "batch_size": 32,
            "max_steps": ALL_STEPS,
            "agents": agents,
            "evaluate_every": 0,
            "broker_url": "embedded",
            "broker": "auto",
            "client": "direct",
        }
        text = EXPERIMENT.format(**values)
        if is_old:
            text = text.replace('engine = "auto"\n', "").replace('url = "embedded"\n', "")
        (folder / "experiment.toml").write_text(text, encoding="utf-8")
        (folder / "hook").mkdir()
        (folder / "notes").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
        module = "testbed.cli" if is_old else "fairbed.testbed.cli.main"
        command = [sys.executable, "-m", module, "run", str(folder / "experiment.toml")]
        command += ["--headless", "--json", "--out", str(folder / "run")]
        command += ["--set", f"round.min_devices={agents}"]
        environ = {
            **{k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
            "PYTHONPATH": os.pathsep.join([str(folder / "hook"), str(tree)]),
            "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "fairbed-start-compiled"),
            "START_FOLDER": str(folder / "notes"),
            "START_PHASES": "\n".join(f"{place}={phase}" for place, phase in phases),
        }
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environ, cwd=tree
        ) as process:
            assert process.stderr is not None
            lines = list[bytes]()
            for line in process.stderr:
                lines.append(line)
                if line.startswith(b"round 1/"):
                    break
            total = _processor_times(process.pid)
            process.communicate()
        if not total or process.returncode:
            raise SystemExit(f"the run failed: {b''.join(lines).decode(errors='replace')}")
        return _columns(folder / "notes", total, process.pid)


def _processor_times(pid: int) -> dict[int, float]:
    """Return the processor time of a process and its descendants by id, ms."""
    found = dict[int, float]()
    with suppress(psutil.NoSuchProcess):
        for one in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            found[one.pid] = 1e3 * cpu_s(one.pid)
    return found


def _columns(notes: Path, total: dict[int, float], coordinator: int) -> Columns:
    """Return the phases of each kind of process; of the agents their mean."""
    found = defaultdict[tuple[str, str], list[float]](list)
    for pid, ms in total.items():
        file = notes / str(pid)
        if not file.exists():
            found["broker", "all"].append(ms)
            continue
        kind = "coordinator" if pid == coordinator else "fork server"
        rows = [line.split("=") for line in file.read_text(encoding="utf-8").splitlines()]
        if rows[0][0] == "fork":
            kind = "an agent"
        marks = [(phase, int(cpu) / 1e6, int(imports) / 1e6) for phase, cpu, imports in rows]
        after = [*marks[1:], ("", ms, marks[-1][2])]
        names = [BEFORE[kind], *(phase for phase, _, _ in marks[1:])]
        if kind != "an agent":
            found[kind, "interpreter"].append(marks[0][1])
        found[kind, "imports"].append(marks[-1][2])
        for name, (one, other) in zip(names, pairwise([marks[0], *after]), strict=True):
            found[kind, name].append(other[1] - one[1] - (other[2] - one[2]))
        found[kind, "all"].append(ms)
    return {place: sum(values) / len(values) for place, values in found.items()}


def main() -> int:
    """Print the medians; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5, help="starts of each tree, in turns")
    parser.add_argument("--tree", type=Path, action="append", help="checkout; default: this one")
    options = parser.parse_args()
    trees = options.tree or [ROOT]
    turns: dict[Path, list[Columns]] = {tree: [] for tree in trees}
    for turn in range(options.turns + 1):  # the first one compiles
        for tree in trees if turn % 2 else trees[::-1]:
            one = measure(tree.resolve(), options.agents)
            if turn:
                turns[tree].append(one)
    places = list(dict.fromkeys(place for runs in turns.values() for run in runs for place in run))
    print(f"{'processor, ms':<40}" + "".join(f"{tree.name:>12}" for tree in trees))
    for kind in (*KINDS, "broker"):
        for place in (place for place in places if place[0] == kind):
            row = [median(run.get(place, 0.0) for run in turns[tree]) for tree in trees]
            print(f"{kind:<14}{place[1]:<26}" + "".join(f"{value:12.1f}" for value in row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
