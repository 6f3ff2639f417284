"""Run a Flower app in Flower's own simulation: FOLDER MODULE DEVICES CONFIG OUTPUT.

It needs `flwr[simulation]`. The last arrays go to the `.npz` file OUTPUT.
"""

import importlib
import json
import os
import sys

import numpy as np


def main(folder: str, module: str, devices: str, config: str, output: str) -> None:
    """Run the app."""
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder  # of the actors of Ray

    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import Strategy
    from flwr.simulation import run_simulation

    run_config = json.loads(config)
    server = importlib.import_module(f"{module}.server_app").app

    class Configured(ClientApp):  # type: ignore[misc]  # no flwr where types are checked
        def __call__(self, message, context):  # type: ignore[no-untyped-def]
            given, context.run_config = context.run_config, run_config
            client = importlib.import_module(f"{module}.client_app").app
            try:
                return client(message, context)
            finally:
                context.run_config = given

    original = Strategy.start

    def start(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = original(self, *args, **kwargs)
        np.savez(output, **{key: array.numpy() for key, array in result.arrays.items()})
        return result

    Strategy.start = start
    outer = ServerApp()

    @outer.main()
    def run(grid, context):  # type: ignore[no-untyped-def]
        context.run_config = run_config
        server(grid, context)

    run_simulation(
        server_app=outer,
        client_app=Configured(),
        num_supernodes=int(devices),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
