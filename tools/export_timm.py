"""Export models of timm, one per family: python tools/export_timm.py [--names A,B] [--every].

    pip install timm        in an environment with fairbed[torch]; the project does not depend on it

Each model has fewer than 10 M values, 10 classes, and the smallest pictures that it accepts. It is
exported in a process of its own, with a time limit. `--rules` leaves out the comparison with torch,
so that a result means only that each operation has a rule. Prints a line for each model, then the
share of exported ones, and the operations without a rule by the number of models that need them.
"""

import argparse
import contextlib
import importlib
import io
import json
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

MAX_VALUES, CLASSES = 10_000_000, 10
SIZES = 32, 64, 96, 128, 160, 192, 224, 256
"""Sides of pictures, tried in this order."""


def main() -> int:
    """Export the chosen models, and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--names", help="models; without it, the smallest of each family")
    parser.add_argument("--every", action="store_true", help="all below 10 M values")
    parser.add_argument("--rules", action="store_true", help="without the comparison with torch")
    parser.add_argument("--limit-s", type=float, default=600.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(export_one(options.one, has_check=not options.rules)))
        return 0
    names = options.names.split(",") if options.names else list(small_models(options.every))
    exported, missing = 0, Counter[str]()
    for name in names:
        found = _in_process(name, options)
        exported += found["is_exported"]
        missing.update(found["operations"])
        print(f"{name:<36} {'onnx   ' if found['is_exported'] else 'refused'} {found['text']}")
        sys.stdout.flush()
    print(f"\n{exported} of {len(names)} models exported: {exported / len(names):.0%}")
    for operation, count in missing.most_common():
        print(f"{count:>5}  {operation}")
    return 0


def small_models(is_every: bool) -> Iterator[str]:
    """Yield models below `MAX_VALUES`: all, or the smallest of each family (module of timm)."""
    import torch

    timm = importlib.import_module("timm")

    smallest: dict[str, tuple[int, str]] = {}
    for name in timm.list_models():
        with contextlib.suppress(Exception), torch.device("meta"):  # some need files or packages
            model = timm.create_model(name, num_classes=CLASSES)
            values = sum(p.numel() for p in model.parameters())
            if values < MAX_VALUES and is_every:
                yield name
            elif values < MAX_VALUES:
                family = timm.model_entrypoint(name).__module__
                smallest[family] = min(smallest.get(family, (MAX_VALUES, "")), (values, name))
    yield from (name for _, name in smallest.values())


def _in_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, *["--rules"] * options.rules]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=True,
            timeout=options.limit_s,
        )
    except subprocess.TimeoutExpired:
        return {"is_exported": False, "operations": [], "text": f"over {options.limit_s:g} s"}
    except subprocess.CalledProcessError as exc:
        reason = (exc.stderr.strip().splitlines() or [str(exc)])[-1]
        return {"is_exported": False, "operations": [], "text": reason}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def export_one(name: str, *, has_check: bool) -> dict[str, Any]:
    """Return whether a model is exported, operations without a rule, and a line of text."""
    import torch

    from fairbed.coordinator.task import export
    from fairbed.coordinator.task.errors import TaskError

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, size = _model(name)
    values = sum(p.numel() for p in model.parameters())

    class _Exported(Exception):
        """Both graphs are written."""

    checked: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if not has_check:
        checked = mock.patch.object(export, "stable_check", side_effect=_Exported)
    began_s, problem = time.process_time(), None
    with checked, contextlib.redirect_stdout(io.StringIO()):
        try:
            export.export_task(model, "t", name, (3, size, size), CLASSES)
        except _Exported:
            pass
        except TaskError as exc:
            problem = exc
    spent = f"{size}^2, {values / 1e6:.1f} M values, {time.process_time() - began_s:.0f} s"
    if problem is None:
        return {"is_exported": True, "operations": [], "text": spent}
    lines = getattr(problem.__cause__ or problem, "problems", ()) or (str(problem),)
    operations = sorted(
        {found for line in lines for found in re.findall(r"[a-z_]+\.\w+(?=\.)", line)}
    )
    return {"is_exported": False, "operations": operations, "text": f"{spent}: {problem}"}


def _model(name: str) -> tuple[Any, int]:
    """Return a model for the smallest pictures that it accepts, and their side."""
    import torch

    timm = importlib.import_module("timm")

    for size in SIZES:
        for sized in ({"img_size": size}, {}):
            with contextlib.suppress(Exception), torch.no_grad():  # of timm: whatever it raises
                model = timm.create_model(name, num_classes=CLASSES, **sized)
                model.train()(torch.zeros(2, 3, size, size))
                return timm.create_model(name, num_classes=CLASSES, **sized), size
    raise SystemExit(f"{name}: no size of {SIZES} fits")


if __name__ == "__main__":
    sys.exit(main())
