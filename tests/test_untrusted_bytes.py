"""Bytes of a peer run no code and choose no path: the import graph, and what is opened in a run."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from msgspec import structs

from fairbed.coordinator.policy.config import SelectionConfig
from fairbed.wire.codec import decode_to_device, encode
from fairbed.wire.messages import CoordinatorStatus, Failed, Hello, LocalTraining, Train
from fairbed.wire.topics import Topics
from fairbed.wire.transport.base import LinkUp, Packet, Transport
from tests.coordinator.builders import CAPABILITIES, context
from tests.coordinator.lab import lab, make_config
from tests.test_architecture import MODULES, ROOT

RUNS_CODE = {"_pickle", "cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve", "yaml"}
"""Modules whose loaders run code that the data name."""

OWN_PIPES = {"testbed/replay/cohort/worker_pool.py"}
"""Modules with `multiprocessing.connection`, which pickles: over a socket pair between two
processes of one replay, which no other process can open."""

FORBIDDEN = {"compile", "eval", "exec", "__import__", "torch.load", "np.fromfile"}


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield each call with the text of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def problems(path: Path) -> Iterator[str]:
    """Yield what a file imports or calls that may run code that data name."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    where = path.relative_to(ROOT)
    for name in imported(tree):
        is_pipe = name.startswith("multiprocessing") and str(where) not in OWN_PIPES
        if name.partition(".")[0] in RUNS_CODE or is_pipe:
            yield f"{where}: imports {name}"
    for called, node in calls(tree):
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        is_load = called in ("np.load", "numpy.load") and given.get("allow_pickle") != "False"
        if is_load or called in FORBIDDEN:
            yield f"{where}:{node.lineno}: calls {called}"


def test_no_module_loads_data_that_can_run_code() -> None:
    assert [line for path in MODULES for line in problems(path)] == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    import pickle",
        "from marshal import loads",
        "from multiprocessing.connection import Connection",
        "eval(text)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
    ],
)
def test_each_of_these_is_found(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_untrusted_bytes.ROOT", tmp_path)
    (tmp_path / "a.py").write_text(text)
    assert len(list(problems(tmp_path / "a.py"))) >= 1


_EVENTS = {
    "open", "import", "os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink", "os.listdir",
    "os.scandir", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "shutil.rmtree",
    "sqlite3.connect", "socket.connect", "socket.getaddrinfo",
}  # fmt: skip


class _Recorder:
    """Records what this process opens, connects to, starts and imports."""

    def __init__(self) -> None:
        self.is_on, self.found = False, list[str]()
        sys.addaudithook(self._note)  # it stays until the process ends

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.is_on and event in _EVENTS:
            self.found.append(f"{event} {arguments[:2]}")


MARK = "zzmark"
HOSTILE = (f"../../{MARK}", f"/{MARK}", f"~/{MARK}", f"{MARK}.os:system", f"http://{MARK}/", MARK)


async def be_hostile(link: Transport) -> None:
    """Send the hostile texts in all fields, as a device and as a coordinator."""
    topics = Topics()
    mine, theirs = topics.up("rogue"), topics.control("pi-0")
    async for event in link.events():
        if isinstance(event, LinkUp):
            await link.subscribe(theirs, qos=1)
            for number, text in enumerate(HOSTILE):
                await link.publish(mine, encode(hostile_hello(number, text)), qos=1)
                await link.publish(mine, encode(context(boot=number, phase=text)), qos=1)
                failed = Failed(round=1, phase=text, reason=text)
                await link.publish(mine, encode(failed), qos=1)
                for topic in (f"fairbed/main/d/{text}/up", f"fairbed/main/u/{text}"):
                    await link.publish(topic, encode(failed), qos=1)
                await link.publish(f"fairbed/main/b/{text}/intent", encode(failed), qos=1)
        elif isinstance(event, Packet):
            message = decode_to_device(event.payload)
            if isinstance(message, Train) and message.round > 1 and message.local is None:
                for number, text in enumerate(HOSTILE, 1):
                    rule = LocalTraining(rule=text, run=text)
                    changed = structs.replace(message, attempt=message.attempt + number, local=rule)
                    await link.publish(theirs, encode(changed), qos=1)
                    run = CoordinatorStatus(state="on", boot=1, run=text)
                    await link.publish(topics.coordinator, encode(run), qos=1)


def hostile_hello(boot: int, text: str) -> Hello:
    names = ("machine", "python", "engine", "agent", "model")
    capabilities = structs.replace(CAPABILITIES, **dict.fromkeys(names, text), local_rules=(text,))
    return Hello(boot=boot, capabilities=capabilities, n_k=10)


@pytest.mark.anyio
async def test_no_text_of_a_peer_becomes_a_path_a_module_or_an_address(tmp_path: Path) -> None:
    recorder = _Recorder()
    recorder.is_on = True
    try:
        async with (
            lab(tmp_path) as place,
            place.broker.transport("rogue") as rogue,
            anyio.create_task_group() as group,
        ):
            group.start_soon(be_hostile, rogue)
            selection = SelectionConfig(per_round=3, beta=0.3)
            assert await place.run(make_config(rounds=4, selection=selection)) == "done"
            group.cancel_scope.cancel()
    finally:
        recorder.is_on = False
    with place.reader() as reader:
        stored = repr((reader.devices(), [event for _, event in reader.events()]))
        rules = [x.reason for x in reader.exchanges() if "local rule" in x.reason]
    assert MARK in stored  # the texts arrived, and are kept as text
    assert rules  # the device refused a local rule
    assert any(str(tmp_path) in line for line in recorder.found)
    assert [line for line in recorder.found if MARK in line] == []
