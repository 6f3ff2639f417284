"""The decoders and printers that `fairbed bench fuzz` feeds, with the inputs to begin with.

An input is fine if it is decoded or refused with an error that the callers of the decoder expect;
any other exception is a crash. Inputs begin as files of the repository (golden messages, profiles,
examples, tasks) and those of `corpus/`: crashes of the past, and inputs that reach rare lines.
"""

import csv
import hashlib
import io
import logging
import re
import struct
import tempfile
import unicodedata
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.segment import Segment
from textual.color import Color

from fairbed import profiles
from fairbed.coordinator.report.markup import tag
from fairbed.coordinator.store import RunReader
from fairbed.coordinator.store.errors import StoreError
from fairbed.coordinator.store.model_files import load_model, sha256_of
from fairbed.coordinator.store.replication import (
    Cursor,
    Replica,
    RowSource,
    decode_cursor,
    decode_page,
    encode_cursor,
    encode_page,
)
from fairbed.coordinator.tui.app import PRINTABLE_ONLY
from fairbed.coordinator.tui.attention import attention
from fairbed.device_agent.errors import DataError
from fairbed.device_agent.examples import OwnData
from fairbed.device_agent.stored_vector import StoredVector, VectorStore
from fairbed.profiles import CellProfile, LinkProfile, Population, Profile, ProfileError
from fairbed.profiles.exchange_log import parse_log_columns, read_exchange_log
from fairbed.profiles.load import kind_of
from fairbed.profiles.traces.columns import parse_columns, read_columns
from fairbed.profiles.traces.files import parse_trace
from fairbed.testbed.experiment.file import ExperimentError, parse_experiment, read_document
from fairbed.wire import codec
from fairbed.wire.artifact import decode_artifact
from fairbed.wire.chunks import HEADER_BYTES, decode_chunk, encode_chunk, manifest_of
from fairbed.wire.codecs import codec_named, pack
from fairbed.wire.codecs import unpack as unpack_vector
from fairbed.wire.console import LOG_FORMAT, LineFormatter, PrintableStream
from fairbed.wire.enrolment import (
    EnrolReply,
    EnrolRequest,
    Problem,
    RenewReply,
    RenewRequest,
    decode_json,
)
from fairbed.wire.errors import DecodeError
from fairbed.wire.graphs import check_graph
from fairbed.wire.messages import MIN_CHUNK_BYTES, Manifest
from fairbed.wire.printable import FORMULA_STARTS, csv_cell, latex, printable
from fairbed.wire.shard import decode_shard, encode_shard, make_shard
from fairbed.wire.tensors import Layout, Tensor, vector_from_bytes
from fairbed.wire.text import NotText, TOMLDecodeError, text_of, toml_of
from fairbed.wire.topics import Topics
from fairbed.wire.transfer import Download, Upload, UploadReceiver
from fairbed.wire.transport.address import parse_url
from fairbed.wire.transport.protocol import packets
from fairbed.wire.transport.protocol.packets import Reader

ROOT = Path(__file__).parents[2]
CORPUS = Path(__file__).parent / "corpus"
GOLDEN = ROOT / "tests" / "wire" / "golden"

MAX_SEED_BYTES = 16_384
"""Longer files of the repository are no seeds: mutations of short ones reach as much, sooner."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """One decoder, or a few of one format."""

    name: str
    decode: Callable[[bytes], object]
    expected: tuple[type[Exception], ...]
    """Errors that callers expect."""
    seeds: Callable[[], Iterator[bytes]]
    """Yields the inputs that mutations begin with."""
    share: float = 1.0
    """Inputs relative to those of a message: fewer for decoders of files, which are slow."""

    def corpus(self) -> list[bytes]:
        """Return all inputs that mutations begin with, each once."""
        kept = sorted((CORPUS / self.name).glob("*"))
        found = [*self.seeds(), *(path.read_bytes() for path in kept)]
        return list(dict.fromkeys(found))


def _files(*patterns: str) -> Callable[[], Iterator[bytes]]:
    def seeds() -> Iterator[bytes]:
        for pattern in patterns:
            for path in sorted(ROOT.glob(pattern)):
                if path.stat().st_size <= MAX_SEED_BYTES:
                    yield path.read_bytes()

    return seeds


# Messages, chunks, packets ------------------------------------------------------------------------

_NARROW = (
    codec.decode_from_device,
    codec.decode_from_agent,
    codec.decode_to_device,
    codec.decode_from_coordinator,
    codec.decode_intent,
    codec.decode_command,
    codec.decode_answer,
    codec.decode_rows_request,
    codec.decode_rows_part,
)


def _messages(data: bytes) -> None:
    """Decode with all decoders; what one accepts must come through once more."""
    for decode in _NARROW:
        with suppress(DecodeError):
            decode(data)
    message = codec.decode(data)
    again = codec.encode(message)
    if codec.encode(codec.decode(again)) != again:
        raise AssertionError("a message changes when it is encoded again")


def _chunks(data: bytes) -> None:
    """Decode a frame as it is, and with its checksum corrected."""
    with suppress(DecodeError):
        decode_chunk(data)
    head, payload = data[: HEADER_BYTES - 4], data[HEADER_BYTES:]
    decode_chunk(head + struct.pack(">I", zlib.crc32(payload, zlib.crc32(head))) + payload)


def _chunk_seeds() -> Iterator[bytes]:
    yield encode_chunk(bytes(16), 0, b"x")
    yield encode_chunk(bytes(range(16)), 4_000_000, bytes(100))


def _packets(data: bytes) -> None:
    """Read a stream in parts, whose sizes the first bytes give."""
    reader, sizes, data = Reader(), data[:4], data[4:]
    at = 0
    for turn in range(2 * len(data) + 2):
        if at >= len(data):
            return
        space = reader.get_buffer()
        if not len(space):
            raise AssertionError("the buffer must not be empty")
        n = min(1 + sizes[turn % len(sizes)], len(space), len(data) - at) if sizes else 1
        space[:n] = data[at : at + n]
        at += n
        reader.buffer_updated(n)
    raise AssertionError("the reader makes no progress")


def _packet_seeds() -> Iterator[bytes]:
    small = (
        "2002 0000",
        "3007 0003742f31 6869",
        "3207 0002c3bc 0102 21",
        "4002 ffff",
        "9005 0007 000180",
        "b002 0008",
        "d000",
        "32ffffff7f 00 03 61 62 63 0009",
    )
    parts = [bytes.fromhex(text) for text in small]
    yield b"\x00\x05\xff\x10" + b"".join(parts)
    for n_bytes in (0, 100, 9_000):
        head = packets.publish_head("fairbed/main/d/pi/up", n_bytes, qos=1, packet_id=3)
        yield b"\xff\xff\xff\xff" + head + bytes(n_bytes)
    huge = packets.publish_head("t", 1_100_000, qos=1, packet_id=3)
    yield b"\xff\xff\xff\xff" + huge + bytes(200)


# Vectors ------------------------------------------------------------------------------------------

_LAYOUT = Layout(
    tensors=(
        Tensor(name="w", shape=(5, 8), offset=0),
        Tensor(name="m", shape=(4,), offset=40, role="buffer"),
    )
)
_BASE = np.linspace(-1.0, 1.0, 44, dtype=np.float32)
_NAMES = ("float16", "int8", "top-k")


def _codec(byte: int) -> Any:
    return codec_named(_NAMES[byte % len(_NAMES)], top_k=8)


def _vectors(data: bytes) -> None:
    """Decode a vector; the first byte chooses the codec, and whether values are changes."""
    choice = data[0] if data else 0
    if choice % 8 == 7:
        vector_from_bytes(data[1:], 44)
        return
    base = _BASE if choice & 64 else None
    vector = unpack_vector(data[1:], _codec(choice), _LAYOUT, base)
    if vector.shape != (44,) or not np.isfinite(vector).all():
        raise AssertionError("a decoded vector must be finite and of the shape of the layout")


def _vector_seeds() -> Iterator[bytes]:
    rng = np.random.default_rng(0)
    for choice in range(len(_NAMES)):
        made = _codec(choice)
        yield bytes((choice,)) + pack(made, 40, made.encode(_BASE[:40], rng), _BASE[40:])
        yield bytes((63 + choice,)) + pack(made, 40, made.encode(_BASE[:40], rng), _BASE[40:])
    yield b"\x07" + _BASE.tobytes()


# The state machines of a transfer -----------------------------------------------------------------


def _transfers(data: bytes) -> str:
    """Let the bytes be the events of a download, of an upload and of its receiver.

    Any order of events may be refused, and must end with the whole blob or without it.

    Returns:
        A text of how far they came, which is an outcome.
    """
    size = int.from_bytes(data[:2], "little") % 9_000 + 1
    blob = bytes(i * 31 & 0xFF for i in range(256)) * (size // 256 + 1)
    blob = blob[:size]
    manifest = manifest_of(blob, "model", MIN_CHUNK_BYTES)
    update = Manifest(
        id=manifest.id, kind="update", size_bytes=size, chunk_bytes=manifest.chunk_bytes
    )
    window = 1 + (data[2] if len(data) > 2 else 3) % 8
    download, upload = Download(manifest, window), Upload(update, blob)
    receiver = UploadReceiver(update, window)
    now, wanted, due = 0.0, list(download.start(0.0)), list[int]()
    for at in range(3, len(data) - 1, 2):
        event, value = data[at], data[at + 1]
        now += value / 16.0
        index = value % (manifest.chunk_count + 1)
        try:
            match event % 9:
                case 0:
                    wanted += download.on_chunk(decode_chunk(upload.frame(index)), now)
                case 1:
                    frame = encode_chunk(manifest.id, value, blob[: value + 1])
                    wanted += download.on_chunk(decode_chunk(frame), now)
                case 2:
                    wanted += download.tick(now)
                case 3:
                    wanted += download.on_link_up(now)
                case 4:
                    due += upload.on_grant(1 + value % 8, now)
                case 5:
                    due += upload.on_ack(receiver.bitmap(), now)
                case 6:
                    due += upload.on_ack(data[at : at + 1 + value % 4], now)
                case 7:
                    due += upload.tick(now) if value & 1 else upload.on_link_up(now)
                case _:
                    for one in due[: 1 + value % 8]:
                        receiver.on_chunk(decode_chunk(upload.frame(one)), now)
                    del due[: 1 + value % 8]
        except DecodeError:
            pass
        if any(not 0 <= one < manifest.chunk_count for one in (*wanted, *due)):
            raise AssertionError("a chunk that the blob does not have is requested")
        wanted.clear()
    for part in (download, receiver):
        if part.is_complete and bytes(part.data) != blob:
            raise AssertionError("a complete blob must be the blob that was sent")
    parts = (download.is_complete, receiver.is_complete, upload.is_acknowledged)
    return f"{parts} {download.rerequests > 0} {upload.resent > 0} {len(due)}"


def _transfer_seeds() -> Iterator[bytes]:
    yield b"\x00\x20\x03" + bytes(
        (0, 0, 0, 1, 0, 2, 2, 255, 4, 3, 8, 8, 5, 1, 8, 8, 5, 1, 7, 1, 3, 9)
    )
    yield b"\xff\x10\x00" + bytes(range(64))


# Tasks and data -----------------------------------------------------------------------------------


def _artifacts(data: bytes) -> None:
    """Decode a task, and check its graphs as the device does."""
    artifact = decode_artifact(data)
    for graph in (artifact.train, artifact.evaluate):
        if graph:
            check_graph(graph)


def _graph_seeds() -> Iterator[bytes]:
    for blob in _files("coordinator/task/artifacts/*.task")():
        artifact = decode_artifact(blob)
        yield artifact.train
        yield artifact.evaluate


def _shards(data: bytes) -> None:
    shard = decode_shard(data)
    shard.arrays()
    if shard.held_out is not None:
        shard.held_out.arrays()


def _shard_seeds() -> Iterator[bytes]:
    labels, floats = np.array([0, 1, 2]), np.array([0.5, 1.0, -1.0], np.float32)
    for x in (np.ones((3, 2, 2), np.uint8), np.ones((3, 4)), np.ones((3, 2), np.int64)):
        first = make_shard(x, labels)
        yield encode_shard(first)
        yield encode_shard(msgspec.structs.replace(make_shard(x, floats), held_out=first))


# Texts --------------------------------------------------------------------------------------------

_TOPICS = Topics()


def _texts(data: bytes) -> None:
    """Read a text as a topic, and as the address of a broker."""
    text = data.decode("utf-8", "replace")
    for parse in (_TOPICS.device_of, _TOPICS.operator_of, _TOPICS.viewer_of, parse_url):
        try:
            parse(text)
        except (DecodeError, ValueError) as exc:
            if len(str(exc).splitlines()) != 1:
                raise AssertionError("an error must be one line") from exc


def _text_seeds() -> Iterator[bytes]:
    t = _TOPICS
    for topic in (t.up("pi-1"), t.upload("pi-1"), t.command("alice"), t.watch("v1")):
        yield topic.encode()
    yield b"mqtts://user:p%40ss@[::1]:8883?cafile=/etc/ca.pem&client=direct"
    yield b"mqtt://broker.example"


_JSON: tuple[type[Any], ...] = (EnrolRequest, EnrolReply, RenewRequest, RenewReply, Problem)


def _enrolment(data: bytes) -> None:
    errors = list[str]()
    for kind in _JSON:
        try:
            decode_json(data, kind)
        except DecodeError as exc:
            errors.append(str(exc))
    if len(errors) == len(_JSON):
        raise DecodeError(errors[0])


def _enrolment_seeds() -> Iterator[bytes]:
    yield msgspec.json.encode(
        EnrolRequest(token="a" * 32, host_name="pi", agent="fairbed 1", machine="aarch64")
    )
    yield msgspec.json.encode(
        EnrolReply(
            lab="lab",
            name="pi",
            role="device",
            tenant="main",
            user="pi",
            password="b" * 32,
            port=8883,
        )
    )
    yield msgspec.json.encode(RenewRequest(name="pi", password="b" * 32, agent="x"))
    yield msgspec.json.encode(
        RenewReply(standing="revoked", name="pi", lab="lab", version="1", since_s=1.0)
    )
    yield msgspec.json.encode(Problem(problem="no"))


def _traces(data: bytes) -> None:
    """Read a trace as one of our formats; the first byte may choose another reader."""
    match data[0] % 4 if data else 0:
        case 1:
            read_columns(data[1:], "x.csv", _COLUMNS)
        case 2:
            read_exchange_log(data[1:], "x.csv", _LOG)
        case 3:
            read_exchange_log(data[1:], "x.csv", _WIDE)
        case _:
            parse_trace(data[1:], "x.csv")


_COLUMNS = parse_columns("t=at,down=dl_kbps")
_LOG = parse_log_columns("device=dev,total=took_s")
_WIDE = parse_log_columns("wide=took_s|dl_kbps:s")
_TABLE = b"at;dev;dl_kbps;took_s\n2024-05-01T08:00:00;a;1;2\n2024-05-01T08:00:01;b;3;4\n"


def _trace_seeds() -> Iterator[bytes]:
    for choice in (b"\x01", b"\x02", b"\x03"):
        yield choice + _TABLE
    yield b"\x00t_s,downlink_bps,uplink_bps\n0,1e6,2e5\n1,2e6,1e5\n"
    yield b"\x00# fairbed trace\n# period_s = 10\nt_s,downlink_bps\n0,5\n"
    yield b"\x000\n3\n3\n17\n250\n1004\n"


# Files --------------------------------------------------------------------------------------------

_FOLDER = Path(tempfile.gettempdir())


@contextmanager
def scratch(folder: Path) -> Iterator[None]:
    """Let the decoders of files write their inputs into `folder`."""
    global _FOLDER
    before, _FOLDER = _FOLDER, folder
    try:
        yield
    finally:
        _FOLDER = before


def _written(name: str, data: bytes) -> Path:
    path = _FOLDER / name
    path.write_bytes(data)
    return path


_LOAD: dict[type, Callable[[Path], object]] = {
    Profile: profiles.load,
    LinkProfile: profiles.load_link,
    Population: profiles.load_population,
    CellProfile: profiles.load_cell,
}


def _profiles(data: bytes) -> None:
    path = _written("profile.toml", data)
    problems = profiles.check(path)
    if any(len(line.splitlines()) != 1 for line in problems):
        raise AssertionError("a problem must be one line")
    if problems:
        raise ProfileError(problems[0])
    _LOAD[kind_of(path)](path)


def _experiments(data: bytes) -> None:
    path = _written("experiment.toml", data)
    try:
        experiment = parse_experiment(read_document(path), str(path))
    except ExperimentError as exc:
        if len(str(exc).splitlines()) != 1:
            raise AssertionError(f"an error must be one line, got {exc}") from exc
        raise
    _written("resolved.toml", experiment.resolved_toml().encode())
    if parse_experiment(read_document(_FOLDER / "resolved.toml"), "again") != experiment:
        raise AssertionError("the resolved experiment must be the same experiment")


def _own_data(data: bytes) -> None:
    OwnData(_written("own.npz", data)).count()


def _own_data_seeds() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "own.npz"
        arrays = {"x": np.ones((3, 2), np.float32), "y": np.array([0, 1, 1])}
        for save in (np.savez, np.savez_compressed):
            save(path, **arrays)  # type: ignore[arg-type]  # names of arrays
            yield path.read_bytes()


def _stored_vectors(data: bytes) -> None:
    """Read a vector that outlasts restarts, with its checksum corrected."""
    rest = data[32:]
    _written("personal-model", hashlib.sha256(rest).digest() + rest)
    VectorStore(_FOLDER, "personal model").load(bytes(32), "run", 44)


def _stored_vector_seeds() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as name:
        store = VectorStore(Path(name), "personal model")
        store.save(StoredVector(bytes(32), "run", 3, _BASE))
        yield (Path(name) / "personal-model").read_bytes()


def _model_files(data: bytes) -> None:
    _written("model.safetensors", data)
    load_model(_FOLDER, "model.safetensors", sha256_of(_BASE))


def _model_file_seeds() -> Iterator[bytes]:
    from safetensors.numpy import save

    yield save({"vector": _BASE}, metadata={"round": "1"})


# Stores -------------------------------------------------------------------------------------------


@contextmanager
def _small_run() -> Iterator[Path]:
    """Yield the folder of a run of three devices and two rounds."""
    from benchmarks._synthetic_run import SyntheticRun

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        run = SyntheticRun(folder, 3, rounds=2)
        run.write_for(12.0, speed=1e9)
        run.close()
        yield folder


def _pages(data: bytes) -> None:
    """Decode a page of rows as it is, and packed anew."""
    with suppress(StoreError):
        decode_page(data)
    decode_page(zlib.compress(data, 0))


def _page_seeds() -> Iterator[bytes]:
    with _small_run() as folder, RunReader(folder) as reader:
        page = RowSource(reader).page(Cursor())
        yield zlib.decompress(encode_page(page))


def _replicas(data: bytes) -> None:
    """Write a page of rows into a replica, and read it back."""
    page = decode_page(zlib.compress(data, 0))
    replica = _replica()
    replica.apply(msgspec.structs.replace(page, is_alive=False, has_more=False))
    with RunReader(replica.folder) as reader:
        _read_all(reader)


def _replica() -> Replica:
    """Return the replica of this folder."""
    if _FOLDER not in _REPLICAS:
        folder = _FOLDER / "replica"
        folder.mkdir()
        _REPLICAS[_FOLDER] = Replica(folder)
    return _REPLICAS[_FOLDER]


_REPLICAS: dict[Path, Replica] = {}


def _run_stores(data: bytes) -> None:
    """Read a damaged database."""
    folder = _FOLDER / "damaged"
    folder.mkdir(exist_ok=True)
    for old in folder.glob("run.db*"):
        old.unlink()
    (folder / "run.db").write_bytes(data)
    (folder / "experiment.toml").write_text('name = "damaged"\n', encoding="utf-8")
    with RunReader(folder) as reader:
        _read_all(reader)


def _read_all(reader: RunReader) -> None:
    for read in (
        reader.run,
        reader.devices,
        reader.rounds,
        reader.exchanges,
        reader.metrics,
        reader.events,
        reader.commands,
        reader.alerts,
        reader.counts,
        reader.loss_queries,
        reader.telemetry_latest,
    ):
        read()


def _run_store_seeds() -> Iterator[bytes]:
    import sqlite3

    with _small_run() as folder:
        connection = sqlite3.connect(folder / "run.db")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
        connection.close()
        yield (folder / "run.db").read_bytes()


def _documents(data: bytes) -> None:
    """Read TOML; a document within the bounds takes no stack and no minutes."""
    toml_of(text_of(data))


# Printers -----------------------------------------------------------------------------------------


def _printers(data: bytes) -> str:
    """Print a text of a stranger at every exit: nothing of it controls what shows it.

    Returns:
        Which exits change it, which is an outcome.
    """
    text = data.decode("utf-8", "surrogateescape" if data[:1] < b"\x80" else "replace")
    out, log = io.StringIO(), io.StringIO()
    stream = PrintableStream(out)
    stream.write(text)
    record = logging.LogRecord("n", logging.INFO, "p", 1, "%s", (text,), None)
    log.write(LineFormatter(LOG_FORMAT).format(record))
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerow([csv_cell(text), 1.5])
    page = tag("td", text, title=text)
    (line,) = PRINTABLE_ONLY.apply([Segment(text)], Color(0, 0, 0))
    shown = {
        "stream": out.getvalue().replace("\n", "").replace("\t", ""),
        "log": log.getvalue(),
        "text": printable(text),
        "csv": table.getvalue().removesuffix("\n"),
        "latex": latex(text),
        "html": page,
        "screen": line.text,
    }
    for name, one in shown.items():
        if bad := [c for c in one if not c.isprintable() and unicodedata.category(c) != "Zs"]:
            raise AssertionError(f"{name}: shows {bad[0]!r}")
    (row,) = csv.reader(io.StringIO(table.getvalue()))
    if (
        len(row) != 2
        or row[1] != "1.5"
        or (row[0][:1] in FORMULA_STARTS and not _is_number(row[0]))
    ):
        raise AssertionError(f"csv: {row!r}")
    if page.count("<") != 2 or page.count(">") != 2 or page.count('"') != 2:
        raise AssertionError("html: a text became markup")
    bare = _LATEX_ESCAPES.sub("", shown["latex"])
    if bad := re.findall(r"[\\{}&%$#_~^]", bare):
        raise AssertionError(f"latex: {bad[0]!r} has a meaning")
    notice = attention(text, text, {"TERM": "xterm"})
    if notice.count("\x1b") != 2 or notice.count("\x07") != 1:
        raise AssertionError("a notification has controls of its text")
    return " ".join(name for name, one in shown.items() if one != text)


_LATEX_ESCAPES = re.compile(r"\$\^\{\\dagger\}\$|\\(?:[{}&%$#_]|text\w+\{\})")


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", "").replace("_", "").removesuffix("%"))
    except ValueError:
        return False
    return True


def _printer_seeds() -> Iterator[bytes]:
    yield "=1+1 \x1b]0;title\x07\x1b[2J\x9b31m\r\u202e\u2066 \n\t\0".encode()
    yield b"<script>&\"'</script> \\alpha{%$#_^~}|"
    for text in (
        "-1,000.5",
        "-1e-5",
        "@a",
        "+inf",
        "+1 +1",
        'a"b,c',
        "\u2028\u00a0\u3000",
        "\u2020",
    ):
        yield text.encode()
    yield bytes(range(256))


def _cursor_seeds() -> Iterator[bytes]:
    yield encode_cursor(Cursor(run="run", resumes=1, round=3))


_STORE = (StoreError, OSError)
_WIRE = (DecodeError,)
_TOML = (NotText, TOMLDecodeError)

DECODERS = {
    decoder.name: decoder
    for decoder in (
        Decoder("messages", _messages, _WIRE, _files("tests/wire/golden/*.bin")),
        Decoder("chunks", _chunks, _WIRE, _chunk_seeds),
        Decoder("packets", _packets, _WIRE, _packet_seeds),
        Decoder("vectors", _vectors, _WIRE, _vector_seeds),
        Decoder("transfers", _transfers, _WIRE, _transfer_seeds, 0.5),
        Decoder("artifacts", _artifacts, _WIRE, _files("coordinator/task/artifacts/*.task"), 0.1),
        Decoder("graphs", check_graph, _WIRE, _graph_seeds, 0.1),
        Decoder("shards", _shards, _WIRE, _shard_seeds),
        Decoder("texts", _texts, (), _text_seeds),
        Decoder("printers", _printers, (), _printer_seeds),
        Decoder(
            "documents", _documents, (NotText, TOMLDecodeError), _files("examples/*.toml"), 0.05
        ),
        Decoder("enrolment", _enrolment, _WIRE, _enrolment_seeds),
        Decoder("cursors", decode_cursor, _STORE, _cursor_seeds),
        Decoder("pages", _pages, _STORE, _page_seeds, 0.5),
        Decoder("traces", _traces, (ProfileError,), _trace_seeds, 0.2),
        Decoder(
            "profiles",
            _profiles,
            (ProfileError,),
            _files("profiles/*/*.toml"),
            0.01,
        ),
        Decoder("experiments", _experiments, (ExperimentError,), _files("examples/*.toml"), 0.01),
        Decoder("own-data", _own_data, (DataError,), _own_data_seeds, 0.02),
        Decoder("stored-vectors", _stored_vectors, (), _stored_vector_seeds, 0.05),
        Decoder("model-files", _model_files, _STORE, _model_file_seeds, 0.05),
        Decoder("replicas", _replicas, _STORE, _page_seeds, 0.002),
        Decoder("run-stores", _run_stores, _STORE, _run_store_seeds, 0.002),
    )
}
