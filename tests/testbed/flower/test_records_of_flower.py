"""Records of Flower cross as our own and come back bit for bit, in the app's interpreter."""

import subprocess
from pathlib import Path

import fairbed

CHECK = """
import sys, types
package = types.ModuleType("fairbed")
package.__path__ = [sys.argv[1]]
sys.modules["fairbed"] = package

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from fairbed.device_agent.clients.child.flower_records import (
    MAX_CONFIG_BYTES, decode, encode, from_records, join_message, split_message, to_records,
)

rng = np.random.default_rng(0)
names = [f"{kind}{bits}" for kind in ("float", "int", "uint") for bits in (8, 16, 32, 64)]
arrays = {n: rng.integers(0, 100, (2, 3)).astype(n) for n in names if n != "float8"}
arrays |= {
    "zz": np.array(2.5), "a": np.zeros((0, 4), np.float32), "bool": np.array([True, False]),
    "special": np.array([np.nan, np.inf, -0.0, 5e-324]), "big": np.arange(3, dtype=">f4"),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
}
record = ArrayRecord({k: Array(np.asarray(v)) for k, v in arrays.items()})
record["foreign"] = Array("float32", (2,), "my.tensor", b"\\x00\\xff" * 9)
content = RecordDict({
    "config": ConfigRecord({
        "b": b"\\x00\\x01", "l": [b"a", b""], "s": "\\u00e4", "i": 2**62, "f": 0.1, "t": True,
        "n": float("-inf"), "fs": [1.0, float("inf")], "bs": [True, False],
    }),
    "arrays": record,
    "metrics": MetricRecord({"i": 7, "f": 1e-300, "l": [1, 2], "lf": [0.5]}),
    "large": ConfigRecord({"trees": b"x" * (2 * MAX_CONFIG_BYTES)}),
    "none": ArrayRecord(),
})
raw, rest = split_message(to_records(content))
assert list(raw) == ["arrays", "none", "large"], list(raw)
config = encode(rest)
assert len(config) < MAX_CONFIG_BYTES
again = from_records(join_message(decode(encode(raw)), decode(config)))
assert list(again) == list(content)
for name in ("config", "metrics", "large"):
    assert type(again[name]) is type(content[name])
    assert dict(again[name]) == dict(content[name])
    for key, value in content[name].items():
        assert type(again[name][key]) is type(value), key
assert list(again["arrays"]) == list(record)
for key, array in arrays.items():
    found = again["arrays"][key].numpy()
    assert found.shape == array.shape and found.dtype == array.dtype.newbyteorder("<"), key
    assert found.tobytes() == array.astype(array.dtype.newbyteorder("<")).tobytes(), key
foreign = again["arrays"]["foreign"]
assert foreign == record["foreign"], foreign
print("equal", len(arrays))
"""


def test_records_come_back_bit_for_bit(flower_python: str) -> None:
    root = str(Path(fairbed.__file__).parent)
    ended = subprocess.run(
        [flower_python, "-c", CHECK, root], capture_output=True, timeout=100, check=False, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("equal 17")
