"""The ClientApp: adds trees to those of the message, and sends the new ones alone."""

import numpy as np
import xgboost
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_xgboost import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Boost for a few trees; a model is an array of bytes."""
    config = dict(context.run_config)
    training, _ = data(context)
    model, trees = model_of(message), int(config["local-trees"])
    if model:
        booster = task.booster_of(model, config)
        for _ in range(trees):
            booster.update(training, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - trees :]
    else:
        booster = xgboost.train(task.parameters(config), training, num_boost_round=trees)
    saved = np.frombuffer(bytes(booster.save_raw("json")), np.uint8)
    content = RecordDict(
        {
            "arrays": ArrayRecord([saved]),
            "metrics": MetricRecord({"num-examples": training.num_row(), "trees": trees}),
        }
    )
    return Message(content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate all trees on the test examples of this node."""
    _, test = data(context)
    booster = task.booster_of(model_of(message), dict(context.run_config))
    accuracy = float(((booster.predict(test) > 0.5) == test.get_label()).mean())
    metrics = MetricRecord({"num-examples": test.num_row(), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def model_of(message: Message) -> bytes:
    """Return the trees of a message; empty before the first round."""
    return message.content["arrays"]["0"].numpy().tobytes()


def data(context: Context) -> tuple[xgboost.DMatrix, xgboost.DMatrix]:
    """Return the examples of this node."""
    config = context.node_config
    return task.load_data(int(config["partition-id"]), int(config["num-partitions"]))
