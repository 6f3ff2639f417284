"""A ServerApp and ClientApps in their processes: what Flower computes, they compute."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbed.device_agent.clients.child.flower import node_id
from fairbed.testbed.flower.reading import read_app
from fairbed.wire.records import decode_records, encode_records
from tests.testbed.flower import reference
from tests.testbed.flower.app_run import AppRun, records_of
from tests.testbed.flower.small_apps import CLIENT, write_app
from tests.tiers import some_in_fast


def expected(
    python: str, app: Path, module: str, devices: int, configs: list[dict[str, Any]], output: Path
) -> dict[int, dict[str, Any]]:
    """Return the last arrays of an app that runs in one process of Flower, by configuration."""
    argv = [python, reference.__file__, str(app), module, str(devices), json.dumps(configs)]
    ended = subprocess.run(
        [*argv, str(output)], capture_output=True, timeout=100, check=False, text=True
    )
    assert ended.returncode == 0, ended.stderr
    found = {}
    for file in output.glob("*.npz"):
        with np.load(file) as arrays:
            found[int(file.stem)] = dict(arrays)
    return found


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert list(found) == list(wanted)
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_array_equal(found[key], array)


STRATEGIES = ("FedAvg", "FedAdam", "FedProx", "Krum", "QFedAvg")


@pytest.fixture(scope="module")
def arrays_of_flower(
    flower_python: str, examples: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return the last arrays of the numpy app with each strategy that this flwr has."""
    app = read_app(examples / "flower-numpy", {"num-server-rounds": 3})
    configs = [{**app.config, "strategy": name} for name in STRATEGIES]
    output = tmp_path_factory.mktemp("arrays")
    found = expected(flower_python, app.folder, "flower_numpy", 4, configs, output)
    return {STRATEGIES[index]: arrays for index, arrays in found.items()}


@pytest.mark.parametrize("name", some_in_fast(STRATEGIES, "FedAvg"))
def test_the_arrays_at_the_end_are_those_of_flower(
    flower_python: str,
    examples: Path,
    arrays_of_flower: dict[str, dict[str, Any]],
    name: str,
) -> None:
    changes = {"strategy": name, "num-server-rounds": 3}
    app = read_app(examples / "flower-numpy", changes)
    run = AppRun(flower_python, app.folder, "flower_numpy", devices=4, run_config=app.config)()
    version = run.of("loaded")[0]["flwr"]
    if run.events[-1]["is"] == "failed" and not version.startswith("1.42"):
        assert run.error.endswith(f"has no attribute '{name}'")
        assert name not in arrays_of_flower
        pytest.skip(f"flwr {version} has no {name}")
    assert run.events[-1] == {"is": "done", "rounds": 3}
    assert_equal(run.last, arrays_of_flower[name])
    if name == "FedAvg":
        assert_rounds(run)


def assert_rounds(run: AppRun) -> None:
    """Check what a run has reported, and that equal arrays are sent once."""
    pushed = [(each["round"], each["type"], len(each["messages"])) for each in run.of("push")]
    assert pushed == [(k, kind, 4) for k in (1, 2, 3) for kind in ("train", "evaluate")]
    assert run.sent_payloads == 4, "the arrays after a round are evaluated and trained once sent"
    assert {len(each["configs"]) for each in run.of("push")} == {1}
    (begun,) = run.of("strategy")
    assert (begun["num_rounds"], begun["weighted_by"]) == (3, "num-examples")
    kept = [each["metrics"]["rounds"] for each in run.of("aggregated")]
    assert kept == [1.0, 2.0, 3.0], "the state of a ClientApp lasts between rounds"
    on_devices = [each for each in run.of("metrics") if each["where"] == "devices"]
    assert [each["round"] for each in on_devices] == [1, 2, 3]
    n, metrics = run.replies[0][1]["n"], run.replies[0][1]["metrics"]
    assert (n, metrics["num-examples"]) == (256, 256.0)


@pytest.mark.full
def test_privacy_wrappers_and_strategies_of_the_app_run(flower_python: str, tmp_path: Path) -> None:
    body = """
    class Halved(strategy.FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            halved = [array / 2 for array in arrays.to_numpy_ndarrays()]
            return ArrayRecord(halved), metrics
    """
    main = """
    np.random.seed(3)
    arrays = ArrayRecord([np.zeros(3, np.float32)])  # noise is for floats alone
    wrapped = strategy.DifferentialPrivacyServerSideFixedClipping(Halved(), 0.1, 1.0, 3)
    wrapped.start(grid, arrays, num_rounds=2)
    """
    app = write_app(tmp_path / "app", body=body, main=main)
    run = AppRun(flower_python, app, "small")()
    assert run.events[-1]["is"] == "done", run.events[-1]
    assert [each["round"] for each in run.of("aggregated")] == [1, 2]
    assert run.of("strategy")[0]["name"] == "DifferentialPrivacyServerSideFixedClipping"
    assert run.of("strategy")[0]["settings"]["min_train_nodes"] == 2, "that of the inner strategy"
    assert_equal(run.last, expected(flower_python, app, "small", 3, [{}], tmp_path)[0])


def test_our_rule_merges_and_the_strategy_keeps_its_metrics(
    flower_python: str, tmp_path: Path
) -> None:
    def mean(updates: list[tuple[int, Any]]) -> Any:
        return sum(np.frombuffer(vector, np.float32) for _, vector in updates) / np.float32(4)

    app = write_app(tmp_path / "app", main="strategy.FedAvg().start(grid, arrays, num_rounds=2)")
    client = CLIENT.replace(
        "array + number for array", "array + number * (array.dtype.kind == 'f') for array"
    )
    (app / "small" / "client_app.py").write_text(client)
    run = AppRun(flower_python, app, "small", devices=2, merge="ours", mean=mean)()
    # (w + 1 + w + 2) / 4 twice, from 0; the integers are ours, too: none were merged.
    np.testing.assert_array_equal(run.last["0"], np.full(3, 1.125, np.float32))
    assert run.last["1"] == 7
    assert [each["metrics"]["number"] for each in run.of("aggregated")] == pytest.approx(
        [5 / 3, 5 / 3]
    )


def test_a_resumed_run_has_the_remaining_rounds(
    flower_python: str, examples: Path, tmp_path: Path
) -> None:
    app = read_app(examples / "flower-numpy", {"num-server-rounds": 4})
    run = AppRun(flower_python, app.folder, "flower_numpy", run_config=app.config)
    after: dict[int, bytes] = {}

    def keep(run: AppRun, header: dict[str, Any], parts: Any) -> None:
        if header["is"] == "aggregated":
            after[header["round"]] = bytes(parts["arrays"])

    run.on_event = keep
    run()
    again = AppRun(
        flower_python,
        app.folder,
        "flower_numpy",
        run_config=app.config,
        first_round=3,
        arrays=after[2],
    )()
    assert [e["round"] for e in again.of("push") if e["type"] == "train"] == [3, 4]
    assert "momentum" in again.of("strategy")[0]["lost"]
    assert_equal(again.last, run.last)


LOOP = """
from fairbed_flower import resumed
arrays, first_round = resumed(arrays)
for server_round in range(first_round, 4):
    messages = [
        Message(
            RecordDict({
                "config": ConfigRecord({"server-round": server_round, "number": at}),
                "arrays": arrays,
                "more": MetricRecord({"list": [1.5, float("inf")]}),
            }),
            node,
            "train.twice" if server_round == 3 else "train",
            ttl=100.0,
            group_id=str(server_round),
        )
        for at, node in enumerate(grid.get_node_ids())
    ]
    replies = {}
    ids = list(grid.push_messages(messages))
    while len(replies) < len(ids):
        replies.update({reply.metadata.src_node_id: reply for reply in grid.pull_messages(ids)})
    arrays = next(iter(replies.values())).content["arrays"]
print("end", [int(array[0]) for array in arrays.to_numpy_ndarrays()])
"""


def test_an_app_with_a_loop_of_its_own_runs_and_goes_on(flower_python: str, tmp_path: Path) -> None:
    client = """
    from flwr.app import Message, RecordDict
    from flwr.clientapp import ClientApp
    from small.usual import app

    @app.train("twice")
    def twice(message, context):
        assert list(message.content) == ["config", "arrays", "more"]
        assert message.content["more"]["list"] == [1.5, float("inf")]
        assert message.content["config"]["number"] == context.node_config["partition-id"]
        assert context.node_config["room"] == "kitchen"
        assert message.metadata.group_id == "3"
        return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)
    """
    app = write_app(tmp_path / "app", main=LOOP, client=client)
    (app / "small" / "usual.py").write_text(CLIENT)
    run = AppRun(flower_python, app, "small", devices=2, node_config={"room": "kitchen"})()
    assert run.events[-1]["is"] == "done", run.events[-1]
    assert "end [2, 9]" in run.output
    assert [(e["round"], e["type"], e["group"]) for e in run.of("push")] == [
        (0, "train", "1"),
        (0, "train", "2"),
        (0, "train.twice", "3"),
    ]
    assert [len(each["configs"]) for each in run.of("push")] == [2, 2, 2]
    arrays = encode_records(records_of({"0": np.full(3, 20.0, np.float32), "1": np.array([5])}))
    again = AppRun(
        flower_python,
        app,
        "small",
        devices=2,
        node_config={"room": "kitchen"},
        first_round=3,
        arrays=arrays,
    )()
    assert "end [20, 5]" in again.output
    assert again.of("resumed")[0]["first_round"] == 3


@pytest.mark.full
def test_the_older_api_of_both_sides_works(flower_python: str, tmp_path: Path) -> None:
    client = """
    import numpy as np
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def get_parameters(self, config):
            return [np.zeros(2, np.float32)]
        def fit(self, parameters, config):
            return [array + 1 for array in parameters], 10, {"loss": 0.5}
        def evaluate(self, parameters, config):
            return 0.25, 10, {"accuracy": 0.75}

    app = ClientApp(client_fn=lambda context: Client().to_client())
    """
    app = write_app(tmp_path / "app", client=client)
    (app / "small" / "server_app.py").write_text(
        "from flwr.server import ServerAppComponents, ServerConfig\n"
        "from flwr.server.strategy import FedAvg\n"
        "from flwr.serverapp import ServerApp\n"
        "def server_fn(context):\n"
        "    config = ServerConfig(num_rounds=2)\n"
        "    return ServerAppComponents(strategy=FedAvg(), config=config)\n"
        "app = ServerApp(server_fn=server_fn)\n"
    )
    run = AppRun(flower_python, app, "small", devices=3)()
    assert run.events[-1]["is"] == "done", run.events[-1]
    pushed = [(each["type"], each["group"], len(each["messages"])) for each in run.of("push")]
    assert pushed[0][0] == "query.get_parameters"
    assert pushed[1:] == [
        ("train", "1", 3),
        ("evaluate", "1", 3),
        ("train", "2", 3),
        ("evaluate", "2", 3),
    ], "the messages of one round are one push, although each is sent by a thread"


def test_devices_draw_different_numbers_which_a_second_run_repeats(
    flower_python: str, tmp_path: Path
) -> None:
    # The clients are forks of one process, and have copied its generators.
    client = CLIENT.replace("array + number for", "array + np.random.randint(1 << 30) for")
    client = client.replace(
        '"number": number', '"number": int(__import__("random").random() * 1e9)'
    )
    app = write_app(
        tmp_path / "app", client=client, main="strategy.FedAvg().start(grid, arrays, 2)"
    )
    drawn = []
    for _ in range(2):
        run = AppRun(flower_python, app, "small")()
        answers = [answer["metrics"]["number"] for _, answer in run.replies if answer["n"] > 1]
        drawn.append((sorted(answers), run.last["0"].tolist()))
    assert len(set(drawn[0][0])) == 6, "of three devices in two rounds"
    assert drawn[0] == drawn[1]


def test_a_node_is_the_same_in_every_run() -> None:
    assert node_id("pi-0") == node_id("pi-0") != node_id("pi-1")
    assert 1 < node_id("pi-0") < 1 << 63
    assert decode_records(encode_records({})) == {}
