"""Processor time of the signatures of one exchange, at the device and at the coordinator.

    fairbed bench signatures [--repeats 2000] [--round-s 0.1] [--devices 20] [--json]

The messages are those of a warm exchange: an update of 1 MB on a fast link is acknowledged four
times, and a device reports five contexts. Each message is encoded by its sender and decoded by its
receiver, plain and signed in turn, so that both meet the same load; the numbers are medians.
`share` is the time of the coordinator for all devices in one round, of the length of the round;
`share_from_device` is the part that checks what devices send.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from fairbed.wire.codec import decode_from_agent, decode_from_coordinator, encode
from fairbed.wire.messages import (
    Capabilities,
    Context,
    FromDevice,
    Grant,
    Hello,
    Hyperparameters,
    Manifest,
    Offer,
    Phases,
    Ping,
    Pong,
    Signed,
    ToDevice,
    Train,
    UploadAck,
    UploadDone,
    UploadResult,
)
from fairbed.wire.signature import Binding, opened, session_keys, sign, task_key

_ID, _SHA256 = bytes(16), bytes(32)
_MODEL = Manifest(
    id=_ID, kind="model", size_bytes=1_000_000, chunk_bytes=262_144, sha256=_SHA256, name="1f-3"
)
_UPDATE = Manifest(id=_ID, kind="update", size_bytes=1_000_000, chunk_bytes=262_144)
_PHASES = Phases(
    download_s=0.01, load_s=0.0, evaluate_s=0.0, train_s=0.05, train_cpu_s=0.05, encode_s=0.001
)
_CAPABILITIES = Capabilities(
    cores=4, memory_bytes=1 << 30, machine="aarch64", python="3.11", engine="onnxruntime 1.31.1",
    engine_threads=1, agent="0.1.0",
)  # fmt: skip

TO_DEVICE: Sequence[ToDevice] = (
    Train(
        round=3,
        model=_MODEL,
        hyperparameters=Hyperparameters(epochs=1, batch_size=32, learning_rate=0.1),
        seed=1,
        needs_loss=False,
        deadline_s=60.0,
    ),
    Ping(seq=7),
    Grant(round=3, id=_ID, window=4),
    *[UploadAck(id=_ID, received=b"\x0f")] * 4,
    UploadResult(round=3, id=_ID, accepted=True),
)
FROM_DEVICE: Sequence[FromDevice] = (
    Pong(seq=7),
    *[Context(boot=1, seq=9, mu_cores=1.0, downlink_bps=8e6, uplink_bps=4e6, n_k=320)] * 5,
    Offer(
        round=3, manifest=_UPDATE, model=_SHA256, phases=_PHASES, n_k=320, steps=10, was_cold=False
    ),
    UploadDone(round=3, id=_ID, sha256=_SHA256, model=_SHA256),
)
_KEYS = session_keys(
    task_key("secret of the lab", "pi"),
    Binding("run", 1, _SHA256),
    Hello(boot=1, nonce=1, capabilities=_CAPABILITIES),
)


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(prog="fairbed bench signatures", description=__doc__)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--round-s", type=float, default=0.1)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(options.repeats, options.round_s, options.devices)
    if options.json:
        print(msgspec.json.encode(result).decode())
    else:
        for key, value in result.items():
            print(f"{key:<26}{value:.4g}")
    return 0


def measure(repeats: int, round_s: float, devices: int) -> dict[str, float]:
    """Return medians in microseconds, ratios and bytes."""
    result = {
        **_direction("to_device", TO_DEVICE, _KEYS.to_device, decode_from_coordinator, repeats),
        **_direction("from_device", FROM_DEVICE, _KEYS.from_device, decode_from_agent, repeats),
    }
    result["device_us"] = result["from_device_sign_us"] + result["to_device_check_us"]
    result["coordinator_us"] = result["to_device_sign_us"] + result["from_device_check_us"]
    result["share"] = 1e-6 * devices * result["coordinator_us"] / round_s
    result["share_from_device"] = 1e-6 * devices * result["from_device_check_us"] / round_s
    return result


def _direction(
    name: str,
    messages: Sequence[ToDevice | FromDevice],
    key: bytes,
    decode: Callable[[bytes], object],
    repeats: int,
) -> dict[str, float]:
    plain = [encode(message) for message in messages]
    signed = [encode(sign(message, key)) for message in messages]
    timed = _medians_us(
        {
            "encode": lambda: [encode(message) for message in messages],
            "sign": lambda: [encode(sign(message, key)) for message in messages],
            "decode": lambda: [decode(payload) for payload in plain],
            "check": lambda: _open_all(signed, decode, key),
        },
        repeats,
    )
    return {
        f"{name}_messages": len(messages),
        f"{name}_bytes": (sum(map(len, signed)) - sum(map(len, plain))) / len(messages),
        f"{name}_sign_us": timed["sign"] - timed["encode"],
        f"{name}_check_us": timed["check"] - timed["decode"],
        f"{name}_ratio": (timed["sign"] + timed["check"]) / (timed["encode"] + timed["decode"]),
    }


def _open_all(
    signed: Sequence[bytes], decode: Callable[[bytes], object], key: bytes
) -> list[object]:
    found = list[object]()
    for payload in signed:
        message = decode(payload)
        assert isinstance(message, Signed)
        found.append(decode(opened(message, key)))
    return found


def _medians_us(steps: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the median time of each step, microseconds; the steps take turns."""
    times = {name: np.zeros(repeats) for name in steps}
    for i in range(repeats):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            times[name][i] = time.perf_counter() - started
    return {name: 1e6 * statistics.median(values.tolist()) for name, values in times.items()}
