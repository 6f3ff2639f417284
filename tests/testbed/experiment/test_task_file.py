"""The task in the folder of a run: a resumed run keeps the frozen part of its model."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fairbed.coordinator.task.catalogue import load_task
from fairbed.coordinator.task.errors import TaskError
from fairbed.testbed.experiment.task_file import TASK, check_same_base, read_task, write_task
from fairbed.wire.artifact import Base
from fairbed.wire.tensors import Layout, Tensor

PLAIN = load_task("softmax", (60,), 10)
LAYOUT = Layout(tensors=(Tensor(name="body", shape=(8,), offset=0),))
ONE, OTHER = (replace(PLAIN, base=Base(layout=LAYOUT, sha256=bytes([i]) * 32)) for i in (1, 2))


def test_a_task_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_task(tmp_path) is None
    write_task(tmp_path / "new", ONE)
    assert read_task(tmp_path / "new") == ONE
    (tmp_path / "new" / TASK).write_bytes(b"cut")
    assert read_task(tmp_path / "new") is None


def test_a_resumed_run_must_have_the_frozen_part_that_it_began_with(tmp_path: Path) -> None:
    check_same_base(tmp_path, ONE)  # a run of an older version has no such file
    write_task(tmp_path, ONE)
    check_same_base(tmp_path, replace(ONE, remarks=["another line"]))
    for now, got in ((OTHER, "020202020202"), (PLAIN, "none")):
        with pytest.raises(TaskError) as caught:
            check_same_base(tmp_path, now)
        line = f"must be the one that the run began with (010101010101), got {got}: model.weights"
        assert line in str(caught.value)
