"""The ServerApp: the strategy that the configuration names, with replies in a fixed order."""

from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp, strategy

from flower_numpy import task

TEST_PARTITION = 1_000_000

app = ServerApp()


class SortedFedAvg(strategy.FedAvg):
    """FedAvg that sums the updates in the order of their partitions.

    Sums of floating-point numbers depend on their order, and replies come in any.
    """

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Sort the replies, and aggregate them."""
        return super().aggregate_train(server_round, sorted(replies, key=partition_of))


def partition_of(reply: Message) -> int:
    """Return the partition of a node that has replied; -1 for an error."""
    return -1 if reply.has_error() else int(reply.content["about"]["partition-id"])


def central_evaluation(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the global model on data that no node has."""
    x, y = task.load_data(TEST_PARTITION, examples=1000)
    loss, accuracy = task.evaluate(arrays.to_numpy_ndarrays(), x, y)
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    common = {
        "fraction_train": float(config["fraction-train"]),
        "fraction_evaluate": float(config["fraction-evaluate"]),
    }
    name = str(config["strategy"])
    make = SortedFedAvg if name == "FedAvg" else getattr(strategy, name)
    if name == "QFedAvg":
        common["client_learning_rate"] = float(config["learning-rate"])
        common["train_loss_key"] = "loss-before"
    make(**common).start(
        grid,
        initial_arrays=ArrayRecord(task.initial_model()),
        num_rounds=int(config["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(config["learning-rate"])}),
        evaluate_fn=central_evaluation,
    )
