"""Feeds one decoder with atheris, whose libFuzzer follows the lines that an input reaches.

    python -m benchmarks._fuzz.guided DECODER INPUTS SEED FOLDER

A process of its own, because libFuzzer ends it. The result is written to FOLDER/result.json.
"""

import os
import sys
from pathlib import Path
from typing import Any

PART = 2_000
"""Inputs after which the result is written again."""


def main(arguments: list[str]) -> None:
    """Feed a decoder; does not return."""
    import atheris  # type: ignore[import-untyped]  # it has no types

    name, inputs, seed, folder = arguments[0], int(arguments[1]), arguments[2], Path(arguments[3])
    with atheris.instrument_imports(include=["fairbed"], enable_loader_override=False):
        from benchmarks._fuzz import decoders
    import logging

    import msgspec

    from benchmarks._fuzz.engine import Feeder, longest

    logging.disable()
    decoder = decoders.DECODERS[name]
    seeds = folder / "corpus"
    seeds.mkdir()
    corpus = decoder.corpus()
    for number, data in enumerate(corpus):
        (seeds / f"{number:04}").write_bytes(data)
    feeder = Feeder(decoder)

    def write() -> None:
        (folder / "part.json").write_bytes(msgspec.json.encode(feeder.fed))
        (folder / "part.json").replace(folder / "result.json")

    def feed(data: bytes) -> None:
        feeder.feed(data)
        count = feeder.fed.inputs
        if count >= inputs or not count % PART:
            write()
        if count >= inputs:
            os._exit(0)

    with decoders.scratch(folder):
        options: list[Any] = [
            sys.argv[0],
            str(seeds),
            f"-seed={seed}",
            f"-max_len={longest(corpus)}",
            "-rss_limit_mb=4096",
            f"-artifact_prefix={folder}/",
            "-verbosity=0",
            "-print_final_stats=0",
        ]
        atheris.Setup(options, feed)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
