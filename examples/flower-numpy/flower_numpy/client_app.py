"""The ClientApp: trains and evaluates on the partition of its node."""

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_numpy import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message; the state counts the rounds of this node."""
    config, partition = context.run_config, int(context.node_config["partition-id"])
    model = message.content["arrays"].to_numpy_ndarrays()
    x, y = task.load_data(partition)
    rounds = 1 + int(context.state["rounds"]["count"]) if "rounds" in context.state else 1
    context.state["rounds"] = MetricRecord({"count": rounds})
    before, _ = task.evaluate(model, x, y)
    model = task.train(
        model,
        x,
        y,
        learning_rate=float(message.content["config"].get("lr", config["learning-rate"])),
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
        seed=1000 * int(message.content["config"]["server-round"]) + partition,
    )
    loss, _ = task.evaluate(model, x, y)
    metrics = {"num-examples": len(y), "loss": loss, "loss-before": before, "rounds": rounds}
    content = RecordDict(
        {
            "arrays": ArrayRecord(model),
            "metrics": MetricRecord(metrics),
            "about": ConfigRecord({"partition-id": partition}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model of the message."""
    x, y = task.load_data(int(context.node_config["partition-id"]))
    loss, accuracy = task.evaluate(message.content["arrays"].to_numpy_ndarrays(), x, y)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
