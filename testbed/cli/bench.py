"""`fairbed bench NAME`: run a benchmark of the repository, a module with a `main`."""

import argparse
import pkgutil
from types import ModuleType

import msgspec

from fairbed.testbed.cli import DONE, from_clone
from fairbed.testbed.errors import UsageError
from fairbed.testbed.host.termination import unwound_by_signals


def main(options: argparse.Namespace) -> int:
    """List the benchmarks, or run one; return the exit code."""
    package = from_clone("benchmarks")
    names = sorted(
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(package.__path__)
        if not module.name.startswith("_")
    )
    if options.name is None:
        texts = {name: (_module(name).__doc__ or "").splitlines()[0] for name in names}
        if options.json:
            print(msgspec.json.encode(texts).decode())
        else:
            print("\n".join(f"{name:<20}{text}" for name, text in texts.items()))
        return DONE
    if options.name not in names:
        raise UsageError(f"bench: no benchmark {options.name!r}; there are: {', '.join(names)}")
    if options.json:  # before the name; after it, it is an argument of the benchmark
        options.arguments.append("--json")
    with unwound_by_signals():  # ends what a benchmark started
        code: int = _module(options.name).main(options.arguments)
    return code


def _module(name: str) -> ModuleType:
    return from_clone(f"benchmarks.{name.replace('-', '_')}")
