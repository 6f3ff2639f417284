"""The ClientApp: fits and evaluates on the digits of its node."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from flower_sklearn import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Go on with the model of the message for a few epochs."""
    model, (x, y, _, _) = of(message, context), data(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few epochs are the point
        model.fit(x, y)
    metrics = {"num-examples": len(y), "loss": loss(model, x, y)}
    content = RecordDict(
        {
            "arrays": ArrayRecord(task.arrays_of(model)),
            "metrics": MetricRecord(metrics),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model of the message on the test digits of this node."""
    model, (_, _, x, y) = of(message, context), data(context)
    metrics = {
        "num-examples": len(y),
        "loss": loss(model, x, y),
        "accuracy": float(model.score(x, y)),
    }
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)


def of(message: Message, context: Context) -> LogisticRegression:
    """Return the model of a message."""
    config = context.run_config
    model = task.make_model(int(config["local-epochs"]))
    task.set_arrays(model, message.content["arrays"].to_numpy_ndarrays())
    return model


def loss(model: LogisticRegression, x: object, y: object) -> float:
    """Return the mean cross-entropy."""
    return float(log_loss(y, model.predict_proba(x), labels=model.classes_))


def data(context: Context) -> tuple:
    """Return the digits of this node."""
    config = context.node_config
    return task.load_data(int(config["partition-id"]), int(config["num-partitions"]))
