"""Apps that break a rule, fail, hang or exit: one line, and no process stays."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.device_agent.clients.child.flower import node_id
from fairbed.device_agent.clients.child.frames import Closed
from fairbed.device_agent.clients.process import WATCHING
from fairbed.wire.records import Record, encode_records
from tests.testbed.flower import app_run
from tests.testbed.flower.app_run import LIMIT_S, AppRun, Clients
from tests.testbed.flower.small_apps import CLIENT, write_app

FEDAVG = "strategy.FedAvg({settings}).start(grid, arrays, num_rounds=2)"


def two(number: int, nodes: list[int]) -> list[int]:
    """Return a cohort of two."""
    return nodes[1:3]


def test_a_cohort_of_ours_is_all_that_the_strategy_sees(flower_python: str, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", main=FEDAVG.format(settings=""))
    run = AppRun(flower_python, app, "small", devices=4, policy="ours", choose=two)()
    assert run.events[-1]["is"] == "done", run.events[-1]
    assert [each["round"] for each in run.of("cohort")] == [1, 2]
    nodes = list(run.nodes)
    for push in run.of("push"):
        found = sorted(each["node"] for each in push["messages"])
        assert found == sorted(two(1, nodes) if push["type"] == "train" else nodes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("fraction_train=0.5, min_train_nodes=1", "set fraction-train = 1.0"),
        ("min_available_nodes=4", "set min-train-nodes and min-available-nodes to at most 2"),
    ],
)
def test_a_strategy_that_voids_the_guarantee_is_stopped(
    flower_python: str, tmp_path: Path, settings: str, says: str
) -> None:
    app = write_app(tmp_path / "app", main=FEDAVG.format(settings=settings))
    run = AppRun(flower_python, app, "small", devices=4, policy="ours", choose=two)()
    assert says in run.error
    assert "\n" not in run.error
    assert not run.of("push")


def test_polling_without_a_message_ends_the_run(flower_python: str, tmp_path: Path) -> None:
    body = """
    class Waits(strategy.FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            self.min_train_nodes = self.min_available_nodes = 0
            try:
                while len(list(grid.get_node_ids())) < 3:
                    pass
            except Exception:
                pass
            return []
    """
    main = "Waits(min_available_nodes=2).start(grid, arrays)"
    app = write_app(tmp_path / "app", body=body, main=main)
    run = AppRun(flower_python, app, "small", policy="ours", choose=two, poll_s=0.3)()
    assert "min-available-nodes" in run.error
    assert run.of("waits")[0]["offered"] == 2


def test_messages_outside_a_strategy_need_the_policy_of_the_app(
    flower_python: str, tmp_path: Path
) -> None:
    main = """
    node = list(grid.get_node_ids())[0]
    grid.send_and_receive([Message(RecordDict({"arrays": arrays}), node, "train")])
    """
    app = write_app(tmp_path / "app", main=main)
    run = AppRun(flower_python, app, "small", policy="ours")()
    assert 'policy = "app"' in run.error


def test_an_app_waits_for_devices_and_says_so(flower_python: str, tmp_path: Path) -> None:
    late = 77
    main = """
    while len(list(grid.get_node_ids())) < 4:
        pass
    print("nodes", sorted(grid.get_node_ids())[0])
    """

    def more(run: AppRun, header: dict[str, Any], parts: Any) -> None:
        if header["is"] == "waits":
            run.send({"do": "nodes", "nodes": [*run.nodes, late]})

    app = write_app(tmp_path / "app", main=main)
    run = AppRun(flower_python, app, "small", on_event=more)()
    assert run.events[-1]["is"] == "done", run.events[-1]
    assert run.of("waits")[0]["offered"] == 3
    assert f"nodes {late}" in run.output


def test_what_has_no_reply_ends_at_the_timeout_or_its_ttl(
    flower_python: str, tmp_path: Path
) -> None:
    main = """
    nodes = list(grid.get_node_ids())
    def sent(ttl):
        return [Message(RecordDict({"arrays": arrays}), node, "train", ttl=ttl) for node in nodes]
    found = grid.send_and_receive(sent(600.0)[::2])
    print("replies", len(found))
    found = grid.send_and_receive(sent(600.0), timeout=0.4)
    print("in time at most 2", len(found) <= 2)
    found = grid.send_and_receive(sent(0.4))
    print("errors", [reply.error.code for reply in found if reply.has_error()])
    """
    app = write_app(tmp_path / "app", main=main)
    run = AppRun(flower_python, app, "small")
    run.silent = {node_id("pi-1")}
    run()
    assert "replies 2" in run.output
    assert "in time at most 2 True" in run.output
    errors = run.output.partition("errors ")[2].splitlines()[0]
    assert set(errors.strip("[]").split(", ")) == {"3"}
    silent = [m["id"] for e in run.of("push") for m in e["messages"] if m["node"] in run.silent]
    ended = {each for event in run.of("ended") for each in event["ids"]}
    assert len(silent) == 2
    assert set(silent) <= ended


def test_a_client_that_raises_is_an_error_for_the_strategy(
    flower_python: str, tmp_path: Path
) -> None:
    client = CLIENT.replace(
        "    number =",
        "    if context.node_config['partition-id'] == 1: raise ValueError('no\\nlabels')\n"
        "    if context.node_config['partition-id'] == 2:\n"
        "        from flwr.app import Error\n"
        "        return Message(Error(6, 'too few'), reply_to=message)\n"
        "    number =",
    )
    app = write_app(tmp_path / "app", main=FEDAVG.format(settings=""), client=client)
    run = AppRun(flower_python, app, "small")()
    assert run.events[-1]["is"] == "done", run.events[-1]
    failed = [answer for _, answer in run.replies if answer["is"] == "failed"]
    failed.sort(key=lambda answer: str(answer["error"]))
    assert failed[0]["error"].endswith("ValueError: no labels")
    assert failed[0]["trace"][-2:] == ["ValueError: no", "labels"]
    assert "returned the error 6: too few" in failed[-1]["error"]
    assert "Received error in reply from node" in run.output
    assert [each["metrics"]["number"] for each in run.of("aggregated")] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("main", "says"),
    [
        ("raise KeyError('lr')", "KeyError: 'lr'"),
        ("import sys; sys.exit(3)", "the ServerApp must return, got sys.exit(3)"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_a_server_app_that_fails_says_why(
    flower_python: str, tmp_path: Path, main: str, says: str
) -> None:
    app = write_app(tmp_path / "app", main=main)
    run = AppRun(flower_python, app, "small")()
    assert run.error == says
    assert any("small/server_app.py" in line for line in run.of("failed")[0]["trace"])


def test_a_strategy_that_raises_in_a_round_ends_the_run(flower_python: str, tmp_path: Path) -> None:
    body = """
    class Bad(strategy.FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise RuntimeError("round 2")
            return super().aggregate_train(server_round, replies)
    """
    app = write_app(tmp_path / "app", body=body, main="Bad().start(grid, arrays)")
    run = AppRun(flower_python, app, "small")()
    assert run.error == "RuntimeError: round 2"
    assert [each["round"] for each in run.of("aggregated")] == [1]


def test_a_process_that_exits_closes_its_connection(flower_python: str, tmp_path: Path) -> None:
    app = write_app(tmp_path / "app", main="import os; os._exit(4)")
    run = AppRun(flower_python, app, "small")
    with pytest.raises(Closed):
        run()
    assert run.process.returncode == 4


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("small.server_app:nothing", "got no nothing in small.server_app"),
        ("small.server_app:np", "must be a ServerApp, got module"),
        ("small.other:app", "small.other must be a module in"),
    ],
)
def test_a_wrong_component_is_named(
    flower_python: str, tmp_path: Path, server: str, says: str
) -> None:
    app = write_app(tmp_path / "app")
    assert says in AppRun(flower_python, app, "small", server=server)().error


HANGS = """
print("hangs", flush=True)
import time
while True:
    try:
        time.sleep(1000)
    except BaseException:
        pass
"""


def test_the_process_ends_with_its_connection_and_its_parent(
    flower_python: str, tmp_path: Path
) -> None:
    app = write_app(tmp_path / "app", main=HANGS)

    def close(run: AppRun, header: dict[str, Any], parts: Any) -> None:
        if header["is"] == "loaded":
            run.link.shutdown(socket.SHUT_RDWR)

    run = AppRun(flower_python, app, "small", on_event=close)
    with pytest.raises((Closed, OSError)):
        run()
    assert run.process.wait(LIMIT_S) is not None

    starter = (
        "import os, socket, subprocess, sys\n"
        "ours, its = socket.socketpair()\n"
        "child = subprocess.Popen([*sys.argv[1:], str(its.fileno())],"
        " stdin=subprocess.PIPE, pass_fds=[its.fileno(), ours.fileno()])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", starter, flower_python, str(WATCHING), "", str(app_run.SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        ended = os.pidfd_open(child)
        waits = threading.Thread(target=os.read, args=(parent.stdout.fileno(), 1))
        waits.start()
        os.kill(parent.pid, signal.SIGKILL)
        waits.join(LIMIT_S)  # the child had the pipe, too, and has ended
        assert not waits.is_alive()
        os.close(ended)


# The client of a device.

LAYOUT = [["0", "float32", [3]], ["1", "int64", [1]]]


WRONG = {
    "[np.full(3, np.nan, np.float32), arrays[1]]": "arrays.0: must be finite, got nan at place 0",
    "[np.zeros(4, np.float32), arrays[1]]": (
        "must be float32 of shape [3], got float32 of shape [4]"
    ),
    "[arrays[0]]": "arrays: must have the arrays 0, 1, got 0",
    "[arrays[0].astype(np.float64), arrays[1]]": "must be float32 of shape [3], got float64",
    "[np.array(['a', 'b'])]": "arrays.0: must be an array of floats, integers or booleans",
    "{'0': Array('object', (1,), 'numpy.ndarray', (lambda f: (np.save(f, np.array([print]), "
    "allow_pickle=True), f.getvalue())[1])(__import__('io').BytesIO()))}": (
        "arrays.0: must be an array of numbers, got"
    ),
}
"""Arrays of a reply, of which each device has its own, and what fails its exchange."""


def test_a_wrong_array_fails_the_exchange_with_its_name(flower_python: str, tmp_path: Path) -> None:
    wrong = ", ".join(f"lambda arrays: {body}" for body in WRONG)
    client = CLIENT.replace(
        "ArrayRecord([array + number for array in arrays])",
        "ArrayRecord(WRONG[number - 1](arrays))",
    )
    client = f"from flwr.app import Array\n{client}\nWRONG = [{wrong}]\n"
    app = write_app(tmp_path / "app", client=client)
    raw = encode_records({"arrays": Record("arrays", {"1": np.array([7])})})
    parts = {"vector": np.zeros(3, "<f4").tobytes(), "raw": raw, "config": b""}
    header = {"do": "fit", "round": 1, "seed": 1, "deadline_s": 10.0}
    with ExitStack() as stack:
        clients = Clients(stack, flower_python, app, "small.client_app:app", {})
        for number, says in enumerate(WRONG.values()):
            opened = clients.open(f"pi-{number}", number, len(WRONG), layout=LAYOUT)
            assert opened["is"] == "opened", opened
            found, _ = clients.ask(f"pi-{number}", header, parts)
            assert found["is"] == "failed"
            assert says in found["error"]


def test_a_device_without_a_package_of_the_app_names_it(flower_python: str, tmp_path: Path) -> None:

    app = write_app(tmp_path / "app", client="import no_such_package\n")
    with ExitStack() as stack:
        clients = Clients(stack, flower_python, app, "small.client_app:app", {})
        error = clients.open("pi-0")["error"]
    assert "needs the package no_such_package, which" in error


def test_a_device_without_flower_is_told_what_to_do(tmp_path: Path) -> None:

    app = write_app(tmp_path / "app", client="")
    with ExitStack() as stack:
        clients = Clients(stack, sys.executable, app, "small.client_app:app", {})
        error = clients.open("pi-0")["error"]
    assert "needs flwr 1.21 or later, got none in" in error
