"""Augmentation of mini-batches by seed: the same bits on a device and in a replay.

Each step draws its numbers from a Philox stream of its own, keyed by the seed of device and round,
the step and the place in the list. They are drawn for the whole mini-batch, so that neither
micro-batches nor the other devices of a cohort change them. On another machine they are the same
but for the last bit of normal and beta numbers. Arrays are those of one mini-batch:
x of shape (B, *x_shape), and y of shape (B, *y_shape). Images are (channels, height, width), as
spectra are with frequency for height and time for width.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from fairbed.wire.artifact import TaskSpec
from fairbed.wire.messages import Augment, OptionValue
from fairbed.wire.plugins import (
    PluginError,
    described,
    factory_of,
    import_from_here,
    is_path,
    users_code,
)
from fairbed.wire.preparation import PADDING

NOUN = "augmentation"

GROUP = "fairbed.augmentations"
"""Group of entry points; paths are the usual way."""

STREAM: Final = 0x6175676D656E74
"""Half of the key of all streams here, "augment" in ASCII, so that no other one has their bits."""

Array: TypeAlias = NDArray[Any]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Draws: TypeAlias = np.random.Generator


def draws_of(seed: int, step: int, number: int) -> Draws:
    """Return the random numbers of one augmentation in one step.

    Args:
        seed: Seed of device and round.
        step: Number of the mini-batch, from 0.
        number: Place of the augmentation in the list, from 0.
    """
    key = np.array([seed, STREAM], np.uint64)
    counter = np.array([0, 0, number, step], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Augmentation(Protocol):
    """Changes a mini-batch, which is a copy of its own."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have for it; empty if it fits."""
        ...

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Return the mini-batch after it, of the same shapes; may change x and y in place."""
        ...


class _Kind(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a kind."""


def _image_problem(spec: TaskSpec) -> str:
    if len(spec.x_shape) < 2 or spec.x_dtype != "float32":
        return f"float examples of (..., height, width), got {spec.x_dtype} {spec.x_shape}"
    return ""


def _moves_with(x: Array, y: Array) -> bool:
    """Return whether y has a target for each pixel of x, which moves with it."""
    return y.ndim > 1 and y.shape[-2:] == x.shape[-2:]


def _moved_problem(spec: TaskSpec) -> str:
    if spec.y_shape and spec.y_shape[-2:] != spec.x_shape[-2:]:
        return f"one target for each example or pixel, got y of {spec.y_shape}"
    return _image_problem(spec)


class Flip(_Kind, frozen=True, kw_only=True):
    """Mirrors an example, with targets of its pixels."""

    share: Share = 0.5
    """Probability of each example."""
    axis: Literal["horizontal", "vertical"] = "horizontal"

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        return _moved_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Mirror some examples."""
        chosen = draws.random(len(x)) < self.share
        axis = -1 if self.axis == "horizontal" else -2
        x[chosen] = np.flip(x[chosen], axis)
        if _moves_with(x, y):
            y[chosen] = np.flip(y[chosen], axis)
        return x, y


class Crop(_Kind, frozen=True, kw_only=True):
    """Moves an example by up to `padding` pixels each way, and fills with zeros.

    Targets of pixels move with it; the others have none, label -1.
    """

    padding: Annotated[int, Meta(ge=1, le=1024)] = 4

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        if spec.y_shape and spec.kind == "regression":
            return "labels, not numbers, for each pixel, as pixels outside have none"
        return _moved_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Move every example."""
        at = draws.integers(0, 2 * self.padding + 1, (len(x), 2))
        moved = _moved(x, at, self.padding, 0.0)
        if _moves_with(x, y):
            labels = _moved(y, at, self.padding, -1)
            has_label = (labels.reshape(len(y), -1) >= 0).any(axis=1)
            moved[~has_label], labels[~has_label] = x[~has_label], y[~has_label]
            return moved, labels
        return moved, y


def _moved(array: Array, at: Array, padding: int, fill: float) -> Array:
    """Return images, shape (B, ..., H, W), cut at `at`, shape (B, 2), out of padded ones."""
    wide = [(0, 0)] * (array.ndim - 2) + [(padding, padding)] * 2
    padded, moved = np.pad(array, wide, constant_values=fill), np.empty_like(array)
    height, width = array.shape[-2:]
    for k, (top, left) in enumerate(at.tolist()):
        moved[k] = padded[k, ..., top : top + height, left : left + width]
    return moved


class Colour(_Kind, frozen=True, kw_only=True):
    """Changes brightness, contrast and saturation by factors uniform in 1 - s .. 1 + s.

    Contrast is about the mean of the example, saturation about its grey values, the mean of its
    channels. Values are not clipped.
    """

    brightness: Share = 0.2
    contrast: Share = 0.2
    saturation: Share = 0.0
    """Of examples with 3 channels."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        if self.saturation and spec.x_shape[0] != 3:
            return f"3 channels with saturation, got {spec.x_shape}"
        return _image_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Change every example."""
        shape = (len(x), *[1] * (x.ndim - 1))
        factors = draws.random((3, len(x))) * 2.0 - 1.0
        axes = tuple(range(1, x.ndim))
        for factor, strength, mean_axes in (
            (factors[0], self.brightness, None),
            (factors[1], self.contrast, axes),
            (factors[2], self.saturation, (1,)),
        ):
            if not strength:
                continue
            scale = (1.0 + strength * factor).astype(np.float32).reshape(shape)
            if mean_axes is None:
                x *= scale
            else:
                mean = x.mean(axis=mean_axes, keepdims=True, dtype=np.float64).astype(np.float32)
                x = (x - mean) * scale + mean
        return x, y


class Noise(_Kind, frozen=True, kw_only=True):
    """Adds Gaussian noise to every value."""

    std: Annotated[float, Meta(gt=0.0, le=1e6)] = 0.05
    """Standard deviation, in the unit of x."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        return _float_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Change every example."""
        x += np.float32(self.std) * draws.standard_normal(x.shape, dtype=np.float32)
        return x, y


def _float_problem(spec: TaskSpec) -> str:
    return "" if spec.x_dtype == "float32" else f"float examples, got {spec.x_dtype}"


class Erase(_Kind, frozen=True, kw_only=True):
    """Sets a rectangle of an example to zero.

    Source:
        Zhong et al., AAAI 2020, Algorithm 1 (arXiv:1708.04896), with zeros for random values.
    """

    share: Share = 0.5
    """Probability of each example."""
    area: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.33
    """Largest area, as a share of the example; the smallest is 0.02 of it."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        return _image_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Erase a rectangle of some examples."""
        height, width = x.shape[-2:]
        drawn = draws.random((len(x), 5))
        area = (0.02 + (1.0 - 0.02) * drawn[:, 1]) * self.area
        ratio = 0.3 + (1.0 / 0.3 - 0.3) * drawn[:, 2]
        high = np.clip(np.rint(np.sqrt(area * ratio) * height), 1, height).astype(np.int64)
        wide = np.clip(np.rint(np.sqrt(area / ratio) * width), 1, width).astype(np.int64)
        top = (drawn[:, 3] * (height - high + 1)).astype(np.int64)
        left = (drawn[:, 4] * (width - wide + 1)).astype(np.int64)
        for k in np.flatnonzero(drawn[:, 0] < self.share).tolist():
            x[k, ..., top[k] : top[k] + high[k], left[k] : left[k] + wide[k]] = 0.0
        return x, y


class Mask(_Kind, frozen=True, kw_only=True):
    """Sets a band of time or frequency of a recording or spectrum to zero, of random width.

    Source:
        Park et al., Interspeech 2019, section 2 (arXiv:1904.08779).
    """

    axis: Literal["time", "frequency"] = "time"
    """time: the last axis; frequency: the one before."""
    width: Annotated[int, Meta(ge=1, le=1 << 20)] = 8
    """Largest width, in cells."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        needed = 1 if self.axis == "time" else 2
        if len(spec.x_shape) < needed or spec.x_dtype != "float32":
            return f"float examples of {needed} axes or more, got {spec.x_dtype} {spec.x_shape}"
        size = spec.x_shape[-needed]
        return (
            f"more than {self.width} cells of {self.axis}, got {size}" if self.width >= size else ""
        )

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Mask a band of every example."""
        axis = -1 if self.axis == "time" else -2
        size, drawn = x.shape[axis], draws.random((len(x), 2))
        wide = (drawn[:, 0] * (self.width + 1)).astype(np.int64)
        first = (drawn[:, 1] * (size - wide + 1)).astype(np.int64)
        for k, (start, end) in enumerate(zip(first.tolist(), (first + wide).tolist(), strict=True)):
            x[k].swapaxes(axis, -1)[..., start:end] = 0.0
        return x, y


class MaskTokens(_Kind, frozen=True, kw_only=True):
    """Replaces tokens of a sequence by one token; padding stays."""

    share: Share = 0.1
    """Probability of each token."""
    token: Annotated[int, Meta(ge=0)] = 1
    """The token: 1 is that of unknown words."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        if spec.x_dtype != "int64":
            return f"tokens, got {spec.x_dtype}"
        if self.token >= spec.x_classes:
            return f"a token below the {spec.x_classes} of its vocabulary, got {self.token}"
        return ""

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Replace some tokens."""
        x[(draws.random(x.shape) < self.share) & (x != PADDING)] = self.token
        return x, y


class Truncate(_Kind, frozen=True, kw_only=True):
    """Cuts the end of a sequence off: its tokens become padding, and its labels there none.

    A sequence that would lose its last token or label stays as it is.
    """

    least: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.5
    """The smallest share of the tokens that stays; the share is uniform up to 1."""

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        if spec.x_dtype != "int64" or len(spec.x_shape) != 1:
            return f"sequences of tokens, got {spec.x_dtype} {spec.x_shape}"
        if spec.buckets:
            return (
                "sequences of one length, got data.buckets: a mini-batch has the steps of its own"
            )
        return ""

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Cut every sequence."""
        share = self.least + (1.0 - self.least) * draws.random(len(x))
        places = np.arange(x.shape[1])
        lengths = np.where(x != PADDING, places + 1, 0).max(axis=1)
        is_cut = places >= np.ceil(share * lengths)[:, np.newaxis]
        cut = np.where(is_cut, PADDING, x)
        stays = (cut != PADDING).any(axis=1)
        if y.shape == x.shape:
            labels = np.where(is_cut, np.array(-1, y.dtype), y)
            stays &= (labels >= 0).any(axis=1)
            y = np.where(stays[:, np.newaxis], labels, y)
        return np.where(stays[:, np.newaxis], cut, x), y


class Mixup(_Kind, frozen=True, kw_only=True):
    """Mixes each example with another one: x = s x_i + (1 - s) x_j, s by Beta(alpha, alpha).

    The loss of the mini-batch is s l(x, y_i) + (1 - s) l(x, y_j), one s for all of it. So it is
    defined for every loss and target, and a step computes two gradients.

    Source:
        Zhang et al., ICLR 2018, equation 1 and figure 1 (arXiv:1710.09412).
    """

    alpha: Annotated[float, Meta(gt=0.0, le=100.0)] = 0.2

    def problem(self, spec: TaskSpec) -> str:
        """Return what a task must have."""
        return _float_problem(spec)

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Not called: `Augmenter` mixes last."""
        raise NotImplementedError


KINDS: Final[Mapping[str, type[_Kind]]] = {
    "flip": Flip,
    "crop": Crop,
    "colour": Colour,
    "noise": Noise,
    "erase": Erase,
    "mask": Mask,
    "mask-tokens": MaskTokens,
    "truncate": Truncate,
    "mixup": Mixup,
}


class Own:
    """A function of the user: (x, y, draws) -> x, or (x, y).

    Args:
        name: Its path.
        options: Further arguments, by name.
    """

    def __init__(self, name: str, options: Mapping[str, OptionValue]) -> None:
        self._name, self._options = name, options
        choices = f"{', '.join(KINDS)} or package.module:function"
        self._function: Callable[..., Any] = factory_of(NOUN, GROUP, name, choices)

    def problem(self, spec: TaskSpec) -> str:
        """Return nothing: its results are checked."""
        return ""

    def apply(self, x: Array, y: Array, draws: Draws) -> tuple[Array, Array]:
        """Call the function.

        Raises:
            PluginError: It raised, or returned other shapes or types.
        """
        with users_code(lambda got: self._error(f"must not raise, got {got}")):
            got = self._function(x.copy(), y.copy(), draws, **self._options)
        found = got if isinstance(got, tuple) else (got, y)
        if len(found) != 2:
            raise self._error(f"must return x or (x, y), got a tuple of {len(found)}")
        for name, new, old in zip("xy", found, (x, y), strict=True):
            is_array = isinstance(new, np.ndarray)
            if not is_array or (new.shape, new.dtype) != (old.shape, old.dtype):
                wanted = f"{old.dtype} of shape {old.shape}"
                raise self._error(f"must return {name} as {wanted}, got {described(new)}")
        return found

    def _error(self, what: str) -> PluginError:
        return PluginError(f"{NOUN} {self._name}: {what}; correct the function", what)


@dataclass(frozen=True, slots=True)
class Augmented:
    """A mini-batch after augmentation."""

    x: Array
    y: Array
    other: Array | None = None
    """Targets of the examples that were mixed in; None without mixup."""
    share: float = 1.0
    """Weight of the loss with `y`; that with `other` has the rest."""


class Augmenter:
    """The augmentations of a task, in their order; mixup is last.

    Args:
        wanted: Their names and options.
        spec: The task.

    Raises:
        PluginError: One is unknown, does not take its options, or does not fit the task.
    """

    def __init__(self, wanted: Sequence[Augment], spec: TaskSpec) -> None:
        made = [make(one) for one in wanted]
        for one, part in zip(wanted, made, strict=True):
            if problem := part.problem(spec):
                raise PluginError(
                    f"training.augment: {one.kind} must have {problem}; remove it for {spec.name}"
                )
        self._parts = [part for part in made if not isinstance(part, Mixup)]
        self._mixup = next((part for part in made if isinstance(part, Mixup)), None)

    def batch(self, x: Array, y: Array, seed: int, step: int) -> Augmented:
        """Return a mini-batch after all augmentations.

        Args:
            x: Examples, shape (B, *x_shape), a copy that may be changed.
            y: Targets, shape (B, *y_shape), likewise.
            seed: Seed of device and round.
            step: Number of the mini-batch, from 0.

        Raises:
            PluginError: A function of the user breaks its contract.
        """
        for number, part in enumerate(self._parts):
            x, y = part.apply(x, y, draws_of(seed, step, number))
        if self._mixup is None:
            return Augmented(x, y)
        draws = draws_of(seed, step, len(self._parts))
        share = float(draws.beta(self._mixup.alpha, self._mixup.alpha))
        with_ = draws.permutation(len(x))
        mixed = np.float32(share) * x + np.float32(1.0 - share) * x[with_]
        return Augmented(mixed, y, y[with_], share)


def make(wanted: Augment) -> Augmentation:
    """Return an augmentation.

    Raises:
        PluginError: It is unknown, or does not take its options.
    """
    options = dict(wanted.options)
    if is_path(wanted.kind):
        return Own(wanted.kind, options)
    kind = KINDS.get(wanted.kind)
    if kind is None:
        raise PluginError(
            f"training.augment: kind must be one of {', '.join(KINDS)} or "
            f"package.module:function, got {wanted.kind!r}"
        )
    try:
        made: Any = msgspec.convert(options, kind)
    except msgspec.ValidationError as exc:
        names = ", ".join(kind.__struct_fields__)
        raise PluginError(
            f"training.augment: {wanted.kind} must have the options {names}: {exc}"
        ) from exc
    return made  # type: ignore[no-any-return]  # every kind is one


def requested(table: Mapping[str, OptionValue]) -> Augment:
    """Return one table of `training.augment` as it is sent.

    Raises:
        PluginError: The file of a function cannot be found.
    """
    kind = str(table.get("kind", ""))
    options = tuple((name, value) for name, value in table.items() if name != "kind")
    sha256 = source_sha256(kind) if is_path(kind) else None
    return Augment(kind=kind, options=options, sha256=sha256)


def list_problem(tables: Sequence[Mapping[str, OptionValue]]) -> str:
    """Return why `training.augment` is no list of augmentations; empty if it is.

    Functions of the user are not imported.
    """
    kinds = [table.get("kind") for table in tables]
    for number, table in enumerate(tables):
        if not isinstance(kinds[number], str):
            return f"training.augment[{number}]: must have a kind, got none; set kind"
        if not is_path(str(kinds[number])):
            try:
                make(requested(table))
            except PluginError as exc:
                return str(exc)
    if "mixup" in kinds[:-1]:
        return (
            "training.augment: mixup must be last and once, got another after it: it mixes what "
            "the others have changed; move it to the end"
        )
    return ""


@cache
def source_sha256(name: str) -> bytes:
    """Return the hash of the file that has a function, by its path.

    Raises:
        PluginError: There is no such file.
    """
    module = name.partition(":")[0]

    def broken(problem: str) -> PluginError:
        return PluginError(f"{NOUN} {name}: its module must be found, got {problem}; install it")

    with users_code(broken):
        import_from_here()
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None or not found.has_location:
            raise broken("no file")
        content = SourceFileLoader(module, found.origin).get_data(found.origin)
        return hashlib.sha256(content).digest()


def permission_problem(wanted: Sequence[Augment], allowed: Collection[str]) -> str:
    """Return why a device must not run a function of a coordinator; empty if it may.

    Args:
        wanted: The augmentations of a round.
        allowed: Paths of functions and local rules that the owner of this device allows.
    """
    for one in wanted:
        if not is_path(one.kind):
            continue
        if one.kind not in allowed:
            return (
                f"{NOUN} {one.kind}: must be allowed by this device, got a path that is not; start "
                f"the agent with --local-training {one.kind}"
            )
        if one.sha256 != source_sha256(one.kind):
            return (
                f"{NOUN} {one.kind}: its file must be that of the coordinator, got another hash; "
                "install the same version on both"
            )
    return ""
