"""The ClientApp: trains and evaluates on the digits of its node."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_torch import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message."""
    model, (x, y, _, _) = of(message), data(context)
    config = context.run_config
    loss = task.train(
        model,
        x,
        y,
        learning_rate=float(config["learning-rate"]),
        epochs=int(config["local-epochs"]),
        batch_size=int(config["batch-size"]),
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y), "train-loss": loss}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model of the message on the test digits of this node."""
    model, (_, _, x, y) = of(message), data(context)
    loss, accuracy = task.evaluate(model, x, y)
    metrics = MetricRecord({"num-examples": len(y), "loss": loss, "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def of(message: Message) -> task.Net:
    """Return the model of a message."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return model


def data(context: Context) -> tuple[task.Tensor, ...]:
    """Return the digits of this node."""
    config = context.node_config
    return task.load_data(int(config["partition-id"]), int(config["num-partitions"]))
