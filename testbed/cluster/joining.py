"""Tries to join a Ray cluster, in a process that can be killed.

    python -m fairbed.testbed.cluster.joining ADDRESS

`ray.init` waits for a minute or more where nothing answers, and may end its whole process. This
process prints `ok`, or the error of Ray, and its parent limits its time.
"""

import socket
import subprocess
import sys

from fairbed.testbed.cluster.hosts import difference_in
from fairbed.testbed.errors import ClusterError
from fairbed.testbed.host.guard import guarded

PORT = 6379
"""Port of the head of a Ray cluster, by default."""

CONNECT_S = 3.0
"""Longest wait for the port of the head to accept a connection; seconds."""

JOIN_S = 40.0
"""Longest trial; it takes 2 s, and most of that is the import of ray; seconds."""

OK = "ok"

_BAD_TOKEN = "InvalidAuthToken"
"""In the errors of Ray about a cluster with authentication."""


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ClusterError: It is no address.
    """
    host, separator, port = text.rpartition(":")
    if not separator:
        host, port = text, str(PORT)
    if not host or "/" in text or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ClusterError(
            f"--cluster {text}: must be local, or HOST:PORT of the head of a Ray cluster, which "
            "`ray start --head` prints"
        )
    return host.strip("[]"), int(port)


def check_joinable(address: str) -> None:
    """Check in seconds that this machine can join a cluster.

    Raises:
        ClusterError: It cannot; one line.
    """
    host, port = split_address(address)
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as exc:
        raise ClusterError(
            f"--cluster {address}: a Ray cluster must answer there, got: {exc.strerror or exc}; "
            f"start one with: ray start --head --port={port}"
        ) from exc
    command = guarded([sys.executable, "-m", __spec__.name, f"{host}:{port}"])
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=JOIN_S,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired as exc:
        raise ClusterError(
            f"--cluster {address}: the head of a Ray cluster must answer within {JOIN_S:g} s, got "
            "no answer from what listens there; check the address"
        ) from exc
    if done.stdout.strip().endswith(OK):
        return
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    if _BAD_TOKEN in done.stdout + done.stderr:
        raise ClusterError(
            f"--cluster {address}: this process must have the token of the cluster, got none or "
            "another; copy ~/.ray/auth_token of the head to this user, and set RAY_AUTH_MODE=token"
        )
    problem = difference_in(done.stdout, address)
    if problem is not None:
        raise ClusterError(f"--cluster {address}: {problem}")
    raise ClusterError(
        f"--cluster {address}: this machine must be a node of the cluster, got: "
        f"{lines[0] if lines else f'exit status {done.returncode}'}; join it here with: ray start "
        f"--address={host}:{port}"
    )


def main(address: str) -> int:
    """Join and leave the cluster; print the result."""
    import logging

    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        ray.shutdown()
    except Exception as exc:  # Ray raises many kinds
        sys.stdout.write(f"{type(exc).__name__}: {exc}\n")
        return 1
    sys.stdout.write(f"{OK}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
