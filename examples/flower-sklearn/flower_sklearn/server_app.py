"""The ServerApp: federated averaging of a logistic regression."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_sklearn import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    model = task.make_model(int(config["local-epochs"]))
    FedAvg().start(
        grid,
        initial_arrays=ArrayRecord(task.arrays_of(model)),
        num_rounds=int(config["num-server-rounds"]),
    )
