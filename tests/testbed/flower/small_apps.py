"""Small Flower apps, written into a folder."""

from pathlib import Path
from textwrap import dedent

PYPROJECT = """
[project]
name = "{name}"
version = "1"
dependencies = ["flwr>=1.21"]

[tool.flwr.app]
publisher = "tests"

[tool.flwr.app.components]
serverapp = "{name}.server_app:app"
clientapp = "{name}.client_app:app"
"""

CLIENT = """
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    arrays = message.content["arrays"].to_numpy_ndarrays()
    number = context.node_config["partition-id"] + 1
    content = RecordDict({
        "arrays": ArrayRecord([array + number for array in arrays]),
        "metrics": MetricRecord({"num-examples": 10 * number, "number": number}),
    })
    return Message(content, reply_to=message)

@app.evaluate()
def evaluate(message, context):
    metrics = MetricRecord({"num-examples": 1, "accuracy": 0.5})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
"""

SERVER = """
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import ServerApp, strategy

app = ServerApp()

{body}

@app.main()
def main(grid, context):
    arrays = ArrayRecord([np.zeros(3, np.float32), np.array([7], np.int64)])
{main}
"""


def write_app(
    folder: Path, *, main: str = "", body: str = "", client: str = CLIENT, name: str = "small"
) -> Path:
    """Write an app; return its folder.

    Args:
        folder: Where.
        main: The body of the ServerApp's main function, which has `arrays`.
        body: What stands before it.
        client: The module of the ClientApp.
        name: Of the package.
    """
    package = folder / name
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name))
    (package / "__init__.py").touch()
    indented = "".join(f"    {line}\n" for line in dedent(main).strip().splitlines())
    server = SERVER.format(body=dedent(body), main=indented)
    (package / "server_app.py").write_text(server)
    (package / "client_app.py").write_text(dedent(client))
    return folder
