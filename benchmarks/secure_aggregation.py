"""Cost of secure aggregation in an exchange: parts measured here, bytes and seconds computed.

    fairbed bench secure-aggregation [--cohorts 4,10,30,100] [--json]

Measures key agreement, secret sharing and masks with the package `cryptography` on one core, and
computes from them, with the links and boards of the profiles, what the protocol of Bonawitz et al.
(CCS 2017, complete graph) adds to an exchange. docs/decisions/0016-secure-aggregation.md has the
results.
"""

import argparse
import math
import secrets
import time
from collections.abc import Callable

import msgspec
import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Struct

from fairbed import profiles
from fairbed.coordinator.task.catalogue import load_task

MODELS = {"softmax, digits": ("softmax", (64,)), "cnn, 28 x 28": ("cnn", (1, 28, 28))}
LINKS = ("gigabit-ethernet", "wifi-board", "lte-steady")
BOARD = "raspberry-pi-4b"
COHORTS = (4, 10, 30, 100)

PRIME = 2**256 + 297
"""The smallest prime above 2^256: a field that holds secrets of 32 bytes."""
SHARE_BYTES = 33
KEY_BYTES = 32
SEAL_BYTES = 12 + 16
"""Nonce and tag of an encrypted message."""
QUANTISED_BITS = 16
"""Bits of a value before log2(n) more for the sum of n devices."""
MEASURED_THRESHOLD = 20
"""Shares that rebuild a secret. A share takes time proportional to it, a secret to its square."""
DROPPED = 0.1
"""Share of the cohort that sends no masked update."""
BLOCK = 1 << 20
REPEATS = 5


class Measured(Struct, frozen=True, kw_only=True):
    """Times of the parts, on one core of this machine."""

    key_us: float
    """A new key pair (X25519)."""
    agreement_us: float
    """The common secret of two devices, and its mask seed (X25519, HKDF)."""
    share_us: float
    """One share of one secret, of a cohort of 30 with a threshold of 20 (Shamir)."""
    rebuild_us: float
    """One secret from 20 shares."""
    seal_us: float
    """Encrypting or decrypting the shares for one device (ChaCha20-Poly1305)."""
    aes_ns: float
    """Expanding and adding one value of a mask, 4 bytes, by AES-256-CTR."""
    chacha_ns: float
    """The same by ChaCha20, for boards without AES instructions."""


class Cost(Struct, frozen=True, kw_only=True):
    """What one exchange of a cohort of n devices costs more than without secure aggregation."""

    model: str
    link: str
    cohort: int
    up_bytes: int
    """Keys, shares and unmasking of a device, without its update."""
    down_bytes: int
    update_bytes: int
    """A masked update; without secure aggregation 4 bytes a value as float32, 1 as int8."""
    hidden_s: float
    """Keys and shares, while the device downloads and trains."""
    mask_s: float
    """Masks of a device, after its training."""
    upload_s: float
    """Masked update less that of float32; negative if it is smaller."""
    unmask_s: float
    """From the last masked update to the sum: round trip, shares, masks of dropped devices."""


def fastest(call: Callable[[], object], times: int) -> float:
    """Return the least time of one call, seconds, over some repeats."""
    best = math.inf
    for _ in range(REPEATS):
        began = time.perf_counter()
        for _ in range(times):
            call()
        best = min(best, (time.perf_counter() - began) / times)
    return best


def shares_of(secret: int, n: int, threshold: int) -> list[tuple[int, int]]:
    """Return n shares of a secret, of which `threshold` rebuild it (Shamir, CACM 1979)."""
    factors = [secret, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    shares = []
    for x in range(1, n + 1):
        y = 0
        for factor in reversed(factors):
            y = (y * x + factor) % PRIME
        shares.append((x, y))
    return shares


def rebuilt(shares: list[tuple[int, int]]) -> int:
    """Return the secret of some shares, by Lagrange's interpolation at 0."""
    secret = 0
    for x, y in shares:
        above = below = 1
        for other, _ in shares:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += y * above * pow(below, -1, PRIME)
    return secret % PRIME


def agreed(own: X25519PrivateKey, other: X25519PrivateKey) -> bytes:
    """Return the seed of the mask of two devices, equal on both."""
    secret = own.exchange(other.public_key())
    return HKDF(hashes.SHA256(), 32, salt=None, info=b"mask").derive(secret)


def mask(
    seed: bytes, n_values: int, *, by_chacha: bool = False
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Return a mask of uint32, shape (n_values,)."""
    nonce = bytes(16)
    cipher = Cipher(ChaCha20(seed, nonce), None) if by_chacha else Cipher(AES(seed), CTR(nonce))
    stream: CipherContext = cipher.encryptor()
    return np.frombuffer(stream.update(bytes(4 * n_values)), dtype=np.uint32)


def measure() -> Measured:
    """Return the times of all parts."""
    one, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    seed = agreed(one, other)
    n, threshold = 30, MEASURED_THRESHOLD
    secret = secrets.randbelow(PRIME)
    shares = shares_of(secret, n, threshold)
    sealer, text, nonce = ChaCha20Poly1305(seed), bytes(2 * SHARE_BYTES), bytes(12)
    total = np.zeros(BLOCK, dtype=np.uint32)

    def add(by_chacha: bool) -> None:
        np.add(total, mask(seed, BLOCK, by_chacha=by_chacha), out=total)

    return Measured(
        key_us=1e6 * fastest(X25519PrivateKey.generate, 200),
        agreement_us=1e6 * fastest(lambda: agreed(one, other), 200),
        share_us=1e6 * fastest(lambda: shares_of(secret, n, threshold), 5) / n,
        rebuild_us=1e6 * fastest(lambda: rebuilt(shares[:threshold]), 5),
        seal_us=1e6 * fastest(lambda: sealer.encrypt(nonce, text, None), 200),
        aes_ns=1e9 * fastest(lambda: add(False), 3) / BLOCK,
        chacha_ns=1e9 * fastest(lambda: add(True), 3) / BLOCK,
    )


def value_bytes(cohort: int) -> int:
    """Return the bytes of a masked value: the sum of the cohort must fit."""
    return -(-(QUANTISED_BITS + math.ceil(math.log2(cohort))) // 8)


def cost_of(model: str, link_name: str, cohort: int, measured: Measured) -> Cost:
    """Return what secure aggregation adds to an exchange.

    Every device shares with every other one; two thirds of the cohort rebuild a secret. The device
    is a `BOARD`, whose core is `core_speed` times the one that was measured and has no AES
    instructions; the coordinator runs on the one that was measured.
    """
    name, x_shape = MODELS[model]
    values = load_task(name, x_shape, 10).spec.layout.n_values
    link, others = profiles.load_link(link_name).link, cohort - 1
    down_bps, up_bps, delay_s = link.down_bps, link.up_bps, link.delay_s
    speed = profiles.load(BOARD).core_speed
    keys, sealed = 2 * KEY_BYTES, 2 * SHARE_BYTES + SEAL_BYTES
    shares_up = others * sealed
    unmask_up = cohort * SHARE_BYTES
    threshold = -(-2 * cohort // 3) / MEASURED_THRESHOLD
    setup = 2 * measured.key_us + 2 * cohort * measured.share_us * threshold
    setup += others * (2 * measured.agreement_us + 2 * measured.seal_us)
    setup_down = others * (keys + sealed)
    round_trips_s = 4 * delay_s + 8 * (keys + shares_up) / up_bps + 8 * setup_down / down_bps
    masks, update = cohort * values, values * value_bytes(cohort)
    dropped = math.ceil(DROPPED * cohort)
    rebuilds = cohort * measured.rebuild_us * threshold**2
    rebuilds += dropped * others * measured.agreement_us
    server_ns = (cohort + dropped * others) * values * measured.aes_ns
    return Cost(
        model=model,
        link=link_name,
        cohort=cohort,
        up_bytes=keys + shares_up + unmask_up,
        down_bytes=setup_down + -(-cohort // 8),
        update_bytes=update,
        hidden_s=round_trips_s + 1e-6 * setup / speed,
        mask_s=1e-9 * masks * measured.chacha_ns / speed,
        upload_s=8 * (update - 4 * values) / up_bps,
        unmask_s=2 * delay_s + 8 * unmask_up / up_bps + 1e-6 * rebuilds + 1e-9 * server_ns,
    )


def main(arguments: list[str]) -> int:
    """Run the benchmark and print the results; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench secure-aggregation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cohorts", default=",".join(map(str, COHORTS)))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    cohorts = [int(text) for text in options.cohorts.split(",")]
    measured = measure()
    costs = [cost_of(m, link, n, measured) for m in MODELS for link in LINKS for n in cohorts]
    if options.json:
        print(msgspec.json.encode({"measured": measured, "costs": costs}).decode())
        return 0
    for key, value in msgspec.structs.asdict(measured).items():
        print(f"{key:<14}{value:.3g}")
    keys = Cost.__struct_fields__
    print("\n" + " | ".join(keys))
    for cost in costs:
        cells = msgspec.structs.astuple(cost)
        print(" | ".join(f"{c:.3g}" if isinstance(c, float) else str(c) for c in cells))
    return 0
