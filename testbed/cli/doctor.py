"""`fairbed doctor`: test what this machine can do, one line per feature.

`fairbed doctor --selector NAME` tests a selector against its contract; so do `--aggregator`,
`--estimator` and `--local-training`. `--model NAME` exports a model and prints what it costs.
"""

import argparse
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import msgspec

from fairbed import profiles
from fairbed.coordinator.algorithms.aggregation import contract as aggregation
from fairbed.coordinator.algorithms.contract import Properties, check_contract
from fairbed.coordinator.algorithms.estimation import contract as estimation
from fairbed.coordinator.algorithms.selection import contract as selection
from fairbed.coordinator.policy import plugins
from fairbed.coordinator.policy.config import AggregationConfig, SelectionConfig, TrainingConfig
from fairbed.coordinator.policy.factories import (
    make_estimator,
    make_pseudo_gradient,
    make_rule,
    make_selector,
    make_server_step,
)
from fairbed.coordinator.report.quantities import age
from fairbed.testbed.backends.base import device_spec
from fairbed.testbed.backends.choice import (
    BACKENDS,
    BEST_FIRST,
    BackendName,
    open_backend,
    problem_with,
)
from fairbed.testbed.broker.configuration import BrokerKind
from fairbed.testbed.broker.named import broker_of_room
from fairbed.testbed.broker.permissions import COORDINATOR
from fairbed.testbed.cli import DONE, FAILED
from fairbed.testbed.errors import BackendError, BrokerError, UsageError
from fairbed.testbed.experiment.datasets.catalogue import describe_all
from fairbed.testbed.experiment.explain import part_options
from fairbed.testbed.experiment.file import (
    EMBEDDED,
    Experiment,
    ExperimentError,
    load_experiment,
)
from fairbed.testbed.host.speed import cache_path, cached, forget, host_speed
from fairbed.testbed.install import install_command
from fairbed.testbed.local_rules import PROPERTIES as LOCAL_PROPERTIES
from fairbed.testbed.local_rules import make_halves
from fairbed.testbed.run.broker import (
    await_broker,
    external_url,
    find_broker,
    install_commands,
    start_broker,
)
from fairbed.wire.console import log_lines
from fairbed.wire.errors import innermost
from fairbed.wire.plugins import PluginError, is_path


@dataclass(frozen=True, slots=True)
class _PartKind:
    """A kind of part that has a contract."""

    plugins: plugins.Kind
    section: type[SelectionConfig | AggregationConfig | TrainingConfig]
    make: Callable[[Any], Any]
    """Returns the part that a section names."""
    properties: Properties[Any]
    verbs: tuple[str, ...] = ()
    """Methods by which a plug-in for `--aggregator` is recognised."""

    def configured(self, name: str, options: Mapping[str, Any]) -> Any:
        """Return the section that names a part.

        Raises:
            UsageError: A built-in part does not accept the options.
        """
        key, options_key = (k.rpartition(".")[2] for k in (self.plugins.key, self.plugins.options))
        is_built_in = name in self.plugins.built_in
        values = {key: name, **(options if is_built_in else {options_key: options})}
        try:
            return msgspec.convert(values, self.section)
        except msgspec.ValidationError as exc:
            raise UsageError(f"--option: {exc}") from exc


_SELECTOR = _PartKind(plugins.SELECTOR, SelectionConfig, make_selector, selection.PROPERTIES)
_ESTIMATOR = _PartKind(plugins.ESTIMATOR, SelectionConfig, make_estimator, estimation.PROPERTIES)
_LOCAL_RULE = _PartKind(plugins.LOCAL_RULE, TrainingConfig, make_halves, LOCAL_PROPERTIES)
_AGGREGATION = (
    _PartKind(
        plugins.RULE,
        AggregationConfig,
        lambda config: make_rule(config, per_round=2),
        aggregation.RULE_PROPERTIES,
        ("decide",),
    ),
    _PartKind(
        plugins.PSEUDO_GRADIENT,
        AggregationConfig,
        lambda config: make_pseudo_gradient(config, TrainingConfig()),
        aggregation.PSEUDO_GRADIENT_PROPERTIES,
        ("combine", "coefficients"),
    ),
    _PartKind(
        plugins.SERVER_STEP,
        AggregationConfig,
        make_server_step,
        aggregation.SERVER_STEP_PROPERTIES,
        ("step",),
    ),
)


def _test_part(options: argparse.Namespace) -> int:
    """Check every property of a part and print the results; return 1 if one is broken.

    Raises:
        UsageError: There is no such part, or it does not accept the options.
    """
    try:
        settings = part_options(options.option)
        name, kind = _named_part(options, settings)
        config = kind.configured(name, settings)
        kind.make(config)
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    findings = []
    for finding in check_contract(kind.properties, lambda: kind.make(config), time.perf_counter):
        findings.append(finding)
        if not options.json:
            mark = "ok    " if finding.is_ok else "FAILED"
            print(f"{mark}  {finding.name:<40}  {finding.found}".rstrip(), flush=True)
    broken = sum(not finding.is_ok for finding in findings)
    if options.json:
        print(msgspec.json.encode(findings).decode())
    elif broken:
        print(f"\n{kind.plugins.noun} {name}: breaks {broken} of {len(findings)} properties")
    else:
        print(f"\n{kind.plugins.noun} {name}: satisfies the contract")
    return FAILED if broken else DONE


def _named_part(options: argparse.Namespace, settings: Mapping[str, Any]) -> tuple[str, _PartKind]:
    """Return name and kind of the part to test.

    Raises:
        PluginError: It cannot be loaded, or is no part of an aggregation.
    """
    if options.selector is not None:
        return options.selector, _SELECTOR
    if options.estimator is not None:
        return options.estimator, _ESTIMATOR
    if options.local_training is not None:
        return options.local_training, _LOCAL_RULE
    name: str = options.aggregator
    if not is_path(name):
        found = (kind for kind in _AGGREGATION if kind.plugins.has(name))
        if (kind := next(found, None)) is not None:
            return name, kind
        names = ", ".join(repr(n) for kind in _AGGREGATION for n in kind.plugins.names())
        raise PluginError(
            f"aggregator {name}: must be one of {names} or package.module:Name; install it"
        )
    part = replace(plugins.RULE, noun="aggregator", options="--option").make(name, settings)
    for kind in _AGGREGATION:
        if any(callable(getattr(part, verb, None)) for verb in kind.verbs):
            return name, kind
    raise PluginError(
        f"aggregator {name}: must have decide() (a weight rule), combine() or coefficients() (a "
        f"pseudo-gradient) or step() (a server step), got {type(part).__name__} without them; "
        "docs/own-aggregator.md has an example"
    )


TRY_S = 30.0
"""Time limit of one test, seconds."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one test."""

    kind: str
    name: str
    is_ok: bool
    found: str
    what_to_do: str = ""
    is_needed: bool = False
    """The named experiment needs it."""


def main(options: argparse.Namespace) -> int:
    """Run all tests; return 1 if one fails that the experiment needs."""
    level = logging.DEBUG if hasattr(options, "debug") else logging.CRITICAL
    log_lines(level, logging.BASIC_FORMAT)  # each failure is printed on its own line
    if options.selector or options.aggregator or options.estimator or options.local_training:
        return _test_part(options)
    experiment = None
    if options.experiment is not None:
        try:
            experiment = load_experiment(options.experiment)
        except ExperimentError as exc:
            raise UsageError(str(exc)) from exc
    if options.calibrate:
        forget(os.environ)
    if options.model is not None:
        from fairbed.testbed.cli import doctor_model

        return doctor_model.main(options, experiment)
    results = list(_test_all(experiment))
    if options.json:
        print(msgspec.json.encode(results).decode())
    else:
        for result in results:
            mark = "ok     " if result.is_ok else "MISSING" if result.is_needed else "missing"
            hint = f"; {result.what_to_do}" if result.what_to_do and not result.is_ok else ""
            needed = " (needed by this experiment)" if result.is_needed else ""
            print(f"{mark}  {result.kind:<8} {result.name:<14} {result.found}{hint}{needed}")
    return FAILED if any(result.is_needed and not result.is_ok for result in results) else DONE


def _test_all(experiment: Experiment | None) -> Iterator[CheckResult]:
    yield from _brokers(experiment)
    yield from _backends(experiment)
    yield from _engines(experiment)
    yield from _host(experiment)
    yield from _datasets(experiment)


def _brokers(experiment: Experiment | None) -> Iterator[CheckResult]:
    config = experiment.broker if experiment is not None else None
    working = []
    for kind, hint in install_commands().items():
        is_needed = config is not None and config.url == EMBEDDED and config.kind == kind
        try:
            seconds = anyio.run(_try_broker, kind)
        except (BrokerError, TimeoutError, OSError) as exc:
            if find_broker(kind) is not None:  # to install it would not help
                hint = ""
            yield CheckResult("broker", kind, False, what_failed(exc), hint, is_needed)
            continue
        working.append(kind)
        yield CheckResult("broker", kind, True, f"answers after {seconds:.2f} s", "", is_needed)
    if config is not None and config.url == EMBEDDED and config.kind == "auto":
        found = f"selects {working[0]}" if working else "none works"
        yield CheckResult("broker", "auto", bool(working), found, "install one of them", True)
    if config is not None and config.url != EMBEDDED:
        try:
            named = broker_of_room(config.url)
            url = external_url(config.url) if named is None else named.login(COORDINATOR)
            anyio.run(await_broker, url)
            yield CheckResult("broker", "url", True, "answers", "", True)
        except (BrokerError, UsageError) as exc:
            yield CheckResult("broker", "url", False, str(exc), "", True)


def what_failed(problem: Exception) -> str:
    """Return why a test failed; the error of a time limit has no text of its own."""
    if isinstance(problem, TimeoutError):
        return f"no result in {TRY_S:g} s: this machine is too slow, or too busy now"
    return str(problem)


async def _try_broker(kind: BrokerKind) -> float:
    started = anyio.current_time()
    if find_broker(kind) is None:
        raise BrokerError("not installed")
    with tempfile.TemporaryDirectory(prefix="fairbed-doctor-") as folder, anyio.fail_after(TRY_S):
        async with start_broker(kind, folder=Path(folder)):
            return anyio.current_time() - started


_BACKEND_DESCRIPTIONS: Mapping[BackendName, str] = {
    "namespace": "the kernel limits links, processor and memory",
    "container": "the same in podman containers with this machine's root file system",
    "process": "pacing and TCP proxies, no root needed",
}


def _backends(experiment: Experiment | None) -> Iterator[CheckResult]:
    has_fleet = experiment is not None and bool(experiment.fleet)
    configured = experiment.emulation.backend if experiment is not None and has_fleet else None
    working = []
    for name in BACKENDS:
        try:
            seconds = anyio.run(_try_backend, name)
        except Exception as exc:  # task groups wrap errors
            problem = innermost(exc)
            if not isinstance(problem, (BackendError, TimeoutError, OSError)):
                raise
            hint = 'or use emulation.backend = "auto"' if configured == name else ""
            found = what_failed(problem)
            yield CheckResult("backend", name, False, found, hint, configured == name)
            continue
        working.append(name)
        found = f"ran an agent in {seconds:.2f} s; {_BACKEND_DESCRIPTIONS[name]}"
        yield CheckResult("backend", name, True, found, "", configured == name)
    if configured == "auto":
        best = next((name for name in BEST_FIRST if name in working), None)
        found = f"selects {best}" if best else "none works"
        yield CheckResult("backend", "auto", best is not None, found, "see the lines above", True)


async def _try_backend(name: BackendName) -> float:
    """Start and end one agent, without a broker; return the time, seconds."""
    started = anyio.current_time()
    problem = await problem_with(name)
    if problem is not None:
        raise BackendError(problem)
    fleet = [device_spec("doctor", profiles.load("raspberry-pi-4b"))]
    with tempfile.TemporaryDirectory(prefix="fairbed-doctor-") as folder, anyio.fail_after(TRY_S):
        async with open_backend(name, fleet, Path(folder), "doctor") as choice:
            host = choice.broker_host or "127.0.0.1"
            async with choice.backend(f"mqtt://{host}:9") as backend:
                await backend.start()
    return anyio.current_time() - started


def _engines(experiment: Experiment | None) -> Iterator[CheckResult]:
    from fairbed.coordinator.task.catalogue import load_task
    from fairbed.coordinator.task.errors import TaskError
    from fairbed.device_agent.engines.base import self_check
    from fairbed.device_agent.engines.onnx import OnnxEngine
    from fairbed.device_agent.errors import EngineError
    from fairbed.device_agent.installed import engine_version

    is_needed = experiment is not None
    try:
        artifact = load_task("softmax", (60,), 10)
        self_check(OnnxEngine(artifact))
        found = f"{engine_version()}, gradients are correct"
        yield CheckResult("engine", "onnxruntime", True, found, "", is_needed)
    except (EngineError, TaskError, ImportError) as exc:
        hint = install_command("onnxruntime")
        yield CheckResult("engine", "onnxruntime", False, str(exc), hint, is_needed)
    try:
        import torch

        yield CheckResult(
            "engine",
            "torch",
            True,
            f"{torch.__version__}: own models can be exported, or trained with it",
        )
    except ImportError:
        yield CheckResult(
            "engine",
            "torch",
            False,
            "not installed",
            f"only for own models: {install_command('fairbed[torch]')}",
        )


def _host(experiment: Experiment | None) -> Iterator[CheckResult]:
    is_needed = experiment is not None and experiment.emulation.host_core_speed == "auto"
    try:
        speed = host_speed(os.environ)
    except BackendError as exc:
        yield CheckResult("host", "core speed", False, str(exc), "", is_needed)
        return
    measured = _measured(speed.spread_ratio, speed.measured_at)
    found = (
        f"{speed.core_speed:g} of a reference core, within a factor of 2: a training step takes "
        f"{speed.step_s * 1e3:.2f} ms, {measured} (cached in {cache_path(os.environ)})"
    )
    yield CheckResult("host", "core speed", True, found, "", is_needed)
    for task in cached(os.environ):
        step_s = task.scaled(speed.step_s).train.seconds(task.batch_size)
        found = (
            f"a training step of {task.batch_size} examples takes {step_s * 1e3:.3g} ms, "
            f"{_measured(task.spread_ratio, task.measured_at)}"
        )
        yield CheckResult("costs", task.task, True, found)


def _measured(spread_ratio: float, measured_at: float) -> str:
    """Return spread and age of a measurement; `fairbed doctor --calibrate` measures again."""
    since = age(max(0.0, time.time() - measured_at))
    return f"±{100.0 * spread_ratio:.1f} %, measured {since} ago"


def _datasets(experiment: Experiment | None) -> Iterator[CheckResult]:
    from fairbed.testbed.experiment.datasets.dataset import DatasetError
    from fairbed.testbed.experiment.shards import load_examples

    chosen = None if experiment is None else experiment.data.name
    for status in describe_all(os.environ):
        if status.name != chosen:
            problem = status.problem.removeprefix(f"{status.name}: ")
            found = f"{status.description} ({status.where})" if status.is_available else problem
            yield CheckResult("data", status.name, status.is_available, found, status.what_to_do)
    if experiment is not None:
        try:
            data = load_examples(experiment, os.environ, always_twice=True)
            found = f"{data.description} ({data.source})"
            yield CheckResult("data", experiment.data.name, True, found, "", True)
        except DatasetError as exc:
            problem = str(exc).removeprefix(f"{experiment.data.name}: ")
            yield CheckResult("data", experiment.data.name, False, problem, "", True)
