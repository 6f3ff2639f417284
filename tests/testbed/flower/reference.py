"""Run a Flower app in one process, without Fairbed: FOLDER MODULE DEVICES CONFIGS OUTPUT.

The grid calls the ClientApp. CONFIGS is a list of configurations, each of a run, whose last arrays
go to the `.npz` file of its index in the folder OUTPUT; there is none for a strategy that this
version of flwr has not.
"""

import json
import sys

import numpy as np


def main(folder: str, module: str, devices: str, configs: str, output: str) -> None:
    """Run the app with each configuration."""
    sys.path.insert(0, folder)
    import importlib

    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Strategy

    try:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    except ImportError:
        pass

    server = importlib.import_module(f"{module}.server_app").app
    client = importlib.import_module(f"{module}.client_app").app
    count, contexts = int(devices), {}

    def start_again(run_config):  # type: ignore[no-untyped-def]
        for node in range(10, 10 + count):
            about = {"partition-id": node - 10, "num-partitions": count}
            contexts[node] = Context(1, node, about, RecordDict(), run_config)

    class Direct(Grid):  # type: ignore[misc]  # no flwr where types are checked
        def set_run(self, run):  # type: ignore[no-untyped-def]
            del run

        run = property(lambda self: None)

        def create_message(self, *args, **kwargs):  # type: ignore[no-untyped-def]
            raise NotImplementedError

        push_messages = pull_messages = create_message

        def get_node_ids(self):  # type: ignore[no-untyped-def]
            return list(contexts)

        def send_and_receive(self, messages, *, timeout=None):  # type: ignore[no-untyped-def]
            ordered = sorted(messages, key=lambda each: each.metadata.dst_node_id)
            return [client(each, contexts[each.metadata.dst_node_id]) for each in ordered]

    found = {}
    original = Strategy.start

    def start(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        result = original(self, *args, **kwargs)
        found.update({key: array.numpy() for key, array in result.arrays.items()})
        return result

    Strategy.start = start
    for index, run_config in enumerate(json.loads(configs)):
        found.clear()
        start_again(run_config)  # type: ignore[no-untyped-call]
        try:
            server(Direct(), Context(1, 1, {}, RecordDict(), run_config))
        except AttributeError:  # a strategy that this version has not
            continue
        np.savez(f"{output}/{index}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
