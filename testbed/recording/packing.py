"""What devices of a live run needed to unpack models and to pack updates. Pure: rows come in.

An emulated device is paced in these two phases by its speed, as it is in training, and charged the
processor time that they took; what the training cost is known. So an exchange tells its own speed:

    work = lap s * speed,   speed = work of its training / train_s
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from coordinator.config import ExchangeConfig
from coordinator.store.records import ExchangeRow
from testbed.recording.from_run import Course, valid


@dataclass(frozen=True, slots=True)
class Packing:
    """Work on one model and on one update, seconds of one core of the reference machine."""

    decode_s: float
    """0 where no model came packed."""
    encode_s: float
    """0 where no update was measured."""


def packing_of(
    exchanges: Iterable[ExchangeRow], course: Course, settings: ExchangeConfig
) -> Packing:
    """Return what packing cost in a run, the medians over its exchanges.

    Args:
        exchanges: Of the run; those that are not valid do not count.
        course: What training was in the run, and what it cost.
        settings: Codecs that are asked for; exchanges with others do not count.
    """
    decoded, encoded = list[float](), list[float]()
    for x in valid(exchanges):
        work_s = course.reference_s(x.n_k, x.steps)
        if work_s is None or not x.train_s:
            continue
        speed = work_s / x.train_s
        if x.decode_s is not None and x.codec_down == settings.down != "float32":
            decoded.append(x.decode_s * speed)
        if x.encode_s is not None and x.codec_up == settings.up:
            encoded.append(x.encode_s * speed)
    return Packing(_median(decoded), _median(encoded))


def _median(values: list[float]) -> float:
    return float(np.median(values)) if values else 0.0
