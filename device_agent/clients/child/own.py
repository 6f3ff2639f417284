"""A class of the user as a client: splits and joins its arrays, and checks all that it returns.

docs/own-client.md has the contract of the class. Floats of any width are the vector, in the order
of the task; all other arrays, and bytes, are one record `arrays` of the raw part.
"""

import importlib
import inspect
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairbed.device_agent.clients.child.frames import Header, Parts
from fairbed.device_agent.clients.child.kinds import Answer, ClientError, Report, ShouldStop
from fairbed.wire.records import Record, Records, RecordsError, decode_records, encode_records

ARRAYS, VALUES = "arrays", "values"
"""Names of the records: arrays of the model or the state, and plain values of the state."""

MAX_METRICS, MAX_NAME = 64, 64
MAX_METRIC = 1e30
"""Bounds of `wire.messages.Metrics`."""

Arrays = list[Any] | dict[str, Any]


@dataclass
class Context:
    """What a client knows of its device and its run."""

    device: str
    """Name of the device."""
    number: int
    """Number of the device, from 0."""
    count: int
    """Devices that are numbered."""
    folder: str
    """Own data of the device, or empty."""
    run: str
    options: dict[str, Any]
    """Hyperparameters of the client, `training.client_options`."""
    state: dict[str, Any]
    """Arrays, bytes, numbers and texts that last between rounds, on the device alone."""
    seed: int = 0
    """Of this training or evaluation: another one in each round and on each device."""
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    """Those of the round: `epochs`, `batch_size`, `learning_rate` and the others."""
    files: dict[str, str] = field(default_factory=dict)
    ends_at: float = math.inf
    report: Report = lambda share: None
    """Reports the share of the work that is done, 0 to 1."""
    should_stop: ShouldStop = lambda: False
    """Whether the deadline has passed: return soon, or the process ends."""

    @property
    def deadline(self) -> float:
        """Seconds that are left until the deadline, at least 0."""
        return max(0.0, self.ends_at - time.monotonic())

    def examples(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return x and y of the training examples, read from the disk; None without data."""
        return self._pair("x", "y")

    def test_examples(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Return x and y of the test examples, read from the disk; None without any."""
        return self._pair("x_test", "y_test")

    def _pair(self, x: str, y: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
        if x not in self.files or y not in self.files:
            return None
        return _mapped(self.files[x]), _mapped(self.files[y])


def _mapped(path: str) -> NDArray[Any]:
    found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    return found


# Arrays of a client as vector and raw part.


@dataclass(frozen=True)
class Layout:
    """The arrays of a task in the order of the client."""

    entries: tuple[tuple[str, str, tuple[int, ...]], ...]
    """Name, dtype and shape of each."""
    is_list: bool

    @classmethod
    def of(cls, header: Header) -> "Layout":
        """Return the layout in the header of the frame `open`."""
        entries = ((name, dtype, tuple(shape)) for name, dtype, shape in header["arrays"])
        return cls(tuple(entries), bool(header.get("is_list")))

    def joined(self, vector: memoryview, raw: memoryview) -> Arrays:
        """Return the arrays of a model, writable and shared with nothing else.

        Raises:
            ClientError: The payload is not of this task.
        """
        values = np.frombuffer(vector, "<f4")
        others = decode_records(raw)[ARRAYS].items if len(raw) else {}
        found, at = dict[str, Any](), 0
        for name, dtype, shape in self.entries:
            if dtype.startswith("float"):
                size = math.prod(shape)
                part = values[at : at + size].reshape(shape)
                found[name] = part if dtype == "float32" else part.astype(dtype)
                at += size
            elif name not in others:
                raise ClientError(f"model: must have the array {name}, got none")
            else:
                value = others[name]
                found[name] = value if isinstance(value, bytes) else np.array(value, dtype)
        if at != values.size:
            raise ClientError(f"model: must have {at} float values, got {values.size}")
        return list(found.values()) if self.is_list else found

    def split(self, arrays: Any, where: str) -> tuple[NDArray[np.float32], bytes]:
        """Return the vector, shape (n_values,), and the raw part of what a client returned.

        Raises:
            ClientError: An array is missing, is another one, or has a value that is not finite.
        """
        named = self._named(arrays, where)
        vector = np.empty(
            sum(math.prod(s) for _, d, s in self.entries if d.startswith("float")), "<f4"
        )
        others, at = dict[str, Any](), 0
        for name, dtype, shape in self.entries:
            here = f"{where}: array {name}"
            if dtype == "bytes":
                if not isinstance(named[name], (bytes, bytearray, memoryview)):
                    raise ClientError(f"{here}: must be bytes, got {_kind_of(named[name])}")
                others[name] = named[name]
                continue
            array = _array(named[name], here)
            if array.shape != shape:
                raise ClientError(f"{here}: must have the shape {shape}, got {array.shape}")
            if dtype.startswith("float"):
                if array.dtype.kind != "f":
                    raise ClientError(f"{here}: must be {dtype}, got {array.dtype.name}")
                part = vector[at : at + array.size].reshape(shape)
                with np.errstate(over="ignore"):
                    part[...] = array
                if not np.isfinite(part).all():
                    place = tuple(int(i) for i in np.argwhere(~np.isfinite(part))[0])
                    raise ClientError(
                        f"{here}: every value must be finite as float32, got {array[place]} at "
                        f"{place}"
                    )
                at += array.size
            else:
                if array.dtype.name != dtype:
                    raise ClientError(f"{here}: must be {dtype}, got {array.dtype.name}")
                others[name] = array
        raw = encode_records({ARRAYS: Record("arrays", others)}) if others else b""
        return vector, raw

    def _named(self, arrays: Any, where: str) -> dict[str, Any]:
        names = [name for name, _, _ in self.entries]
        if isinstance(arrays, Mapping):
            if set(arrays) != set(names):
                lost = [name for name in names if name not in arrays]
                more = [name for name in arrays if name not in names]
                what = f"{lost[0]!r:.60} is missing" if lost else f"{more[0]!r:.60} is unknown"
                raise ClientError(f"{where}: must have the arrays that fit was given, but {what}")
            return dict(arrays)
        if not isinstance(arrays, (list, tuple)):
            raise ClientError(
                f"{where}: must be a list or a dict of arrays, got {_kind_of(arrays)}"
            )
        if len(arrays) != len(names):
            raise ClientError(f"{where}: must have {len(names)} arrays, got {len(arrays)}")
        return dict(zip(names, arrays, strict=True))


def _array(value: Any, where: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as exc:
        raise ClientError(f"{where}: must be an array, got {_kind_of(value)}: {exc}") from exc
    if array.dtype.kind not in "fiub":
        raise ClientError(
            f"{where}: must be an array of floats, integers or booleans, got dtype "
            f"{array.dtype.name:.40}"
        )
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        raise ClientError(f"{where}: must have at most 64 bits, got {array.dtype.name}")
    return array


def _kind_of(value: Any) -> str:
    return f"{type(value).__name__:.60}"


# Numbers that a client returned.


def _count(value: Any, where: str, least: int) -> int:
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if not is_number or isinstance(value, bool) or not float(value).is_integer() or value < least:
        raise ClientError(f"{where}: must be a whole number from {least}, got {value!r:.60}")
    return int(value)


def _metrics(found: Any, where: str) -> tuple[dict[str, float], list[str]]:
    """Return the metrics that can be sent, and a line for each that cannot."""
    if not isinstance(found, Mapping):
        raise ClientError(f"{where}: must be a dict of numbers by name, got {_kind_of(found)}")
    kept, lines = dict[str, float](), list[str]()
    for name, value in found.items():
        number = _number(value)
        is_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
        if not is_name:
            lines.append(f"metric {name!r:.80} left out: its name must be 1 to 64 characters")
        elif number is None:
            lines.append(f"metric {name} left out: must be a finite number, got {value!r:.60}")
        elif len(kept) == MAX_METRICS:
            lines.append(f"metric {name} left out: a client has at most {MAX_METRICS}")
        else:
            kept[name] = number
    return kept, lines


def _number(value: Any) -> float | None:
    try:
        number = float(value.item() if hasattr(value, "item") else value)  # an array of one value
    except (TypeError, ValueError, RuntimeError):
        return None
    is_text = isinstance(value, (str, bytes))
    return None if is_text or not abs(number) <= MAX_METRIC else number


# State.


def decode_state(data: bytes) -> dict[str, Any]:
    """Return the state that `encode_state` encoded; arrays are writable."""
    records = decode_records(data) if data else {}
    found = dict[str, Any]()
    for record in records.values():
        for name, value in record.items.items():
            found[name] = np.array(value) if isinstance(value, np.ndarray) else value
    return found


def encode_state(state: Any) -> bytes:
    """Return the state of a client as records; empty without any.

    Raises:
        ClientError: It has something else than arrays, bytes, numbers, texts and lists of these.
    """
    if not isinstance(state, Mapping):
        raise ClientError(f"state: must be a dict, got {_kind_of(state)}")
    records: Records = {ARRAYS: Record("arrays"), VALUES: Record("config")}
    for name, value in state.items():
        if not isinstance(name, str):
            raise ClientError(f"state: a key must be a text, got {name!r:.60}")
        is_array = hasattr(value, "__array__") and not isinstance(value, np.generic)
        is_array = is_array or isinstance(value, (bytes, bytearray))
        records[ARRAYS if is_array else VALUES].items[name] = value
    return encode_records(records) if state else b""


# The functions that the server calls.


def load(folder: str, path: str, options: Mapping[str, Any]) -> type[Any]:
    """Import the module and return the class.

    Raises:
        ClientError: The path or the class is wrong.
    """
    module, _, name = path.partition(":")
    if not module or not name.isidentifier():
        raise ClientError(f"client: must be package.module:Class, got {path!r:.80}")
    found = getattr(importlib.import_module(module), name, None)
    if not isinstance(found, type):
        classes = [
            key
            for key, value in vars(sys.modules[module]).items()
            if isinstance(value, type) and value.__module__ == module
        ]
        has = f"it has {', '.join(classes[:5])}" if classes else "it has none"
        raise ClientError(f"client: {module} must have the class {name}; {has}")
    if not callable(getattr(found, "fit", None)):
        raise ClientError(f"client: {path} must have the method fit(arrays, config)")
    return found


def initial(loaded: type[Any], header: Header) -> Answer:
    """Return the arrays before round 1, by `initial(config)` of the class.

    Raises:
        ClientError: The class has no such method, or it returns something else.
    """
    make = getattr(loaded, "initial", None)
    if not callable(make):
        raise ClientError(
            f"client: {loaded.__name__} must have a static method initial(config), which returns "
            "the arrays before round 1"
        )
    arrays = make({**header.get("options", {}), "seed": header.get("seed", 0)})
    is_list = isinstance(arrays, (list, tuple))
    if not is_list and not isinstance(arrays, Mapping):
        raise ClientError(f"initial: must return a list or a dict, got {_kind_of(arrays)}")
    named = {str(i): x for i, x in enumerate(arrays)} if is_list else dict(arrays)
    entries = []
    for name, value in named.items():
        if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
            raise ClientError(f"initial: a name must be 1 to 200 characters, got {name!r:.80}")
        if isinstance(value, (bytes, bytearray, memoryview)):
            entries.append((name, "bytes", ()))
        else:
            array = _array(value, f"initial: array {name}")
            entries.append((name, array.dtype.name, array.shape))
    vector, raw = Layout(tuple(entries), is_list).split(named, "initial")
    described = [[name, dtype, list(shape)] for name, dtype, shape in entries]
    answer = {
        "arrays": described,
        "is_list": is_list,
        "has_evaluate": callable(getattr(loaded, "evaluate", None)),
    }
    return answer, {"vector": vector.view(np.uint8).data, "raw": raw}


def open_client(
    loaded: type[Any], about: Header, state: bytes, report: Report, should_stop: ShouldStop
) -> "OwnClient":
    """Construct the client of one device.

    Raises:
        ClientError: The state is damaged.
    """
    try:
        kept = decode_state(state)
    except RecordsError as exc:
        raise ClientError(f"state: {exc}") from exc
    context = Context(
        device=str(about.get("device", "")),
        number=int(about.get("number") or 0),
        count=int(about.get("count") or 1),
        folder=str(about.get("folder") or ""),
        run=str(about.get("run", "")),
        options=dict(about.get("options") or {}),
        state=kept,
        files=dict(about.get("examples") or {}),
        report=report,
        should_stop=should_stop,
    )
    client = loaded(context) if _takes_context(loaded) else loaded()
    return OwnClient(client, context, Layout.of(about))


def _takes_context(loaded: type[Any]) -> bool:
    try:
        parameters = inspect.signature(loaded).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(parameter.kind in kinds for parameter in parameters)


class OwnClient:
    """An object of the user's class; satisfies `kinds.Client`."""

    def __init__(self, client: Any, context: Context, layout: Layout) -> None:
        self._client, self._context, self._layout = client, context, layout
        self.has_evaluate = callable(getattr(client, "evaluate", None))

    @property
    def n_examples(self) -> int | None:
        """The examples of the device by the attribute of the client; None without one.

        Raises:
            ClientError: It is no whole number from 1.
        """
        found = getattr(self._client, "n_examples", None)
        return None if found is None or callable(found) else _count(found, "n_examples", 1)

    def fit(self, header: Header, parts: Parts) -> Answer:
        """Train on the arrays of a model."""
        arrays, config, begun = self._begin(header, parts)
        decoded = time.monotonic()
        found = self._client.fit(arrays, config)
        worked = time.monotonic()
        del arrays
        if not isinstance(found, tuple) or len(found) != 3:
            raise ClientError(
                f"fit: must return (arrays, n_examples, metrics), got {_kind_of(found)}"
            )
        vector, raw = self._layout.split(found[0], "fit")
        n = _count(found[1], "fit: n_examples", 1)
        metrics, lines = _metrics(found[2], "fit: metrics")
        try:
            state = encode_state(self._context.state)
        except RecordsError as exc:
            raise ClientError(f"state: {exc}") from exc
        answer = _answer(n, metrics, lines, begun, decoded, worked)
        return answer, {"vector": vector.view(np.uint8).data, "raw": raw, "state": state}

    def evaluate(self, header: Header, parts: Parts) -> Answer:
        """Evaluate the arrays of a model."""
        arrays, config, begun = self._begin(header, parts)
        config["split"] = header.get("split", "test")
        decoded = time.monotonic()
        found = self._client.evaluate(arrays, config)
        worked = time.monotonic()
        if not isinstance(found, tuple) or len(found) != 3:
            raise ClientError(
                f"evaluate: must return (loss, n_examples, metrics), got {_kind_of(found)}"
            )
        loss, n = _number(found[0]), _count(found[1], "evaluate: n_examples", 0)
        if loss is None or loss < 0.0:
            raise ClientError(f"evaluate: loss must be a number from 0, got {found[0]!r:.60}")
        metrics, lines = _metrics(found[2], "evaluate: metrics")
        return {**_answer(n, metrics, lines, begun, decoded, worked), "loss": loss}, {}

    def _begin(self, header: Header, parts: Parts) -> tuple[Arrays, dict[str, Any], float]:
        begun = time.monotonic()
        try:
            arrays = self._layout.joined(parts["vector"], parts["raw"])
            sent = decode_records(parts["config"]) if len(parts["config"]) else {}
        except (RecordsError, KeyError) as exc:
            raise ClientError(f"model: {exc}") from exc
        context = self._context
        context.seed = int(header.get("seed", 0))
        context.hyperparameters = dict(header.get("hyperparameters") or {})
        context.ends_at = begun + float(header.get("deadline_s", math.inf))
        config: dict[str, Any] = {
            **context.hyperparameters,
            **context.options,
            "round": header.get("round", 0),
        }
        for record in sent.values():
            if record.kind != "arrays":
                config.update(record.items)
        return arrays, config, begun


def _answer(
    n: int, metrics: dict[str, float], lines: list[str], begun: float, decoded: float, worked: float
) -> dict[str, Any]:
    return {
        "n": n,
        "metrics": metrics,
        "warnings": lines[:8],
        "decode_s": decoded - begun,
        "work_s": worked - decoded,
        "encode_s": time.monotonic() - worked,
    }
