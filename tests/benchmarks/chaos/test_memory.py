"""Growth of memory per round is seen through restarts and noise, and not where there is none."""

import numpy as np
import pytest

from benchmarks._chaos.memory import (
    LARGEST_KB,
    SIGNIFICANT,
    STEP_KB,
    WARM_ROUNDS,
    MemoryLog,
    Slope,
    slope_of,
)


def series(
    rng: np.random.Generator, first: int, rounds: int, kb_per_round: float, noise_kb: float = 200.0
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return the samples of a process that first fills its caches, every ten rounds."""
    r = np.arange(first, first + rounds, 10.0)
    caches_kb = 20_000.0 * np.minimum((r - first) / WARM_ROUNDS, 1.0)
    walk_kb = noise_kb * np.cumsum(rng.standard_normal(len(r))) / np.sqrt(len(r))
    base_kb = rng.uniform(10_000.0, 50_000.0)
    kb = base_kb + caches_kb + walk_kb + kb_per_round * (r - first)
    return np.column_stack((r, 1e3 * kb))


def slope(kb_per_round: float, seed: int, noise_kb: float = 200.0) -> Slope:
    rng, lives = np.random.default_rng(seed), (2_400, 1_200, 2_900, 710, 2_400, 2_000)
    starts = np.cumsum((0, *lives[:-1]))
    found = slope_of(
        [
            series(rng, int(start), life, kb_per_round, noise_kb)
            for start, life in zip(starts, lives, strict=True)
        ]
    )
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(20))
def test_processes_that_do_not_grow_are_within_noise(seed: int) -> None:
    found = slope(0.0, seed)
    assert found.is_within_noise, found
    assert found.series == 5  # one ended while it filled its caches


def test_a_step_of_the_allocator_is_no_growth() -> None:
    rounds = np.arange(0.0, 4_200.0, 10.0)
    kb = 100_000.0 + STEP_KB * (rounds > (WARM_ROUNDS + 4_200.0) / 2)
    found = slope_of([np.column_stack((rounds, 1e3 * kb))])
    assert found is not None
    assert found.is_within_noise
    assert found.kb_per_round == pytest.approx(1.5 * STEP_KB / (4_190 - WARM_ROUNDS), rel=0.01)
    assert found.limit_kb == pytest.approx(found.kb_per_round, rel=0.01)


@pytest.mark.parametrize("seed", range(20))
def test_two_kilobytes_a_round_are_seen(seed: int) -> None:
    found = slope(2.0, seed)
    assert not found.is_within_noise
    assert found.kb_per_round == pytest.approx(2.0, abs=0.8)


def test_noise_never_excuses_a_large_slope() -> None:
    found = slope(3.0, 19, noise_kb=8_000.0)
    assert LARGEST_KB < found.kb_per_round < SIGNIFICANT * found.noise_kb
    assert found.limit_kb == LARGEST_KB
    assert not found.is_within_noise


def test_a_constant_memory_has_no_slope_and_no_noise() -> None:
    found = slope(0.0, 1, noise_kb=0.0)
    assert found.kb_per_round == pytest.approx(0.0, abs=1e-6)
    assert found.noise_kb == pytest.approx(0.0, abs=1e-6)


def test_a_log_has_slopes_of_kinds_that_lived_long_enough() -> None:
    log = MemoryLog()
    for round_id in range(0, 6_000, 10):
        log.add("broker", (7, round_id // 2_000), round_id, 9_000_000 + 2_000 * (round_id % 2_000))
        log.add("agents", 8, round_id, 60_000_000)
        if round_id < 500:
            log.add("fork server", 9, round_id, 50_000_000)
    found = log.slopes()
    assert set(found) == {"broker", "agents"}
    assert found["broker"].kb_per_round == pytest.approx(2.0)
    assert found["broker"].series == 3
    assert found["agents"].kb_per_round == 0.0
