"""Work for a processor: a training kernel, or a given processor time, with or without pacing."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np

from benchmarks._fidelity.end_commands import (
    Burst,
    Compute,
    Passes,
    RunKernel,
    RunPaced,
    Steps,
    Work,
)
from fairbed.testbed.backends.gauges import Gauge
from fairbed.testbed.backends.launcher import host_for
from fairbed.testbed.emulation.work import StepCost, WorkCosts

KERNEL_SIZE = 160
"""Size of the square matrices of the kernel: 8 MFLOP, about 0.2 ms, all in caches."""

_A = np.random.default_rng(1).standard_normal((KERNEL_SIZE, KERNEL_SIZE)).astype(np.float32)
_OUT = [np.empty_like(_A) for _ in range(8)]
"""One output per thread."""


def kernel(repetitions: int, thread: int = 0) -> None:
    """Multiply matrices, the main operation of training."""
    for _ in range(repetitions):
        np.matmul(_A, _A, out=_OUT[thread])


def spin(cpu_s: float) -> None:
    """Use a given processor time of this thread."""
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def run_kernel(command: RunKernel) -> Steps:
    """Take steps of the kernel at the full speed of this machine."""
    with ExitStack() as stack:
        step = _kernel_step(stack, command.repetitions, command.threads)
        step()  # wakes threads, fills caches
        return _timed(step, command.steps, _clock_of(command.threads))


def compute(command: Compute) -> Steps:
    """Compute for a time; return one long step without the lead."""

    def work(thread: int, until: float) -> None:
        while time.monotonic() < until:
            kernel(1, thread)

    cpu = time.process_time
    with ThreadPoolExecutor(command.threads) as pool:

        def together(lasting_s: float) -> None:
            until = time.monotonic() + lasting_s
            list(pool.map(lambda thread: work(thread, until), range(command.threads)))

        together(command.lead_s)
        begun, cpu_before = time.monotonic(), cpu()
        together(command.lasting_s)
        ended = time.monotonic()
    return Steps(wall_s=[ended - begun], cpu_s=[cpu() - cpu_before], begun=begun, ended=ended)


STOP_S = 0.5e-3
"""A thread that does not run for this long was stopped; waits of a quiet machine are shorter."""


def burst(command: Burst) -> Steps:
    """Compute after pauses; return the processor time of each burst until its first stop."""
    wall_s, cpu_s = list[float](), list[float]()
    begun = time.monotonic()
    for number in range(command.count):
        time.sleep(command.idle_s + 1.7e-3 * (number % 7))  # at any phase of a period
        first_wall = last_wall = time.monotonic()
        first_cpu = last_cpu = time.thread_time()
        while last_cpu - first_cpu < command.limit_s:
            wall, cpu = time.monotonic(), time.thread_time()
            if (wall - last_wall) - (cpu - last_cpu) >= STOP_S:
                break
            last_wall, last_cpu = wall, cpu
        wall_s.append(last_wall - first_wall)
        cpu_s.append(last_cpu - first_cpu)
    return Steps(wall_s=wall_s, cpu_s=cpu_s, begun=begun, ended=time.monotonic())


def passes(command: Passes) -> Work:
    """Add arrays in threads for a time; return the work without that of the lead."""
    n = command.n_bytes // 4
    arrays = [
        tuple(np.full(n, value, dtype=np.float32) for value in (1.0, 2.0, 0.0))
        for _ in range(command.threads)
    ]

    def work(thread: int, until: float) -> int:
        one, other, out = arrays[thread]
        done = 0
        while time.monotonic() < until:
            np.add(one, other, out=out)
            done += 1
        return done

    with ThreadPoolExecutor(command.threads) as pool:

        def together(lasting_s: float) -> int:
            until = time.monotonic() + lasting_s
            return sum(pool.map(lambda thread: work(thread, until), range(command.threads)))

        together(command.lead_s)
        before = time.process_time()
        done = together(command.lasting_s)
        return Work(passes=done, cpu_s=time.process_time() - before)


def run_paced(command: RunPaced) -> Steps:
    """Take steps in sections with the pacing of a device."""
    threads = command.device.engine_threads
    costs = None
    if command.cost_s is not None:
        cost = StepCost(fixed_s=command.cost_s, per_example_s=0.0)
        costs = WorkCosts(train=cost, evaluate=cost)
    host = host_for(command.device, costs, Gauge.open(command.gauge), command.sandbox)
    cpu, wall_s, cpu_s = _clock_of(threads), list[float](), list[float]()
    with ExitStack() as stack:
        step = (
            _kernel_step(stack, command.repetitions, threads)
            if command.repetitions
            else lambda: spin(command.spin_s)
        )
        begun = ended = host.clock.now()
        for _ in range(command.sections):
            time.sleep(command.idle_s)
            began = host.clock.now()
            with host.pace.section("train") as meter:
                for _ in range(command.steps):
                    cpu_before = cpu()
                    step()
                    cpu_s.append(cpu() - cpu_before)
                    meter.step(1)
                    ended = host.clock.now()
                    wall_s.append(ended - began)
                    began = ended
            left = host.clock.now()  # sleep at the end of the section belongs to the last step
            wall_s[-1] += left - ended
            ended = left
    return Steps(wall_s=wall_s, cpu_s=cpu_s, begun=begun, ended=ended)


def _kernel_step(stack: ExitStack, repetitions: int, threads: int) -> Callable[[], object]:
    if threads == 1:
        return lambda: kernel(repetitions)
    pool = stack.enter_context(ThreadPoolExecutor(threads - 1))

    def step() -> None:  # the caller is one of the threads, as in an engine
        others = pool.map(lambda thread: kernel(repetitions, thread), range(1, threads))
        kernel(repetitions)
        list(others)

    return step


def _timed(step: Callable[[], object], steps: int, cpu: Callable[[], float]) -> Steps:
    wall_s, cpu_s = list[float](), list[float]()
    begun = time.monotonic()
    for _ in range(steps):
        wall_before, cpu_before = time.monotonic(), cpu()
        step()
        wall_s.append(time.monotonic() - wall_before)
        cpu_s.append(cpu() - cpu_before)
    return Steps(wall_s=wall_s, cpu_s=cpu_s, begun=begun, ended=time.monotonic())


def _clock_of(threads: int) -> Callable[[], float]:
    return time.thread_time if threads == 1 else time.process_time
