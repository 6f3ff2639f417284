"""Vectors and layouts for tests of codecs."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fairbed.wire.codecs import Codec, Vector
from fairbed.wire.codecs.half import Half
from fairbed.wire.codecs.int8 import Int8Blocks
from fairbed.wire.codecs.top_k import TopK
from fairbed.wire.tensors import Layout, Tensor

CODECS: dict[str, Codec] = {"float16": Half(), "int8": Int8Blocks(), "top-k": TopK(5)}


def vectors(limit: float = 3e38, max_size: int = 3000) -> st.SearchStrategy[Vector]:
    """Yield finite vectors of one value to a few blocks, subnormals and zeros among them."""
    top = float(np.float32(limit))
    values = st.floats(-top, top, width=32)
    sparse = hnp.arrays(np.float32, st.integers(1, max_size), elements=values, fill=values)
    return st.one_of(sparse, _noise(limit, max_size))


@st.composite
def _noise(draw: st.DrawFn, limit: float, max_size: int) -> Vector:
    """Yield normal noise of any magnitude, similar to an update."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = 10.0 ** draw(st.floats(-40.0, float(np.log10(limit)) - 1.0))
    size = draw(st.integers(1, max_size))
    noise: Vector = np.clip(rng.standard_normal(size), -9.0, 9.0).astype(np.float32)
    noise *= np.float32(scale)
    return noise


def rng_of(seed: int) -> np.random.Generator:
    """Return a new generator."""
    return np.random.default_rng(seed)


def layout_of(n_params: int, n_buffers: int = 0) -> Layout:
    """Return a layout of one parameter tensor, and one of buffers if there are any."""
    tensors = [Tensor(name="w", shape=(n_params,), offset=0)]
    if n_buffers:
        tensors.append(Tensor(name="b", shape=(n_buffers,), offset=n_params, role="buffer"))
    return Layout(tensors=tuple(tensors))
