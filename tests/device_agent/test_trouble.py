"""A device reports why it cannot prepare, typed and short."""

import errno
import os
import re
from pathlib import Path

import pytest

from fairbed.device_agent.cache import BlobCache
from fairbed.device_agent.errors import DataError, EngineError, NotPrepared
from fairbed.device_agent.joining import trouble_of
from fairbed.wire.errors import DecodeError
from fairbed.wire.messages import MAX_TEXT, Trouble, TroubleKind
from fairbed.wire.shard import encode_shard
from tests.device_agent.conftest import AgentSetup
from tests.device_agent.softmax import examples, softmax_task

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (FULL, "disk full"),
        (PermissionError(errno.EACCES, "no"), "not prepared"),
        (MemoryError(), "no memory"),
        (DataError("x has 9 columns"), "bad data"),
        (EngineError("no onnxruntime"), "no engine"),
        (ImportError("numpy"), "no engine"),
        (DecodeError("a hash"), "not prepared"),
        (None, "not prepared"),
    ],
)
def test_the_kind_is_that_of_the_first_cause(
    cause: Exception | None, kind: TroubleKind, tmp_path: Path
) -> None:
    problem = NotPrepared("it failed " + "x" * 2 * MAX_TEXT)
    problem.__cause__ = None if cause is None else ValueError("between")
    if problem.__cause__ is not None:
        problem.__cause__.__cause__ = cause
    found = trouble_of(problem, 7, tmp_path)
    assert (found.kind, found.boot) == (kind, 7)
    assert len(found.reason) <= MAX_TEXT
    if kind == "disk full":
        assert found.path == str(tmp_path)
        assert found.free_bytes is not None
        assert found.text == f"disk full: {tmp_path} has {found.free_bytes:,} bytes free"
    else:
        assert len(found.text) <= len(kind) + 92


@pytest.mark.anyio
@pytest.mark.idle_time_skipped
async def test_a_full_disk_reaches_the_coordinator_and_ends_with_the_space(
    setup: AgentSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = BlobCache.put

    def full(*_: object) -> None:
        raise FULL

    monkeypatch.setattr(BlobCache, "put", full)
    task, shard = softmax_task(), encode_shard(examples(40))
    async with setup.running() as (_, coordinator):
        await coordinator.welcome(task, shard)
        trouble = await coordinator.expect(Trouble)
        assert trouble.kind == "disk full"
        assert trouble.path.endswith("cache")
        assert re.fullmatch(
            rf"task: the disk of {re.escape(trouble.path)} must have [\d,]+ bytes free, "
            r"got [\d,]+; free some, or set cache_folder \(--cache\) to a folder on another disk",
            trouble.reason,
        )
        monkeypatch.setattr(BlobCache, "put", put)
        assert (await coordinator.join(task, shard)).is_ready
