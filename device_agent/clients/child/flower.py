"""The kind `flower` of a client: a ClientApp of Flower, in the process of one device.

It runs in an interpreter with flwr 1.21 or later. What crosses the network is our own encoding, so
that the other side may have another version (`flower_records.py`).
"""

import dataclasses
import hashlib
import importlib
import math
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from fairbed.device_agent.clients.child.frames import Header, Parts
from fairbed.device_agent.clients.child.kinds import Answer, ClientError, Report, ShouldStop
from fairbed.wire.records import Record, Records

NODE_OPTION = "node-config."
"""Prefix of the options that are the node's configuration; the others are that of the run."""

MAX_REPLY_BYTES = 64 << 10
"""Most bytes of the records with which a device answers an evaluation or a query."""

MAX_METRICS, MAX_NAME = 64, 120

DEFAULT_WEIGHT = "num-examples"

SERVER_NODE_ID = 1


def node_id(device: str) -> int:
    """Return the id of a device as a node: 63 bits, the same in every run, never 0 or 1."""
    digest = hashlib.sha256(b"node " + device.encode("utf-8", "replace")).digest()
    return 2 + int.from_bytes(digest[:8], "big") % ((1 << 63) - 2)


def run_id(run: str) -> int:
    """Return the number of a run, as Flower has it: 63 bits, never 0."""
    digest = hashlib.sha256(b"run " + run.encode("utf-8", "replace")).digest()
    return 1 + int.from_bytes(digest[:8], "big") % ((1 << 63) - 1)


def load_component(folder: str, path: str, kind: type, name: str) -> Any:
    """Return the ClientApp or ServerApp that `path` names, as `package.module:attribute`.

    Raises:
        ClientError: There is none.
        ModuleNotFoundError: The app, or a package that it needs, is not there.
    """
    module_name, _, attributes = path.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in attributes.split("."):
        if not hasattr(found, part):
            raise ClientError(
                f"{name}: {path} must be a {kind.__name__}, got no {part} in {module_name}; "
                f"correct [tool.flwr.app.components] in {folder}"
            )
        found = getattr(found, part)
    if not isinstance(found, kind):
        raise ClientError(
            f"{name}: {path} must be a {kind.__name__}, got {type(found).__name__}; correct "
            f"[tool.flwr.app.components] in {folder}"
        )
    return found


def load(folder: str, path: str, options: Mapping[str, Any]) -> Any:
    """Import the ClientApp, once for all devices of a machine."""
    try:
        from flwr.clientapp import ClientApp
    except ModuleNotFoundError as exc:
        if (exc.name or "").partition(".")[0] != "flwr":
            raise
        raise ClientError(
            f"client: needs flwr 1.21 or later, got none in {sys.executable}; install it there, "
            "or make an environment with: fairbed flower setup"
        ) from exc
    return load_component(folder, path, ClientApp, "clientapp")


def initial(loaded: Any, header: Header) -> Answer:
    """Refuse: a Flower app makes its first arrays on the server."""
    raise ClientError("client: a Flower app has its first arrays from its ServerApp, got a request")


class FlowerClient:
    """The ClientApp of one device."""

    has_evaluate = True

    def __init__(self, app: Any, about: Header, state: bytes) -> None:
        from flwr.app import Context

        from fairbed.device_agent.clients.child import flower_records

        self._flower = flower_records
        self._app = app
        self._device = str(about["device"])
        self._weighted_by = str(about.get("weighted_by") or DEFAULT_WEIGHT)
        self._layout = [(str(n), str(d), tuple(s)) for n, d, s in about.get("arrays") or ()]
        options = dict(about.get("options") or {})
        node = {
            "partition-id": int(about.get("number") or 0),
            "num-partitions": int(about.get("count") or 1),
            **{
                name.removeprefix(NODE_OPTION): value
                for name, value in options.items()
                if name.startswith(NODE_OPTION)
            },
        }
        if about.get("folder"):
            node.setdefault("data-path", str(about["folder"]))
        config = {n: v for n, v in options.items() if not n.startswith(NODE_OPTION)}
        self._node_id = node_id(self._device)
        self._run_id = run_id(str(about.get("run") or ""))
        kept = self._flower.from_records(self._flower.decode(state))
        self._context = Context(self._run_id, self._node_id, node, kept, config)

    def fit(self, header: Header, parts: Parts) -> Answer:
        """Answer a message of training."""
        reply, times = self._work(header, parts, "train")
        begun_s = times.pop("begun_s")
        vector, rest = split_arrays(reply, self._layout)
        state = self._flower.encode(self._flower.to_records(self._context.state))
        raw = self._flower.encode(rest)
        n, metrics = self._counted(reply)
        times["encode_s"] = time.perf_counter() - begun_s
        return {"n": n, "metrics": metrics, **times}, {
            "vector": memoryview(vector).cast("B") if vector.size else b"",
            "raw": raw,
            "state": state,
        }

    def evaluate(self, header: Header, parts: Parts) -> Answer:
        """Answer a message of an evaluation or a query."""
        reply, times = self._work(header, parts, "evaluate")
        begun_s = times.pop("begun_s")
        records = self._flower.encode(reply)
        if len(records) > MAX_REPLY_BYTES:
            raise ClientError(
                f"client: a reply to an evaluation or a query must have at most "
                f"{MAX_REPLY_BYTES:,} bytes, got {len(records):,}; send arrays as training"
            )
        state = self._flower.encode(self._flower.to_records(self._context.state))
        n, metrics = self._counted(reply)
        found = next((metrics[x] for x in ("loss", "eval_loss", "eval-loss") if x in metrics), None)
        times["encode_s"] = time.perf_counter() - begun_s
        return {"n": n, "metrics": metrics, "loss": found, **times}, {
            "records": records,
            "state": state,
        }

    def _work(self, header: Header, parts: Parts, usual: str) -> tuple[Records, dict[str, float]]:
        from flwr.app import Message, Metadata

        begun_s = time.perf_counter()
        config = self._flower.decode(parts.get("config", memoryview(b"")))
        about = config.pop(self._flower.ABOUT, Record("config")).items
        raw = join_arrays(
            parts.get("vector", memoryview(b"")),
            self._flower.decode(parts.get("raw", memoryview(b""))),
            self._layout,
        )
        records = self._flower.join_message(raw, config) if config else raw
        metadata = Metadata(
            run_id=self._run_id,
            message_id=f"{about.get('type', usual)}-{header.get('round', 0)}",
            src_node_id=SERVER_NODE_ID,
            dst_node_id=self._node_id,
            reply_to_message_id="",
            group_id=str(about.get("group") or header.get("round", "")),
            created_at=time.time(),
            ttl=float(about.get("ttl") or header.get("deadline_s") or 43200.0),
            message_type=str(about.get("type") or usual),
        )
        message = Message(content=self._flower.from_records(records), metadata=metadata)
        del records, raw
        self._seed(header)
        decoded_s = time.perf_counter()
        reply = self._app(message, self._context)
        worked_s = time.perf_counter()
        if not isinstance(reply, Message):
            raise ClientError(
                f"client: a ClientApp must return a Message, got {type(reply).__name__}"
            )
        if reply.has_error():
            reason = " ".join(str(reply.error.reason or "no reason").split())
            raise ClientError(
                f"client: the ClientApp returned the error {reply.error.code}: {reason}"
            )
        found = self._flower.to_records(reply.content)
        times = {
            "decode_s": decoded_s - begun_s,
            "work_s": worked_s - decoded_s,
            "begun_s": worked_s,
        }
        return found, times

    def _seed(self, header: Header) -> None:
        """Seed the global generators: a fork has copied those of the server of clients."""
        key = [
            int(header.get("seed") or 0) & (1 << 64) - 1,
            self._node_id,
            header.get("round") or 0,
        ]
        words = np.random.SeedSequence(key).generate_state(4)
        random.seed(int(words[0]))
        np.random.seed(int(words[1]))  # noqa: NPY002  # the app may use it
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(int(words[2]))

    def _counted(self, reply: Records) -> tuple[int, dict[str, float]]:
        """Return the number of examples (0 if the app does not state it), and the metrics."""
        found: dict[str, float] = {}
        records = [(n, r) for n, r in reply.items() if r.kind == "metrics"]
        for name, record in records:
            for key, value in record.items.items():
                values = value if isinstance(value, list) else [value]
                for at, each in enumerate(values):
                    full = key if len(records) == 1 else f"{name}.{key}"
                    full = f"{full}.{at}" if isinstance(value, list) else full
                    if math.isfinite(each) and len(full) <= MAX_NAME and len(found) < MAX_METRICS:
                        found[full] = float(each)
        counts = [
            record.items[self._weighted_by]
            for _, record in records
            if self._weighted_by in record.items
        ]
        n = counts[0] if counts else 0
        is_count = isinstance(n, (int, float)) and math.isfinite(n) and n >= 0
        return int(n) if is_count else 0, found


def open_client(
    loaded: Any, about: Header, state: bytes, report: Report, should_stop: ShouldStop
) -> FlowerClient:
    """Return the client of a device."""
    return FlowerClient(loaded, about, state)


# Arrays of the vector, if a rule of Fairbed merges them.

Layout = list[tuple[str, str, tuple[int, ...]]]
"""Key, dtype and shape of each array of the record `arrays`; empty: all of it is raw."""


def split_arrays(records: Records, layout: Layout) -> tuple[Any, Records]:
    """Return the floats of the only record of arrays as one float32 vector, and the rest.

    Raises:
        ClientError: Names, dtypes or shapes are not those of the layout, or a float is not finite.
    """
    if not layout:
        return np.zeros(0, np.float32), records
    name, record = _only(records)
    wanted = {key: (dtype, shape) for key, dtype, shape in layout}
    if list(record.items) != list(wanted):
        raise ClientError(
            f"{name}: must have the arrays {_some(wanted)}, got {_some(record.items)}"
        )
    floats, rest = [], {}
    for key, value in record.items.items():
        dtype, shape = wanted[key]
        got = (
            ("bytes", (len(value),))
            if isinstance(value, bytes)
            else (value.dtype.name, value.shape)
        )
        if got[0] != dtype or (dtype != "bytes" and tuple(got[1]) != tuple(shape)):
            raise ClientError(
                f"{name}.{key}: must be {dtype} of shape {list(shape)}, got {got[0]} of shape "
                f"{list(got[1])}"
            )
        if dtype.startswith("float"):
            with np.errstate(over="ignore"):  # an infinity is refused below
                flat = np.asarray(value, np.float32).reshape(-1)
            if not np.isfinite(flat).all():
                at = int(np.flatnonzero(~np.isfinite(flat))[0])
                raise ClientError(f"{name}.{key}: must be finite, got {flat[at]} at place {at}")
            floats.append(flat)
        else:
            rest[key] = value
    vector = np.concatenate(floats) if floats else np.zeros(0, np.float32)
    others = {n: dataclasses.replace(r, items=rest) if n == name else r for n, r in records.items()}
    return np.ascontiguousarray(vector, "<f4"), others


def join_arrays(vector: Any, raw: Records, layout: Layout) -> Records:
    """Return records with the floats of a vector in their record of arrays, in order.

    Raises:
        ClientError: The vector has another size than the layout.
    """
    if not layout:
        return raw
    name, record = _only(raw)
    values, at = np.frombuffer(vector, "<f4"), 0
    wanted = sum(math.prod(shape) for _, dtype, shape in layout if dtype.startswith("float"))
    if wanted != values.size:
        raise ClientError(f"vector: must have {wanted} values, as the layout, got {values.size}")
    items: dict[str, Any] = {}
    for key, dtype, shape in layout:
        if not dtype.startswith("float"):
            items[key] = record.items[key]
            continue
        size = math.prod(shape)
        items[key] = values[at : at + size].astype(dtype).reshape(shape)
        at += size
    return {n: dataclasses.replace(r, items=items) if n == name else r for n, r in raw.items()}


def _only(records: Records) -> tuple[str, Record]:
    found = [(name, record) for name, record in records.items() if record.kind == "arrays"]
    if len(found) != 1:
        raise ClientError(f"records: must have one record of arrays to merge, got {len(found)}")
    return found[0]


def _some(names: Mapping[str, Any]) -> str:
    shown = ", ".join(list(names)[:4])
    return f"{shown}, ... ({len(names)})" if len(names) > 4 else shown or "none"
