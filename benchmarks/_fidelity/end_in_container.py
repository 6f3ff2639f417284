"""A measuring end inside a container, started like an agent's launcher."""

import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from benchmarks._fidelity.end_process import MODULE, EndError, EndPipe
from fairbed.testbed.backends.containers.cleanup import removed_at_end, sweep
from fairbed.testbed.backends.containers.containers import QUOTA_INSIDE
from fairbed.testbed.backends.containers.engine import LIMITS, ContainerEngine
from fairbed.testbed.backends.helper import end_helper
from fairbed.testbed.backends.sandbox import Sandbox, admit

START_S = 60.0
"""Time limit for podman to start a container."""

POLL_S = 0.02


@asynccontextmanager
async def open_contained_end(
    engine: ContainerEngine, called: str, sandbox: Sandbox, folder: Path
) -> AsyncIterator[tuple[EndPipe, Sandbox]]:
    """Run a measuring end in a container; yield it and its sandbox as seen from inside.

    Args:
        engine: Runs the container.
        called: Name of the container.
        sandbox: Network and control groups of the device.
        folder: Folder that is shared with the container.

    Raises:
        BackendError: podman fails.
    """
    log, found = folder / "device.log", folder / "device.pid"
    command = [
        *engine.command,
        "run",
        "--interactive",
        f"--name={called}",
        f"--pidfile={found}",
        f"--network=ns:{sandbox.network}",
        "--no-hosts",
        "--log-driver=none",
        "--workdir=/",
        *LIMITS,
        *engine.mounts,
        *(f"--env={name}_NUM_THREADS=1" for name in ("OMP", "OPENBLAS", "MKL")),
        f"--volume={folder}:{folder}",
        f"--volume={sandbox.quota_folder}:{QUOTA_INSIDE}",
        *engine.source,
        *(engine.python, "-m", MODULE, "0"),
    ]
    await sweep(engine)
    async with removed_at_end(engine, [called], log):
        with log.open("ab") as stderr:
            process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            pid = await _pid(found, log)
            admit(pid, sandbox)
            end = EndPipe(process, log)
            end.pid = pid
            yield (
                end,
                msgspec.structs.replace(sandbox, procs=(), network=None, quota_folder=QUOTA_INSIDE),
            )
        finally:
            await end_helper(process, signal.SIGKILL)


async def _pid(found: Path, log: Path) -> int:
    """Return the process id of the container's first process on this machine."""
    file = anyio.Path(found)
    with anyio.move_on_after(START_S):
        while True:
            if await file.exists() and (text := (await file.read_text(encoding="utf-8")).strip()):
                return int(text)
            await anyio.sleep(POLL_S)
    raise EndError(f"fidelity: podman must start a container within {START_S:g} s; see {log}")
