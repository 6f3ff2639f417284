"""Error feedback: what a codec left out is sent later instead of never."""

import numpy as np

from wire.codecs.base import Codec, Vector


def encode_with_feedback(
    codec: Codec, update: Vector, owed: Vector | None, rng: "np.random.Generator"
) -> tuple[bytes, Vector]:
    """Encode an update together with what is owed; return the bytes and what is owed then.

        p_t = u_t + e_t,   sent_t = C(p_t),   e_{t+1} = p_t - sent_t

    so that what was sent and what is still owed add up to the true updates, but for one float32
    rounding a value and round:

        sum_t sent_t + e_T = sum_t u_t

    With a codec that keeps a share k/n of the squared norm, |e_t| stays within a constant times
    the largest update: 2 (n/k) max |u|.

    Args:
        codec: C.
        update: u_t, shape (n,).
        owed: e_t, shape (n,); None is a sender that owes nothing.
        rng: For codecs that round at random.

    Raises:
        EncodeError: A value cannot be represented within the codec's bound.

    Source:
        Stich et al., NeurIPS 2018, Algorithm 1 (arXiv:1809.07599); Karimireddy et al., ICML
        2019, Algorithm 2 and Lemma 3 (arXiv:1901.09847).
    """
    with np.errstate(over="ignore"):  # the codec refuses what is not finite
        wanted = update if owed is None else update + owed
    payload = codec.encode(wanted, rng)
    return payload, wanted - codec.decode(memoryview(payload), len(wanted))
