"""`fairbed bench NAME`: the benchmarks of the repository, each a module with a `main`."""

import argparse
import importlib
import pkgutil
from types import ModuleType

from fairbed.testbed.cli import DONE, UsageError


def main(options: argparse.Namespace) -> int:
    """List the benchmarks, or run one; return the exit code."""
    package = _package()
    names = sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    )
    if options.name is None:
        for name in names:
            module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
            print(f"{name:<16}{(module.__doc__ or '').splitlines()[0]}")
        return DONE
    if options.name not in names:
        raise UsageError(f"bench: no benchmark {options.name!r}; there are: {', '.join(names)}")
    module = importlib.import_module(f"benchmarks.{options.name.replace('-', '_')}")
    code: int = module.main(options.arguments)
    return code


def _package() -> ModuleType:
    try:
        return importlib.import_module("benchmarks")
    except ModuleNotFoundError as exc:
        raise UsageError(
            "bench: the benchmarks live in the source tree; run this from a clone of Fairbed"
        ) from exc
