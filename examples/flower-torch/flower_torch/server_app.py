"""The ServerApp: federated averaging of the CNN."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flower_torch import task

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    torch.manual_seed(0)
    FedAvg(fraction_train=float(context.run_config["fraction-train"])).start(
        grid,
        initial_arrays=ArrayRecord(task.Net().state_dict()),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
