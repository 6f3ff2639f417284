"""Plays the driver of a Flower app: its ServerApp, and its ClientApp for some devices.

Both are the real processes; the network and the rounds of a run are left out.
"""

import json
import os
import select
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbed.device_agent.clients.child.flower import (
    NODE_OPTION,
    join_arrays,
    node_id,
    run_id,
    split_arrays,
)
from fairbed.device_agent.clients.child.frames import Header, Parts, receive_frame, send_frame
from fairbed.device_agent.clients.process import SERVE, WATCHING
from fairbed.device_agent.config import MAX_PROCESSES
from fairbed.testbed.flower import child
from fairbed.wire.records import Records, decode_records, encode_records

SERVER = Path(child.__file__).with_name("server_process.py")

LIMIT_S = 60.0
MOST = 1 << 28

RUN = "2026-11-30-a"

RAISED = 2
"""Code of Flower's `ErrorCode` for a ClientApp that raises."""


class Clients:
    """The server of clients of one app, and a client for each device."""

    def __init__(
        self,
        stack: ExitStack,
        python: str,
        folder: Path,
        path: str,
        options: Any,
        shims: Path | None = None,
    ) -> None:
        home = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        self._address = str(Path(home) / "s")
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(self._address)
        listening.listen(64)
        loading = {"kind": "flower", "folder": str(folder), "path": path, "options": options}
        loading["processes"] = MAX_PROCESSES
        process = subprocess.Popen(
            [
                *(python, str(WATCHING), home, str(SERVE)),
                *(str(listening.fileno()), json.dumps(loading)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[listening.fileno()],
            env=environment(shims),
        )
        stack.callback(process.wait, LIMIT_S)
        assert process.stdin is not None
        stack.callback(process.stdin.close)
        self._stack, self._options = stack, options
        self._links: dict[str, socket.socket] = {}

    def open(
        self,
        device: str,
        number: int = 0,
        count: int = 1,
        layout: Sequence[Any] = (),
        state: bytes = b"",
    ) -> Header:
        """Open the client of a device; return the answer, `failed` or `opened`."""
        link = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        link.settimeout(LIMIT_S)
        link.connect(self._address)
        ends = [os.pipe(), os.pipe()]
        socket.send_fds(link, [b"f"], [out for _, out in ends])
        for source, out in ends:
            os.close(out)
            self._stack.callback(os.close, source)
        send_frame(link, {"do": "fork", "groups": [], "network": None}, {})
        header, _ = receive_frame(link, MOST)
        if header["is"] == "failed":
            return header
        self._links[device] = link
        about = {"device": device, "number": number, "count": count, "folder": "", "run": RUN}
        about |= {"options": self._options, "weighted_by": "", "arrays": list(layout)}
        return self.ask(device, {"do": "open", **about}, {"state": state})[0]

    def ask(self, device: str, header: Header, parts: Any) -> tuple[Header, Parts]:
        """Send a frame to a client; return its answer."""
        send_frame(self._links[device], header, parts)
        while True:
            answer, out = receive_frame(self._links[device], MOST)
            if answer["is"] != "progress":
                return answer, out


@dataclass
class AppRun:
    """One run of an app."""

    python: str
    folder: Path
    module: str
    devices: int = 3
    run_config: dict[str, Any] = field(default_factory=dict)
    client_python: str = ""
    policy: str = "app"
    merge: str = "strategy"
    poll_s: float = 5.0
    first_round: int = 1
    arrays: bytes = b""
    server: str = ""
    """Component of the ServerApp; by default that of an example."""
    choose: Callable[[int, list[int]], list[int]] | None = None
    """The cohort of a round, of all nodes."""
    mean: Callable[[list[tuple[int, Any]]], Any] | None = None
    """Our rule: the vector of pairs of examples and vectors."""
    on_event: Callable[["AppRun", Header, Parts], None] | None = None
    silent: set[int] = field(default_factory=set)
    """Nodes that never reply."""
    node_config: dict[str, Any] = field(default_factory=dict)
    shims: Path | None = None
    """Folder with modules that stand in for packages of the app."""

    events: list[Header] = field(default_factory=list)
    payloads: dict[int, bytes] = field(default_factory=dict)
    sent_payloads: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    """Arrays at the end by key."""
    replies: list[tuple[str, Header]] = field(default_factory=list)
    output: str = ""
    layout: list[Any] = field(default_factory=list)
    """Key, dtype and shape of each array, if our rule merges."""
    raw: Records = field(default_factory=dict)
    """The part of the last payload that is not in the vector."""

    def __post_init__(self) -> None:
        names = [f"pi-{number}" for number in range(self.devices)]
        self.nodes = {node_id(name): name for name in names}

    def __call__(self) -> "AppRun":
        """Run until the app is done or has failed."""
        with ExitStack() as stack:
            self._stack = stack
            self._run(stack)
        return self

    @cached_property
    def clients(self) -> Clients:
        """The ClientApps; many an app fails before it needs them."""
        options = self.run_config | {
            f"{NODE_OPTION}{key}": value for key, value in self.node_config.items()
        }
        return Clients(
            self._stack,
            self.client_python or self.python,
            self.folder,
            f"{self.module}.client_app:app",
            options,
            self.shims,
        )

    def _run(self, stack: ExitStack) -> None:
        ours, its = socket.socketpair()
        stack.enter_context(ours)
        ours.settimeout(LIMIT_S)
        output = tempfile.TemporaryFile("w+")  # noqa: SIM115  # the stack closes it
        stack.callback(output.close)
        self.process = subprocess.Popen(
            [self.python, "-u", str(WATCHING), "", str(SERVER), str(its.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[its.fileno()],
            env=environment(self.shims),
            cwd=stack.enter_context(tempfile.TemporaryDirectory()),
        )
        its.close()
        stack.callback(self._kill)
        self.link = ours
        start = {
            "folder": str(self.folder),
            "component": self.server or f"{self.module}.server_app:app",
            "run_config": self.run_config,
            "run": run_id(RUN),
            "policy": self.policy,
            "merge": self.merge,
            "poll_s": self.poll_s,
            "nodes": list(self.nodes),
            "first_round": self.first_round,
        }
        self.send({"do": "start", **start}, {"arrays": self.arrays})
        while not self.events or self.events[-1]["is"] not in ("done", "failed"):
            header, parts = receive_frame(ours, MOST)
            self.events.append(header)
            self._answer(header, parts)
        self.process.wait(LIMIT_S)
        output.seek(0)
        self.output = output.read()

    def send(self, header: Header, parts: Any = None) -> None:
        """Send a frame to the ServerApp."""
        send_frame(self.link, header, parts or {})

    def of(self, kind: str) -> list[Header]:
        """Return the events of a kind."""
        return [event for event in self.events if event["is"] == kind]

    @property
    def error(self) -> str:
        """How the app failed."""
        return str(self.of("failed")[0]["error"])

    def _kill(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(LIMIT_S)

    def _answer(self, header: Header, parts: Parts) -> None:
        if self.on_event is not None:
            self.on_event(self, header, parts)
        match header["is"]:
            case "strategy":
                if self.merge == "ours":
                    items = decode_records(parts["arrays"])["arrays"].items
                    self.layout = [[k, x.dtype.name, list(x.shape)] for k, x in items.items()]
            case "cohort":
                nodes = list(self.nodes)
                cohort = self.choose(header["round"], nodes) if self.choose else nodes
                self.send({"do": "cohort", "round": header["round"], "nodes": cohort})
            case "payload":
                self.payloads[header["index"]] = bytes(parts["raw"])
                self.sent_payloads += 1
            case "push":
                self._exchange(header, bytes(parts["configs"]))
            case "aggregated":
                self._merge(header["round"])
            case "done":
                if "arrays" in parts:
                    self.last = dict(decode_records(parts["arrays"])["arrays"].items)

    def _exchange(self, push: Header, joined: bytes) -> None:
        used = {message["payload"] for message in push["messages"]}
        self.payloads = {k: x for k, x in self.payloads.items() if k in used}
        ends = [sum(push["configs"][:i]) for i in range(len(push["configs"]) + 1)]
        self.updates: list[tuple[int, Any]] = []
        for message in push["messages"]:
            if message["node"] in self.silent:
                continue
            at = message["config"]
            config = joined[ends[at] : ends[at + 1]]
            self._one(push, message, self.payloads[message["payload"]], config)

    def _one(self, push: Header, message: Header, payload: bytes, config: bytes) -> None:
        device = self.nodes[message["node"]]
        if device not in {name for name, _ in self.replies}:
            number = list(self.nodes).index(message["node"])
            opened = self.clients.open(device, number, len(self.nodes), self.layout)
            assert opened["is"] == "opened", opened
        vector, raw = split_arrays(decode_records(payload), _layout(self.layout))
        self.raw = raw
        do = "fit" if push["type"].startswith("train") else "evaluate"
        header = {"do": do, "round": push["round"], "seed": 7, "deadline_s": 60.0}
        parts = {"vector": vector.tobytes(), "raw": encode_records(raw), "config": config}
        answer, out = self.clients.ask(device, header, parts)
        self.replies.append((device, answer))
        reply = {"do": "reply", "id": message["id"]}
        if answer["is"] == "failed":
            self.send({**reply, "code": RAISED, "reason": answer["error"]})
            return
        if do == "evaluate":
            self.send(reply, {"records": bytes(out["records"])})
            return
        self.updates.append((answer["n"], bytes(out["vector"])))
        records = join_arrays(
            bytes(out["vector"]), decode_records(bytes(out["raw"])), _layout(self.layout)
        )
        self.send(reply, {"records": encode_records(records)})

    def _merge(self, number: int) -> None:
        if self.merge != "ours":
            return
        assert self.mean is not None
        vector = self.mean(self.updates)
        records = join_arrays(vector.tobytes(), self.raw, _layout(self.layout))
        self.send({"do": "merged", "round": number}, {"arrays": encode_records(records)})

    def has_ended(self) -> bool:
        """Whether the ServerApp has closed its connection."""
        return bool(select.select([self.link], [], [], 0.0)[0])


def environment(shims: Path | None) -> dict[str, str]:
    """Return the variables of a process of the app."""
    path = {} if shims is None else {"PYTHONPATH": str(shims)}
    return {k: x for k, x in os.environ.items() if k != "PYTHONPATH"} | path


def _layout(layout: Sequence[Any]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(key, dtype, tuple(shape)) for key, dtype, shape in layout]


def records_of(arrays: dict[str, Any]) -> Records:
    """Return arrays as the records of a resume."""
    from fairbed.wire.records import Record

    return {"arrays": Record("arrays", arrays)}
