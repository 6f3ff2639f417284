"""Arms of one seed: which draws they share, and cohorts that all rules have in common."""

from pathlib import Path

from fairbed.coordinator.store import RunReader
from fairbed.testbed.compare.cell import CellResult
from fairbed.testbed.compare.grid import load_grid
from fairbed.testbed.compare.pool import run_cells_here

GRID = """
seeds = [3]
{cohorts}
[[arm]]
name = "fedavg"
[[arm]]
name = "losses"
set = {{ "aggregation.rule" = "aaggff-d" }}
[[arm]]
name = "ditto"
set = {{ "personalisation.method" = "ditto" }}
[experiment]
name = "draws"
rounds = 40
data = {{ dataset = "digits", partition = {{ kind = "dirichlet", alpha = 0.5 }} }}
model = {{ name = "softmax" }}
training = {{ batch_size = 20, learning_rate = 0.05 }}
selection = {{ policy = "rbcs-f", per_round = 4, beta = 0.1 }}
evaluation = {{ every = 40 }}
[[experiment.fleet]]
profile = "raspberry-pi-4b"
count = 6
link = "lte-driving"
[[experiment.fleet]]
profile = "phone-low"
count = 6
"""


def cohorts_of(folder: Path, cohorts: str) -> dict[str, list[tuple[int, str]]]:
    """Return rounds and devices of the exchanges of each arm."""
    folder.mkdir()
    path, results = folder / "grid.toml", list[CellResult]()
    path.write_text(GRID.format(cohorts=cohorts), encoding="utf-8")
    run_cells_here(load_grid(path), folder / "out", results.append)
    found = {}
    for result in results:
        assert not result.outcome.problem
        with RunReader(folder / "out" / result.folder) as reader:
            found[result.arm] = [(x.round, x.device) for x in reader.exchanges()]
    return found


def test_fixed_cohorts_are_those_of_the_baseline_in_every_arm(tmp_path: Path) -> None:
    """An estimator that learns from times selects by them, and a rule may change the times."""
    own = cohorts_of(tmp_path / "own", "")
    assert own["losses"] != own["fedavg"]
    fixed = cohorts_of(tmp_path / "fixed", 'cohorts = "fixed"')
    assert fixed["fedavg"] == own["fedavg"]
    assert fixed["losses"] == fixed["ditto"] == fixed["fedavg"]
