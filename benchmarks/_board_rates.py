"""Rates of the processors of boards and phones: published, or estimated by one rule.

The rule, for float32 matrix products and for memory traffic:

    one core     clock * FLOP per cycle * ONE_SHARE
    all cores    sum over cores of clock * FLOP per cycle, * ALL_SHARE
    memory       rate of the bus * BUS_SHARE

FLOP per cycle is twice the lanes of the vector units; half of that for a core that executes in
order, which loads or multiplies, not both. Each share is the geometric mean over the boards whose
rate is published; the error of the rule is that of each such board by the share of the others.

Published are, in this order: twice the rate of Linpack in double precision (geerlingguy/sbc-reviews
968b675 and top500-benchmark 0137a2e; once for processors without vectors), and the rate that a
forward pass of ncnn implies (`Tencent/ncnn` a4d2ea1, benchmark/README.md). For the latter the work
of ResNet-50 is 8.17 GFLOP in dense convolutions, at `INFERENCE.convolution` of the rate; that share
is from the Raspberry Pi 4B and 5, which have both. With float16 a core multiplies twice as much.
"""

import math
from collections.abc import Callable, Mapping
from statistics import fmean

from msgspec import Struct

from fairbed.testbed.emulation.step_speed import INFERENCE

RESNET50_FLOP, RESNET18_FLOP = 8.17e9, 3.63e9
"""Arithmetic of a forward pass on 224 x 224 pixels."""

FLOP_PER_CYCLE: Mapping[str, float] = {
    "ARM11": 1.0,
    "Cortex-A7": 1.0,
    "Cortex-A53": 4.0,
    "Cortex-A55": 4.0,
    "Cortex-A510": 4.0,
    "U74": 1.0,
    "C910": 2.0,
    "X60": 1.0,
    "Cortex-A57": 8.0,
    "Cortex-A72": 8.0,
    "Cortex-A73": 8.0,
    "Denver 2": 8.0,
    "Carmel": 8.0,
    "Krait 450": 8.0,
    "Cortex-A76": 16.0,
    "Cortex-A78": 16.0,
    "Cortex-A715": 16.0,
    "Cortex-X3": 32.0,
    "Gracemont": 16.0,
}
"""Float32 operations, a multiplication with its addition counting as two."""


class Published(Struct, frozen=True, kw_only=True):
    """A rate of a board, and how it was derived."""

    flops: float
    how: str
    tag: str = "measured"


class Processor(Struct, frozen=True, kw_only=True):
    """The processor of a profile."""

    cores: tuple[tuple[int, float, str], ...]
    """Number, clock in GHz and name of each kind; the fastest first."""
    all_cores: Published | None = None
    one_core: Published | None = None
    bus_bytes_per_s: float | None = None
    """Peak rate of the main memory by its data sheet."""
    copied_bytes_per_s: float | None = None
    """Rate of memcpy, sbc-bench 53f7951."""
    of_high: tuple[float, str] | None = None
    """Rate of the memory relative to `phone-high`, and why, where training times give it."""

    @property
    def peak_flops(self) -> float:
        """Operations per second of all cores."""
        return 1e9 * sum(n * ghz * FLOP_PER_CYCLE[core] for n, ghz, core in self.cores)

    @property
    def core_peak_flops(self) -> float:
        """Operations per second of the fastest core."""
        return 1e9 * max(ghz * FLOP_PER_CYCLE[core] for _, ghz, core in self.cores)


def linpack(gflops: float, of: str = "", *, times: int = 2) -> Published:
    """Return the rate by Linpack in double precision on all cores."""
    why = "" if times == 2 else "; no vectors, so float32 is no faster"
    where = "geerlingguy/sbc-reviews 968b675" + (f", {of}" if of else "")
    return Published(
        flops=times * gflops * 1e9,
        how=f"{times} x {gflops:g} GFLOPS of Linpack in double precision on all cores "
        f"({where}){why}",
    )


def ncnn(
    ms: float,
    threads: int,
    of: str = "",
    *,
    half: bool = False,
    net: str = "ResNet-50",
    clock: float = 1.0,
) -> Published:
    """Return the rate that a forward pass of ncnn implies.

    Args:
        ms: Mean time.
        threads: Of the measurement.
        of: The measured board or chip, if it is another.
        half: It computes with float16.
        net: ResNet-50 or ResNet-18.
        clock: Clock of the profile / clock of the measurement.
    """
    flop = RESNET50_FLOP if net == "ResNet-50" else RESNET18_FLOP
    rate = clock * flop / (ms / 1e3) / INFERENCE.convolution / (2.0 if half else 1.0)
    notes = [of] if of else []
    notes += ["float16"] if half else []
    notes += [f"clock x {clock:.3g}"] if clock != 1.0 else []
    tail = f"; {', '.join(notes)}" if notes else ""
    return Published(
        flops=rate,
        how=f"implied by a forward pass of {net} in {ms:g} ms with {threads} "
        f"thread{'s' * (threads > 1)} (Tencent/ncnn a4d2ea1{tail})",
    )


def _like_high(ratio: float, why: str, tag: str = "measured") -> tuple[Published, Published]:
    """Return the rates of all cores and of one, relative to those of `phone-high`."""
    return (
        Published(flops=_HIGH.flops * ratio, how=f"that of phone-high x {why}", tag=tag),
        Published(flops=_HIGH_CORE.flops * ratio, how=f"that of phone-high x {why}", tag=tag),
    )


def _same(n: int, ghz: float, core: str) -> tuple[tuple[int, float, str], ...]:
    return ((n, ghz, core),)


_BIG_LITTLE = ((4, 2.4, "Cortex-A76"), (4, 1.8, "Cortex-A55"))
_A76_ALONE = ncnn(108.70, 1, "RK3588, median of three boards", half=True)
_HIGH = ncnn(26.24, 4, "Snapdragon 855+, its four large cores", half=True)
_HIGH_CORE = ncnn(65.93, 1, "Snapdragon 855+", half=True, clock=2.84 / 2.96)
_N100 = _same(4, 3.4, "Gracemont")

_LOW_OF_HIGH = (1 / 5.84, "1 / 5.84, by training times of four models (PKU-Chengxu/FLASH 55cbede)")
_MID_OF_HIGH = (1 / 2.04, "1 / 2.04, by training times of four models (PKU-Chengxu/FLASH 55cbede)")
_LOW, _MID = _like_high(*_LOW_OF_HIGH), _like_high(*_MID_OF_HIGH)
_BUDGET = _like_high(23 / 49, "23 / 49, by CPU float scores (AI Benchmark 2025)", "literature")
_MID_2021 = _like_high(47 / 49, "47 / 49, by CPU float scores (AI Benchmark 2025)", "literature")

PROCESSORS: Mapping[str, Processor] = {
    "raspberry-pi-zero-w": Processor(
        cores=_same(1, 1.0, "ARM11"), copied_bytes_per_s=430e6, bus_bytes_per_s=1.6e9
    ),
    "raspberry-pi-2b": Processor(
        cores=_same(4, 0.9, "Cortex-A7"), copied_bytes_per_s=1000e6, bus_bytes_per_s=3.6e9
    ),
    "raspberry-pi-zero-2w": Processor(
        cores=_same(4, 1.0, "Cortex-A53"),
        all_cores=ncnn(782.63, 4),
        one_core=ncnn(1802.79, 1),
        copied_bytes_per_s=1300e6,
        bus_bytes_per_s=3.6e9,
    ),
    "raspberry-pi-3b": Processor(
        cores=_same(4, 1.2, "Cortex-A53"), copied_bytes_per_s=1110e6, bus_bytes_per_s=3.6e9
    ),
    "raspberry-pi-3b-plus": Processor(
        cores=_same(4, 1.4, "Cortex-A53"),
        all_cores=ncnn(587.42, 4),
        one_core=ncnn(979.75, 1),
        copied_bytes_per_s=1120e6,
        bus_bytes_per_s=3.6e9,
    ),
    "raspberry-pi-4b": Processor(
        cores=_same(4, 1.5, "Cortex-A72"),
        all_cores=linpack(11.774),
        one_core=ncnn(534.11, 1, "at 1.8 GHz", clock=1.5 / 1.8),
        copied_bytes_per_s=2550e6,
        bus_bytes_per_s=12.8e9,
    ),
    "raspberry-pi-5": Processor(
        cores=_same(4, 2.4, "Cortex-A76"),
        all_cores=linpack(37.888),
        one_core=ncnn(89.43, 1, half=True),
        copied_bytes_per_s=5650e6,
        bus_bytes_per_s=17.1e9,
    ),
    "jetson-nano": Processor(
        cores=_same(4, 1.48, "Cortex-A57"),
        all_cores=ncnn(203.42, 4),
        one_core=ncnn(624.43, 1),
        copied_bytes_per_s=3730e6,
        bus_bytes_per_s=25.6e9,
    ),
    "jetson-tx2": Processor(
        cores=((2, 2.0, "Denver 2"), (4, 2.0, "Cortex-A57")),
        all_cores=ncnn(51.99, 6, "TX2 NX", net="ResNet-18"),
        one_core=ncnn(384.10, 1, "TX2 NX"),
        bus_bytes_per_s=59.7e9,
    ),
    "jetson-xavier-nx": Processor(
        cores=_same(6, 1.9, "Carmel"), copied_bytes_per_s=9190e6, bus_bytes_per_s=59.7e9
    ),
    "jetson-orin-nano": Processor(
        cores=_same(6, 1.5, "Cortex-A78"),
        all_cores=ncnn(38.69, 6, half=True),
        one_core=ncnn(138.19, 1, half=True),
        copied_bytes_per_s=6730e6,
        bus_bytes_per_s=68.0e9,
    ),
    "jetson-agx-orin": Processor(
        cores=_same(12, 2.2, "Cortex-A78"),
        all_cores=ncnn(15.73, 12, half=True),
        one_core=ncnn(89.80, 1, half=True),
        copied_bytes_per_s=10600e6,
    ),
    "n100": Processor(
        cores=_N100,
        all_cores=linpack(62.851, "LattePanda Mu at 25 W"),
        copied_bytes_per_s=10920e6,
        bus_bytes_per_s=38.4e9,
    ),
    "radxa-x4": Processor(
        cores=_N100,
        all_cores=linpack(37.224),
        copied_bytes_per_s=8140e6,
        bus_bytes_per_s=38.4e9,
    ),
    "orange-pi-5": Processor(
        cores=_BIG_LITTLE,
        all_cores=linpack(53.33),
        one_core=_A76_ALONE,
        copied_bytes_per_s=12800e6,
        bus_bytes_per_s=34.1e9,
    ),
    "orange-pi-5-max": Processor(
        cores=((4, 2.28, "Cortex-A76"), (4, 1.8, "Cortex-A55")),
        all_cores=linpack(52.924),
        one_core=ncnn(108.70, 1, "RK3588, median of three boards", half=True, clock=2.28 / 2.4),
        copied_bytes_per_s=12140e6,
        bus_bytes_per_s=34.1e9,
    ),
    "radxa-rock-5a": Processor(
        cores=_BIG_LITTLE, copied_bytes_per_s=9170e6, bus_bytes_per_s=34.1e9
    ),
    "radxa-rock-5b": Processor(
        cores=((4, 2.35, "Cortex-A76"), (4, 1.8, "Cortex-A55")),
        all_cores=linpack(51.382),
        one_core=ncnn(108.70, 1, "RK3588, median of three boards", half=True, clock=2.35 / 2.4),
        copied_bytes_per_s=10830e6,
        bus_bytes_per_s=34.1e9,
    ),
    "radxa-rock-5c": Processor(
        cores=((4, 2.28, "Cortex-A76"), (4, 1.8, "Cortex-A55")),
        all_cores=linpack(49.285),
        one_core=ncnn(108.70, 1, "RK3588, median of three boards", half=True, clock=2.28 / 2.4),
        copied_bytes_per_s=12280e6,
        bus_bytes_per_s=34.1e9,
    ),
    "radxa-dragon-q6a": Processor(
        cores=((1, 2.7, "Cortex-A78"), (3, 2.4, "Cortex-A78"), (4, 1.95, "Cortex-A55")),
        all_cores=linpack(48.408),
        copied_bytes_per_s=8404e6,
    ),
    "nanopi-neo4": Processor(
        cores=((2, 2.0, "Cortex-A72"), (4, 1.5, "Cortex-A53")),
        all_cores=ncnn(265.18, 6, "Orange Pi 4 LTS, the same chip"),
        one_core=ncnn(504.18, 1, "RK3399 at 1.8 GHz", clock=2.0 / 1.8),
        copied_bytes_per_s=2260e6,
    ),
    "odroid-n2-plus": Processor(
        cores=((4, 2.4, "Cortex-A73"), (2, 2.0, "Cortex-A53")),
        all_cores=ncnn(186.18, 4, "A311D at 2.2 GHz, its four large cores", clock=2.4 / 2.2),
        one_core=ncnn(531.87, 1, "A311D at 2.2 GHz", clock=2.4 / 2.2),
        copied_bytes_per_s=4030e6,
        bus_bytes_per_s=10.6e9,
    ),
    "orange-pi-zero-2w": Processor(
        cores=_same(4, 1.5, "Cortex-A53"),
        all_cores=ncnn(576.17, 4, "Orange Pi Zero 2, the same cores and clock"),
        copied_bytes_per_s=1510e6,
    ),
    "visionfive-2": Processor(
        cores=_same(4, 1.5, "U74"),
        all_cores=ncnn(1193.34, 4),
        copied_bytes_per_s=860e6,
        bus_bytes_per_s=11.2e9,
    ),
    "lichee-pi-4a": Processor(
        cores=_same(4, 1.85, "C910"),
        all_cores=linpack(4.4584, "Lichee Console 4A, the same module", times=1),
        copied_bytes_per_s=4350e6,
    ),
    "milk-v-jupiter": Processor(
        cores=_same(8, 1.8, "X60"),
        all_cores=linpack(5.656, times=1),
        copied_bytes_per_s=2900e6,
    ),
    "phone-low": Processor(
        cores=_same(4, 2.7, "Krait 450"),
        all_cores=_LOW[0],
        one_core=_LOW[1],
        of_high=_LOW_OF_HIGH,
        bus_bytes_per_s=25.6e9,
    ),
    "phone-mid": Processor(
        cores=((4, 2.0, "Cortex-A73"), (4, 1.8, "Cortex-A53")),
        all_cores=_MID[0],
        one_core=_MID[1],
        of_high=_MID_OF_HIGH,
        bus_bytes_per_s=14.9e9,
    ),
    "phone-high": Processor(
        cores=((1, 2.84, "Cortex-A76"), (3, 2.42, "Cortex-A76"), (4, 1.8, "Cortex-A55")),
        all_cores=_HIGH,
        one_core=_HIGH_CORE,
        bus_bytes_per_s=34.1e9,
    ),
    "phone-budget-2021": Processor(
        cores=((4, 2.4, "Cortex-A73"), (4, 1.9, "Cortex-A53")),
        all_cores=_BUDGET[0],
        one_core=_BUDGET[1],
        bus_bytes_per_s=17.1e9,
    ),
    "phone-mid-2021": Processor(
        cores=((1, 2.4, "Cortex-A78"), (3, 2.2, "Cortex-A78"), (4, 1.9, "Cortex-A55")),
        all_cores=_MID_2021[0],
        one_core=_MID_2021[1],
        bus_bytes_per_s=25.6e9,
    ),
    "phone-flagship-2023": Processor(
        cores=((1, 3.2, "Cortex-X3"), (4, 2.8, "Cortex-A715"), (3, 2.0, "Cortex-A510")),
        all_cores=ncnn(18.94, 4, "Snapdragon 8 Gen 2, its large cores", half=True),
        one_core=ncnn(53.96, 1, "Snapdragon 8 Gen 2", half=True),
        bus_bytes_per_s=67.2e9,
    ),
}
"""By profile."""


class Rule(Struct, frozen=True, kw_only=True):
    """A share of the rule and its error, by leaving out one board after the other."""

    share: float
    factor: float
    """Exponential of the root mean square of the logarithm of estimated / published."""
    worst: tuple[str, float]
    """The board with the largest error: its name, and estimated / published."""
    n: int

    @property
    def error(self) -> str:
        """The error in words."""
        return f"within a factor of {self.factor:.2f} (rms over {self.n} boards, each left out)"


def _rule(ratios: Mapping[str, float]) -> Rule:
    logs = {name: math.log(ratio) for name, ratio in ratios.items()}
    total, n = sum(logs.values()), len(logs)
    errors = {name: (total - log) / (n - 1) - log for name, log in logs.items()}
    worst = max(errors, key=lambda name: abs(errors[name]))
    return Rule(
        share=math.exp(total / n),
        factor=math.exp(math.sqrt(fmean(e * e for e in errors.values()))),
        worst=(worst, math.exp(errors[worst])),
        n=n,
    )


def _ratio(found: Published | None, peak: float) -> float | None:
    """Return a rate of its own, not one relative to another device, by the peak."""
    is_own = found is not None and not found.how.startswith("that of")
    return found.flops / peak if found is not None and is_own else None


def rules() -> dict[str, Rule]:
    """Return the rule of each key of a profile."""

    def over(ratio: Callable[[Processor], float | None]) -> Rule:
        found = {name: ratio(p) for name, p in PROCESSORS.items()}
        return _rule({name: value for name, value in found.items() if value is not None})

    return {
        "matrix_flops": over(lambda p: _ratio(p.all_cores, p.peak_flops)),
        "core_matrix_flops": over(lambda p: _ratio(p.one_core, p.core_peak_flops)),
        "memory_bytes_per_s": over(
            lambda p: (
                None
                if p.copied_bytes_per_s is None or p.bus_bytes_per_s is None
                else 2.0 * p.copied_bytes_per_s / p.bus_bytes_per_s
            )
        ),
    }


class Rate(Struct, frozen=True, kw_only=True):
    """A number of a profile."""

    value: float
    tag: str
    source: str


def rates(name: str) -> dict[str, Rate]:
    """Return the rates of a profile, by key."""
    p, rule = PROCESSORS[name], rules()
    kinds = " + ".join(f"{n} x {ghz:g} GHz x {FLOP_PER_CYCLE[c]:g} ({c})" for n, ghz, c in p.cores)

    def estimated(key: str, peak: float, what: str) -> Rate:
        r = rule[key]
        return Rate(
            value=_digits(r.share * peak),
            tag="estimated",
            source=f"{r.share:.3g} x {what}; {r.error}: fairbed bench boards",
        )

    def measured(published: Published) -> Rate:
        return Rate(value=_digits(published.flops), tag=published.tag, source=published.how)

    all_cores = (
        estimated("matrix_flops", p.peak_flops, f"operations per cycle, {kinds}")
        if p.all_cores is None
        else measured(p.all_cores)
    )
    _, ghz, core = p.cores[0]
    one_core = (
        estimated(
            "core_matrix_flops",
            p.core_peak_flops,
            f"operations per cycle of its fastest core, {ghz:g} GHz x {FLOP_PER_CYCLE[core]:g} "
            f"({core})",
        )
        if p.one_core is None
        else measured(p.one_core)
    )
    share = _digits(all_cores.value / sum(count for count, _, _ in p.cores))
    if not share <= one_core.value <= all_cores.value:
        value, why = (
            (share, "at least the share of one core of all")
            if one_core.value < share
            else (all_cores.value, "at most that of all cores")
        )
        one_core = Rate(value=value, tag=one_core.tag, source=f"{why}; {one_core.source}")
    if p.copied_bytes_per_s is not None:
        mb = p.copied_bytes_per_s / 1e6
        memory = Rate(
            value=2.0 * p.copied_bytes_per_s,
            tag="measured",
            source=f"2 x memcpy of {mb:g} MB/s, which reads and writes (sbc-bench 53f7951)",
        )
    elif p.of_high is not None:
        ratio, why = p.of_high
        high = rates("phone-high")["memory_bytes_per_s"]
        memory = Rate(
            value=_digits(ratio * high.value),
            tag="estimated",
            source=f"that of phone-high, which is estimated, x {why}",
        )
    else:
        bus = p.bus_bytes_per_s or 0.0
        memory = estimated("memory_bytes_per_s", bus, f"{bus / 1e9:g} GB/s of the memory bus")
    return {
        "matrix_flops": all_cores,
        "core_matrix_flops": one_core,
        "memory_bytes_per_s": memory,
    }


def _digits(value: float) -> float:
    return float(f"{value:.3g}")
