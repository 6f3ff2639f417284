"""`fairbed doctor --selector`: does a selector keep the contract?"""

import argparse
import time
from typing import Any

import msgspec

from coordinator.algorithms.selection.build import make_selector
from coordinator.algorithms.selection.contract import check_selector
from coordinator.algorithms.selection.guarded import PluginError
from coordinator.config import POLICIES, SelectionConfig
from testbed.commands import DONE, FAILED, UsageError
from testbed.explain import override


def check(options: argparse.Namespace) -> int:
    """Check every property and print what came of it; return 1 if one is broken.

    Raises:
        UsageError: There is no such selector, or it does not take the options.
    """
    name, config = options.selector, _config(options)
    try:
        make_selector(config)
    except (PluginError, ValueError) as exc:
        raise UsageError(str(exc)) from exc
    findings = []
    for finding in check_selector(lambda: make_selector(config), time.perf_counter):
        findings.append(finding)
        if not options.json:
            mark = "ok    " if finding.is_ok else "FAILED"
            print(f"{mark}  {finding.name:<38}  {finding.found}".rstrip(), flush=True)
    broken = sum(not finding.is_ok for finding in findings)
    if options.json:
        print(msgspec.json.encode(findings).decode())
    elif broken:
        print(f"\n{name}: breaks {broken} of {len(findings)} properties")
    else:
        print(f"\n{name}: keeps the contract")
    return FAILED if broken else DONE


def _config(options: argparse.Namespace) -> SelectionConfig:
    raw: dict[str, Any] = {}
    try:
        for setting in options.option:
            override(raw, setting)
    except ValueError as exc:
        raise UsageError(f"--option {setting}: {exc}") from exc
    if options.selector not in POLICIES:
        return SelectionConfig(policy=options.selector, options=raw)
    try:
        return msgspec.convert({"policy": options.selector, **raw}, SelectionConfig)
    except msgspec.ValidationError as exc:
        raise UsageError(f"--option: {exc}") from exc
