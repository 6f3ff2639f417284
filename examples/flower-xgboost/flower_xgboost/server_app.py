"""The ServerApp: the trees of all nodes are one forest."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    FedXgbBagging().start(
        grid,
        initial_arrays=ArrayRecord([np.zeros(0, np.uint8)]),  # no trees yet
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
