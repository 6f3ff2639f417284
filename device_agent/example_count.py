"""The number of examples in a device's own data, counted in a process of its own.

numpy reads them, which an agent that waits for its first task has no memory for. The process ends
when it has counted, and with the agent: its standard input is a pipe that breaks then.
"""

import os
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import Process

from fairbed.device_agent.errors import DataError, one_line

COUNT_S = 600.0
"""Longest time to read the data, seconds; 2 GB at 10 MB/s take 200."""

BROKEN_RULE = 2
"""Exit status of the process if its output is a message, not a number."""


async def count_examples(own_data: Path) -> int:
    """Return the number of training examples of a device, and check the file.

    Raises:
        DataError: The file cannot be read, or its arrays break a rule.
    """
    if "numpy" in sys.modules:  # that of all emulated devices
        return await anyio.to_thread.run_sync(_count, own_data)
    command = [sys.executable, "-m", __name__, str(own_data)]
    # It finds the modules that the agent finds. From Python 3.11 on a file in the current folder
    # takes the place of one of them only if it does so in the agent.
    paths = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    async with await anyio.open_process(
        command, stdin=subprocess.PIPE, stderr=None, env=environment
    ) as process:
        with anyio.move_on_after(COUNT_S):
            return _counted(own_data, await _output(process), await process.wait())
        process.kill()
    raise DataError(f"{own_data}: must be readable within {COUNT_S:.0f} s; use fewer examples")


async def _output(process: Process) -> str:
    assert process.stdout is not None
    return b"".join([part async for part in process.stdout]).decode()


def _counted(own_data: Path, output: str, status: int) -> int:
    """Return what the process printed.

    Raises:
        DataError: It printed a message, or ended by a signal.
    """
    if status == 0:
        return int(output)
    if status == BROKEN_RULE:
        raise DataError(output)
    end = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
    raise DataError(
        f"{own_data}: must be read by a process of its own, which {end}; "
        "use fewer examples, or free memory"
    )


def _count(own_data: Path) -> int:
    from fairbed.device_agent.examples import OwnData

    return OwnData(own_data).count()


def _end_with_agent() -> None:
    os.read(0, 1)  # returns when the agent has ended
    os._exit(1)


def main(own_data: Path) -> int:
    """Print the number of examples, or what is wrong with the file; return the exit status."""
    threading.Thread(target=_end_with_agent, daemon=True).start()
    status, output = 0, ""
    try:
        output = str(_count(own_data))
    except DataError as exc:
        status, output = BROKEN_RULE, str(exc)
    except (ImportError, MemoryError) as exc:
        status, output = BROKEN_RULE, f"{own_data}: cannot be read, {one_line(exc)}"
    sys.stdout.write(output)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
