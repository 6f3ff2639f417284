"""Count what a warm round costs: python tools/measure_costs.py [--json] [--write --reason TEXT].

Times move with the machine, counts do not: calls of the product's functions, messages, bytes that
are hashed, copied and allocated, imported modules. A real coordinator, real agents and a broker in
memory run in one process, on Python 3.11. Without options, the counts are printed beside those of
the table, tests/costs.json, and the status is 1 if one is above it; `--write` replaces the table
and keeps the reason with it.

* round: all devices of `DEVICES` train once and exchange a model of one chunk.
* exchange: what one more device adds to a round.
* chunk: what one more chunk adds to a download and an upload, without threads and timers: exact.
* message: encoding and decoding of each message of the wire: calls, exact, and bytes allocated.
* peak: bytes that a warm round holds at most beyond what it found: `objects` with a model of 5 kB,
  and per byte of a large model and device.
* copied: bytes that frames and buffers of a download and an upload take, per byte of the blob.
* modules: what `fairbed run` and the processes of its agents import before the first round has
  ended, of the product by name, of other packages their number.

The counts of a round are the least of some warm rounds, function by function: a timer that falls
into one of them does not count.
"""

import argparse
import gc
import hashlib
import os
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar
from unittest import mock

import anyio
import msgspec
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fairbed.coordinator.task.catalogue import load_task  # noqa: E402
from fairbed.wire.artifact import Artifact  # noqa: E402
from fairbed.wire.chunks import chunk_slice, decode_chunk, encode_chunk, manifest_of  # noqa: E402
from fairbed.wire.codec import decode, encode  # noqa: E402
from fairbed.wire.transfer import Download, Upload, UploadReceiver  # noqa: E402
from tests.coordinator.lab import PATIENT, WHOLE_FLEET, Lab, lab, make_config  # noqa: E402
from tests.idle_time import StillLoop, busy_threads_counted  # noqa: E402
from tests.wire.messages import MESSAGES  # noqa: E402

TABLE = ROOT / "tests" / "costs.json"
PYTHON = (3, 11)
"""Other versions count comprehensions differently."""
DEVICES = 3
WARM, ROUNDS = 3, 3
"""The first round that is counted, and how many are."""
TOLERANCE = 0.03
"""A round may have so many more calls than its table: a thread that is slower polls once more."""
OTHERS = 10
"""A start may import so many more modules of other packages: their releases and systems differ."""
FALL = 0.05
"""A round with so many fewer calls needs a lower table."""
REUSED = 0.2
"""A message may allocate so many more bytes: Python keeps small objects, and takes them again."""
PEAK = 0.15
"""The peak of a round may differ by so much: a thread ends a little earlier or later."""
PEAK_ROUNDS = 8
"""Rounds of which the least peak counts."""
LARGE_FEATURES = 20_000
"""Of examples of softmax regression whose model, 0.8 MB, is large beside all objects of a round."""
CHUNKS, MORE_CHUNKS = 8, 24
COPIED_CHUNK_BYTES = 1 << 18
"""Large enough that objects beside the bytes of a chunk do not count."""
PARTS = {
    "coordinator": "coordinator",
    "device_agent": "agent",
    "wire/transport": "client",
    "wire": "wire",
}
"""Part by the folder of a function; the longest folder decides."""

START = """
name = "start"
rounds = 1
[data]
dataset = "synthetic"
[model]
name = "softmax"
[selection]
policy = "uniform"
per_round = 1
[emulation]
backend = "process"
[[fleet]]
name = "agent"
count = 1
"""
"""A run of one device, for its imports."""
MEASURE_S, START_S = 300.0, 120.0
"""Longest time of all counts, and of that run."""
PRODUCT = "fairbed"
NOT_COUNTED = frozenset(
    {PRODUCT, "_distutils_hack", "imported package", "sitecustomize", "usercustomize"}
    | sys.stdlib_module_names
)
"""Packages beside the others: Python's own, those of an environment, and the title of the list."""

Calls = dict[str, float]
"""Calls by `path:function`."""
Modules = dict[str, int]
"""1 for each module of the product, and the number of modules of each other package."""


class Costs(msgspec.Struct, frozen=True):
    """The table."""

    round: Calls
    exchange: dict[str, float]
    """Calls of one more device, by part."""
    chunk: Calls
    message: dict[str, int]
    """Calls by name of a message."""
    packets: int
    """Of a round."""
    hashed: dict[str, float]
    """SHA-256 in a round by part, bytes per byte of the model and device."""
    modules: dict[str, Modules]
    """Imported before the end of the first round, by kind of process."""
    allocated: dict[str, int] = {}
    """Bytes at the peak of encoding and decoding, by name of a message."""
    peak: dict[str, float] = {}
    """Bytes that a round allocates at its peak: `objects`, and `model` per byte and device."""
    copied: dict[str, float] = {}
    """Of a download and an upload, bytes per byte of the blob: `frames` at both ends, `buffers`."""
    reasons: tuple[str, ...] = ()
    """Why the table changed, the newest last."""


class Counting:
    """Counts calls of the product's functions while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.codes: Counter[CodeType] = Counter()

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        """Note one call; a call by a test's stand-in, such as the broker in memory, is not ours."""
        if event != "call" or not self.is_on:
            return
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.endswith("memory.py"):
            self.codes[frame.f_code] += 1

    def take(self) -> Calls:
        """Return the calls since the last one by name, of the product only."""
        codes, self.codes = self.codes, Counter()
        calls: Counter[str] = Counter()
        for code, count in codes.items():
            path = Path(code.co_filename).resolve()
            name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            if part_of(name) is not None:
                calls[f"{name}:{getattr(code, 'co_qualname', code.co_name)}"] += count
        return dict(calls)


def part_of(name: str) -> str | None:
    """Return the part of a function; None if it is not of a live round's processes."""
    folders = [folder for folder in PARTS if name.startswith(f"{folder}/")]
    return PARTS[max(folders, key=len)] if folders else None


@contextmanager
def counting() -> Iterator[Counting]:
    """Count in all threads that start in the context, and in this one."""
    found = Counting()
    threading.setprofile(found.note)
    sys.setprofile(found.note)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def measure() -> Costs:
    """Return the counts of this checkout."""
    calls, packets, _ = count_round(DEVICES)
    more, _, _ = count_round(2 * DEVICES)
    _, _, hashed = count_round(DEVICES, features=1000)
    return Costs(
        round=calls,
        exchange={
            part: (count - by_part(calls).get(part, 0)) / DEVICES
            for part, count in by_part(more).items()
        },
        chunk=count_chunk(),
        message={name: count_message(name) for name in sorted(MESSAGES)},
        allocated={name: allocated_by(name) for name in sorted(MESSAGES)},
        peak=count_peak(),
        copied=count_copies(),
        packets=packets,
        hashed=hashed,
        modules=count_modules(),
    )


def measure_apart() -> Costs:
    """Return the counts of this checkout, from a process that has done nothing else.

    What Python keeps and takes again depends on what the process did before.
    """
    done = subprocess.run(
        [sys.executable, __file__, "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=MEASURE_S,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=Costs)


def count_modules() -> dict[str, Modules]:
    """Return what a headless run imports before its first round has ended, and what an agent does.

    The interpreter names each import on stderr, which is the log of the fork server and of the
    agents, too. An agent has the modules of the fork server and its own.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "start.toml").write_text(START, encoding="utf-8")
        command = [sys.executable, "-m", "fairbed.testbed.cli.main", "run", "start.toml"]
        done = subprocess.run(
            [*command, "--headless", "--json", "--out", "run"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"},
            capture_output=True,
            encoding="utf-8",
            timeout=START_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        logs = [folder / "run" / "logs" / f"{log}.log" for log in ("fork-server", "agent-1")]
        of_agent = "".join(log.read_text(encoding="utf-8") for log in logs)
    return {
        "run": modules_in(done.stderr.partition("\nround 1/1")[0]),
        "agent": modules_in(of_agent),
    }


def modules_in(log: str) -> Modules:
    """Return the imports of a process without those of Python's own library."""
    lines = (line for line in log.splitlines() if line.startswith("import time:"))
    names = {line.rpartition("|")[2].strip() for line in lines}
    packages = Counter(name.partition(".")[0] for name in names)
    others = {
        package: count
        for package, count in packages.items()
        # A name that Python or a system only tries to import is in the log, too.
        if package not in NOT_COUNTED
        and not package.startswith("_sysconfigdata")
        and find_spec(package) is not None
    }
    own = dict.fromkeys((name for name in names if name.partition(".")[0] == PRODUCT), 1)
    return dict(sorted((own | others).items()))


def count_round(devices: int, features: int = 60) -> tuple[Calls, int, dict[str, float]]:
    """Return calls, packets and hashed bytes of a warm round.

    Args:
        devices: All take part.
        features: Of an example of softmax regression with 10 classes.
    """
    artifact = load_task("softmax", (features,), 10)
    rounds: list[tuple[Calls, int, Counter[str]]] = []
    hashed: Counter[str] = Counter()
    packets = 0

    def sha256(data: Any = b"", **options: Any) -> Any:
        name = sys._getframe(1).f_code.co_filename
        path = Path(name).resolve()
        part = part_of(str(path.relative_to(ROOT))) if path.is_relative_to(ROOT) else None
        hashed[part or "other"] += memoryview(data).nbytes
        return real(data, **options)

    def on_progress(progress: Any) -> None:
        nonlocal packets
        counter.is_on = progress.round.round >= WARM - 1
        if progress.round.round >= WARM:
            rounds.append((counter.take(), packets, Counter(hashed)))
        packets = 0
        hashed.clear()

    def watch(place: Lab) -> None:
        route = place.broker.route

        def counted(*packet: Any) -> None:
            nonlocal packets
            packets += 1
            route(*packet)

        place.broker.route = counted  # type: ignore[assignment,method-assign]
        place.on_progress = on_progress

    real = hashlib.sha256
    with counting() as counter, mock.patch("hashlib.sha256", sha256):
        run_rounds(artifact, devices, WARM + ROUNDS - 1, watch)
    size = artifact.spec.layout.size_bytes
    calls = least(calls for calls, _, _ in rounds)
    per_byte = {
        part: round(min(found[part] for _, _, found in rounds) / size / devices, 2)
        for part in sorted({*PARTS.values()})
    }
    return calls, min(count for _, count, _ in rounds), per_byte


def run_rounds(artifact: Artifact, devices: int, rounds: int, watch: Callable[[Lab], None]) -> None:
    """Run rounds of all devices in this process; `watch` sees the place before the first one."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with lab(Path(folder), agents=devices, artifact=artifact) as place:
                watch(place)
                selection = msgspec.structs.replace(WHOLE_FLEET, per_round=devices)
                patient = msgspec.structs.replace(PATIENT, min_devices=devices)
                await place.run(make_config(rounds, selection=selection, round=patient))

    with busy_threads_counted():
        anyio.run(run, backend_options={"loop_factory": StillLoop})


def count_peak() -> dict[str, float]:
    """Return the bytes that a warm round allocates at its peak, with a small and a large model."""
    size, of_small = _peak_of(60)
    large_size, of_large = _peak_of(LARGE_FEATURES)
    return {
        "objects": of_small,
        "model": round((of_large - of_small) / (large_size - size) / DEVICES, 2),
    }


def _peak_of(features: int) -> tuple[int, int]:
    """Return the bytes of a model, and the least peak of some warm rounds."""
    artifact = load_task("softmax", (features,), 10)
    peaks: list[int] = []
    before = 0

    def on_progress(progress: Any) -> None:
        nonlocal before
        _, peak = tracemalloc.get_traced_memory()
        if progress.round.round >= WARM:
            peaks.append(peak - before)
        gc.collect()
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()

    def watch(place: Lab) -> None:
        place.on_progress = on_progress

    with _tracing(), _one_thread_at_a_time():
        run_rounds(artifact, DEVICES, WARM + PEAK_ROUNDS - 1, watch)
    return artifact.spec.layout.size_bytes, min(peaks)


def least(rounds: Iterator[Calls]) -> Calls:
    """Return the least count of each function, without those that a round did not call."""
    first, *rest = rounds
    kept = {
        name: min(count, *(other.get(name, 0) for other in rest)) for name, count in first.items()
    }
    return {name: count for name, count in sorted(kept.items()) if count}


def by_part(calls: Mapping[str, float]) -> dict[str, float]:
    """Return the calls of each part."""
    found = dict.fromkeys(sorted(set(PARTS.values())), 0.0)
    for name, count in calls.items():
        found[part_of(name) or ""] += count
    return found


def count_chunk() -> Calls:
    """Return the calls that one more chunk adds to a download and an upload, both ends."""
    few, many = count_transfer(CHUNKS), count_transfer(MORE_CHUNKS)
    names = {*few, *many}
    added = {
        name: (many.get(name, 0) - few.get(name, 0)) / (MORE_CHUNKS - CHUNKS) for name in names
    }
    return {name: round(count) for name, count in sorted(added.items()) if count}


def count_transfer(chunks: int) -> Calls:
    """Return the calls of a download and an upload, on a clock that stands still."""
    size = 1024
    data = np.random.default_rng(0).bytes(size * chunks)
    manifest = manifest_of(data, "model", size)
    with counting() as counter:
        counter.is_on = True
        download = Download(manifest)
        wanted = download.start(0.0)
        while wanted:
            wanted = [
                new
                for index in wanted
                for new in download.on_chunk(
                    decode_chunk(
                        encode_chunk(manifest.id, index, data[chunk_slice(manifest, index)])
                    ),
                    0.0,
                )
            ]
        upload, receiver = Upload(manifest, data, None), UploadReceiver(manifest, chunks)
        for index in upload.on_grant(chunks, 0.0):
            if receiver.on_chunk(decode_chunk(upload.frame(index)), 0.0):
                upload.on_ack(receiver.bitmap(), 0.0)
        counter.is_on = False
    return counter.take()


def count_message(name: str) -> int:
    """Return the calls of encoding and decoding one message."""
    with counting() as counter:
        counter.is_on = True
        decode(encode(MESSAGES[name]))
        counter.is_on = False
    return round(sum(counter.take().values(), 0.0))


def allocated_by(name: str) -> int:
    """Return the bytes at the peak of encoding and decoding one message, the least of ten.

    A collection before each takes from Python the small objects that it keeps: how many it has kept
    depends on all that ran before.
    """
    message, sizes = MESSAGES[name], list[int]()
    gc.collect()
    gc.freeze()
    try:
        with _tracing():
            for _ in range(12):
                gc.collect()
                _, size = _allocated(lambda: decode(encode(message)))
                sizes.append(size)
    finally:
        gc.unfreeze()
    return min(sizes[2:])


def count_copies() -> dict[str, float]:
    """Return the bytes allocated by a download and an upload, both ends, per byte of the blob."""
    size = COPIED_CHUNK_BYTES * CHUNKS
    data = np.random.default_rng(0).bytes(size)
    manifest = manifest_of(data, "model", COPIED_CHUNK_BYTES)
    frames = 0
    with _tracing():
        (download, upload, receiver), buffers = _allocated(
            lambda: (
                Download(manifest),
                Upload(manifest, data, None),
                UploadReceiver(manifest, CHUNKS),
            )
        )
        download.start(0.0)
        upload.on_grant(CHUNKS, 0.0)
        for index in range(CHUNKS):
            part = memoryview(data)[chunk_slice(manifest, index)]
            frame, sent = _allocated(partial(encode_chunk, manifest.id, index, part))
            chunk, read = _allocated(partial(decode_chunk, frame))
            _, kept = _allocated(partial(download.on_chunk, chunk, 0.0))
            frames += sent + read + kept
            frame, sent = _allocated(partial(upload.frame, index))
            chunk, read = _allocated(partial(decode_chunk, frame))
            _, kept = _allocated(partial(receiver.on_chunk, chunk, 0.0))
            frames += sent + read + kept
    return {"frames": round(frames / size, 2), "buffers": round(buffers / size, 2)}


@contextmanager
def _tracing() -> Iterator[None]:
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


@contextmanager
def _one_thread_at_a_time() -> Iterator[None]:
    run_sync = anyio.to_thread.run_sync
    limiters: list[anyio.CapacityLimiter] = []

    async def run_alone(work: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if not limiters:
            limiters.append(anyio.CapacityLimiter(1))
        return await run_sync(work, *args, **{**options, "limiter": limiters[0]})

    with mock.patch("anyio.to_thread.run_sync", run_alone):
        yield


T = TypeVar("T")


def _allocated(call: Callable[[], T]) -> tuple[T, int]:
    """Return a result and the bytes that were allocated at the peak of its computation."""
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    result = call()
    _, peak = tracemalloc.get_traced_memory()
    return result, peak - before


def growth(now: Costs, table: Costs) -> list[str]:
    """Return a line for each count that is above its table, with the functions that grew."""
    problems = []
    was, found = by_part(table.round), by_part(now.round)
    if sum(found.values(), 0.0) > sum(was.values(), 0.0) * (1 + TOLERANCE):
        parts = ", ".join(f"{part} {was[part]:.0f} -> {found[part]:.0f}" for part in found)
        problems += [f"a round: {parts} calls", *_grown(now.round, table.round)]
    if now.chunk != table.chunk and sum(now.chunk.values(), 0.0) >= sum(table.chunk.values(), 0.0):
        problems += ["a chunk:", *_grown(now.chunk, table.chunk)]
    for name, count in now.message.items():
        if count > table.message.get(name, 0):
            problems.append(f"message {name}: {table.message.get(name, 0)} -> {count} calls")
    for kind, modules in now.modules.items():
        before = table.modules[kind]
        own, others = _own_and_others(modules)
        own_before, others_before = _own_and_others(before)
        if own > own_before or others > others_before + OTHERS:
            problems += [f"{kind}: {_more_modules(modules, before)}", *_grown(modules, before)]
    for name, size in now.allocated.items():
        if size > table.allocated.get(name, 0) * (1 + REUSED):
            problems.append(f"message {name}: {table.allocated.get(name, 0)} -> {size} bytes")
    for name, peak in now.peak.items():
        if peak > table.peak.get(name, 0) * (1 + PEAK):
            problems.append(f"a round, {name}: {table.peak.get(name, 0):g} -> {peak:g} at the peak")
    for name, share in now.copied.items():
        if share > table.copied.get(name, 0.0) + 0.01:
            problems.append(
                f"{name}: {table.copied.get(name, 0.0)} -> {share} bytes per byte of a blob"
            )
    if now.packets > table.packets:
        problems.append(f"a round: {table.packets} -> {now.packets} messages")
    for part, share in now.hashed.items():
        if share > table.hashed[part] + 0.01:
            problems.append(
                f"{part}: {table.hashed[part]} -> {share} hashed bytes per byte of model"
            )
    return problems


def fall(now: Costs, table: Costs) -> list[str]:
    """Return a line for each count that is so far below its table that the table must follow."""
    problems = []
    was, found = sum(table.round.values(), 0.0), sum(now.round.values(), 0.0)
    if found < was * (1 - FALL):
        problems.append(f"a round: {was:.0f} -> {found:.0f} calls")
    if sum(now.chunk.values(), 0.0) < sum(table.chunk.values(), 0.0):
        problems += ["a chunk:", *_grown(table.chunk, now.chunk)]
    if sum(now.message.values(), 0.0) < sum(table.message.values(), 0.0):
        problems.append("a message needs fewer calls")
    if sum(now.allocated.values()) < sum(table.allocated.values()) * (1 - FALL):
        problems.append("a message allocates less")
    for name, peak in now.peak.items():
        if peak < table.peak.get(name, 0) * (1 - PEAK):
            problems.append(f"a round, {name}: {table.peak.get(name, 0):g} -> {peak:g} at the peak")
    if sum(now.copied.values()) < sum(table.copied.values()) - 0.01:
        problems.append("a transfer copies less")
    if now.packets < table.packets:
        problems.append(f"a round: {table.packets} -> {now.packets} messages")
    for kind, modules in now.modules.items():
        if sum(modules.values()) < sum(table.modules[kind].values()) * (1 - FALL):
            problems.append(f"{kind}: {_more_modules(modules, table.modules[kind])}")
    return problems


def _own_and_others(modules: Modules) -> tuple[int, int]:
    """Return the number of modules of the product and of other packages."""
    own = sum(name.partition(".")[0] == PRODUCT for name in modules)
    return own, sum(modules.values()) - own


def _more_modules(now: Modules, was: Modules) -> str:
    counts = f"{sum(was.values())} -> {sum(now.values())}"
    return f"{counts} modules imported before the end of the first round"


def _grown(now: Mapping[str, float], was: Mapping[str, float]) -> list[str]:
    """Return a line for each function or module with more, the largest growth first."""
    more = {name: count - was.get(name, 0) for name, count in now.items()}
    largest = sorted(more, key=lambda name: (-more[name], name))[:20]
    return [f"    {was.get(n, 0):5g} -> {now[n]:5g}  {n}" for n in largest if more[n] > 0]


def read_table() -> Costs:
    """Return the table of this checkout."""
    return msgspec.json.decode(TABLE.read_bytes(), type=Costs)


def main() -> int:
    """Print or write the counts; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the table")
    parser.add_argument("--reason", help="what a changed table buys")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    options = parser.parse_args()
    if sys.version_info[:2] != PYTHON:
        parser.error(
            f"counts are of Python {'.'.join(map(str, PYTHON))}, got {sys.version.split()[0]}"
        )
    if options.write and not options.reason:
        parser.error("--write: must come with --reason")
    now = measure()
    if options.json:
        print(msgspec.json.encode(now).decode())
        return 0
    table = read_table() if TABLE.exists() else None
    if options.write:
        reasons = (*(table.reasons if table else ()), options.reason)
        text = msgspec.json.format(
            msgspec.json.encode(msgspec.structs.replace(now, reasons=reasons))
        )
        TABLE.write_bytes(text + b"\n")
        return 0
    for part, count in by_part(now.round).items():
        was = by_part(table.round)[part] if table else 0
        more = f"{now.exchange[part]:.0f} for one device more"
        print(f"round, {part:<12} {was:6.0f} -> {count:6.0f} calls; {more}")
    print(f"chunk, both directions {sum(now.chunk.values(), 0.0):.0f} calls")
    print(f"message, median        {np.median(list(now.message.values())):.0f} calls")
    print(f"message, median        {np.median(list(now.allocated.values())):.0f} bytes allocated")
    print(f"round, at the peak     {now.peak['objects']:.0f} bytes of objects")
    print(f"round, at the peak     {now.peak['model']} bytes per byte of model and device")
    for name, share in now.copied.items():
        print(f"copied, {name:<14} {share} bytes per byte of a download and an upload")
    print(f"round                  {now.packets} messages")
    for kind, modules in now.modules.items():
        own, others = _own_and_others(modules)
        print(f"imported, {kind:<12} {own} modules of the product, {others} of other packages")
    for part, size in now.hashed.items():
        print(f"hashed, {part:<14} {size} bytes per byte of model and device")
    problems = growth(now, table) if table else []
    print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
