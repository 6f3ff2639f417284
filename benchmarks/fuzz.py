"""Feeds every decoder and printer with mutations of a kept corpus: crashes, and the slowest inputs.

    fairbed bench fuzz [--inputs 10000000] [--seed 1] [--only NAME,...] [--engine auto]
                       [--keep DIR] [--json]

Decoders are those of messages, chunks, packets, vectors, transfers, tasks, shards, pages of rows,
profiles, traces, experiment files and stores; `printers` shows each input at every exit, and a
control character or a text with a meaning there is a crash; `--list` names them. The inputs are
divided among them: decoders of files get fewer, because they are slow. An input is fine if it is
decoded or refused with an error that the callers of the decoder expect; other exceptions are
crashes. The time of an input is processor time, the shortest of six: other processes and the disk
do not count.

`--engine atheris` follows the lines that an input reaches (`pip install atheris`, one process
for each decoder, not the same inputs on each machine); `--engine outcomes` needs no package,
follows the errors that an input causes, and gives the same inputs for the same seed; `auto` takes
atheris where it is installed. The exit code is 1 after a crash or an input of more than 50 ms.
`--keep` writes the inputs of crashes, the slowest one and rare ones of each decoder (`just fuzz`:
into `.fuzz/`); a crash becomes a file in `benchmarks/_fuzz/corpus/NAME/`, which the tests decode.
"""

import argparse
import gc
import importlib.util
import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks._fuzz.decoders import DECODERS, Decoder, scratch
from benchmarks._fuzz.engine import Fed, Feeder, feed_mutations
from fairbed.testbed.progress import tracked

LIMIT_S = 0.05
"""Longest processor time of one input: a coordinator decodes on its event loop."""

RARE = 50
"""Inputs of a decoder that reached something new and are kept, the shortest ones."""

SHA1_DIGITS = 40
"""Length of the names that libFuzzer gives to new inputs."""

Feed = Callable[[Decoder, int, int], Fed]


def main(arguments: list[str]) -> int:
    """Feed the decoders and print what became of the inputs; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="fairbed bench fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--inputs", type=int, default=10_000_000, help="of all decoders together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="decoders, by comma")
    parser.add_argument("--engine", choices=["auto", "atheris", "outcomes"], default="auto")
    parser.add_argument("--keep", type=Path, help="folder for inputs that crash or are slow")
    parser.add_argument("--list", action="store_true", help="name the decoders")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(DECODERS))
        return 0
    names = options.only.split(",") if options.only else list(DECODERS)
    if unknown := [name for name in names if name not in DECODERS]:
        parser.error(f"--only: no decoder {unknown[0]!r}; there are: {', '.join(DECODERS)}")
    has_atheris = importlib.util.find_spec("atheris") is not None
    if options.engine == "atheris" and not has_atheris:
        parser.error("--engine: atheris must be installed, got none; run `pip install atheris`")
    engine = "atheris" if has_atheris and options.engine != "outcomes" else "outcomes"
    chosen = [DECODERS[name] for name in names]
    feed = feed_guided if engine == "atheris" else feed_here
    fed = [
        feed(decoder, inputs, options.seed)
        for decoder, inputs in tracked(divided(chosen, options.inputs), "decoders", "fuzz")
    ]
    if options.keep is not None:
        keep(fed, options.keep)
    print_result(fed, engine, options.seed, as_json=options.json)
    is_fine = not any(one.crashes for one in fed) and slowest_s(fed) <= LIMIT_S
    return 0 if is_fine else 1


def divided(decoders: Sequence[Decoder], inputs: int) -> list[tuple[Decoder, int]]:
    """Return the number of inputs of each decoder, in proportion to its share, at least one."""
    total = sum(decoder.share for decoder in decoders)
    return [(decoder, max(1, round(inputs * decoder.share / total))) for decoder in decoders]


def feed_here(decoder: Decoder, inputs: int, seed: int) -> Fed:
    """Feed a decoder in this process, guided by outcomes."""
    with tempfile.TemporaryDirectory() as folder, scratch(Path(folder)):
        logging.disable()
        try:
            return feed_mutations(decoder, inputs, seed)
        finally:
            logging.disable(logging.NOTSET)
            gc.collect()


def feed_guided(decoder: Decoder, inputs: int, seed: int) -> Fed:
    """Feed a decoder in a process of atheris; a process that dies is a crash."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, "-m", "benchmarks._fuzz.guided", decoder.name, str(inputs)]
        done = subprocess.run(
            [*command, str(seed), name],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
        result = folder / "result.json"
        fed = msgspec.json.decode(result.read_bytes(), type=Fed) if result.exists() else None
        fed = fed or Fed(decoder.name)
        if fed.slowest:  # timed again, because the instrumented code is several times slower
            with scratch(folder):
                feeder = Feeder(decoder)
                feeder.feed(fed.slowest)
            fed.slowest_s = feeder.fed.slowest_s
        new = (path for path in (folder / "corpus").glob("*") if len(path.name) == SHA1_DIGITS)
        fed.rare = [path.read_bytes() for path in new]
        if done.returncode:
            fed.crashes += 1
            sys.stderr.write(done.stderr[-4000:])
        return fed


def keep(fed: Sequence[Fed], folder: Path) -> None:
    """Write inputs of each decoder: crashes, the slowest one, and short ones that are rare."""
    for one in fed:
        inputs = {f"crash-{i}": x.data for i, x in enumerate(one.findings.values())}
        rare = sorted(set(one.rare), key=lambda data: (len(data), data))[:RARE]
        inputs |= {f"rare-{i}": data for i, data in enumerate(rare)}
        for name, data in {**inputs, "slowest": one.slowest}.items():
            path = folder / one.decoder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def slowest_s(fed: Sequence[Fed]) -> float:
    """Return the processor time of the slowest input, seconds."""
    return max((one.slowest_s for one in fed), default=0.0)


def print_result(fed: Sequence[Fed], engine: str, seed: int, *, as_json: bool) -> None:
    """Print a line for each decoder, or one object."""
    findings = [finding for one in fed for finding in one.findings.values()]
    result = {
        "engine": engine,
        "seed": seed,
        "inputs": sum(one.inputs for one in fed),
        "crashes": sum(one.crashes for one in fed),
        "slowest_ms": 1e3 * slowest_s(fed),
        "limit_ms": 1e3 * LIMIT_S,
        "decoders": {
            one.decoder: {
                "inputs": one.inputs,
                "accepted": one.accepted,
                "outcomes": one.outcomes,
                "crashes": one.crashes,
                "slowest_ms": 1e3 * one.slowest_s,
            }
            for one in fed
        },
        "findings": [
            {"decoder": x.decoder, "error": x.error, "input": x.data[:2_000].hex()}
            for x in findings
        ],
    }
    if as_json:
        print(msgspec.json.encode(result).decode())
        return
    print(f"{'decoder':<16}{'inputs':>12}{'accepted':>12}{'outcomes':>10}{'crashes':>9}"
          f"{'slowest ms':>12}")  # fmt: skip
    for one in fed:
        print(
            f"{one.decoder:<16}{one.inputs:>12,}{one.accepted:>12,}{one.outcomes:>10}"
            f"{one.crashes:>9}{1e3 * one.slowest_s:>12.2f}"
        )
    print(
        f"{'all':<16}{result['inputs']:>12,}{'':>12}{'':>10}{result['crashes']:>9}"
        f"{result['slowest_ms']:>12.2f}"
    )
    for finding in findings:
        print(f"{finding.decoder}: {finding.error}")
