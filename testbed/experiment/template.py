"""The commented experiment file that `fairbed init` writes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairbed.coordinator.task.recipes import MODELS
from fairbed.testbed.experiment.data import USER_NAMES, DataConfig

SCHEMA_FILE = "fairbed.schema.json"
"""File beside the experiment; editors that know TOML schemas complete and check keys with it."""

_TEMPLATE = """\
#:schema ./{schema}
# An experiment of Fairbed. Every key: `fairbed config {file}`, and docs/configuration.md.
#   fairbed run {file}       broker, coordinator and {devices} emulated devices
#   fairbed replay {file}    the same on a virtual clock, in seconds
name = {name}
seed = 0                           # runs with the same seed draw the same random numbers
rounds = 30

[data]
{data}
# How the examples are divided over the devices: iid, dirichlet, class-mix, by-class or natural.
{partition}

[model]
name = {model:<26} # softmax, mlp, cnn, or package.module:Name for your own torch module

[training]                         # on each device, in each round
epochs = 5
batch_size = 20
learning_rate = 0.05

[selection]
policy = "rbcs-f"                  # or uniform, fedcs, oort, power-of-choice, or your own
per_round = {per_round:<23}# devices selected per round
beta = {beta:<28}# rbcs-f: every device takes part in at least this share of the rounds
V = 2.0                            # rbcs-f: weight of time against fairness, 1/s

[aggregation]
rule = "fedavg"                    # q-fedavg, term, aaggff-d, ...: docs/aggregation.md

[round]
deadline_s = 60.0                  # an update that comes later is dropped

[emulation]
host_core_speed = "auto"           # measured once per machine

{replay}# The devices: `fairbed profiles list` has all profiles, populations and links.
# With link = "city-*.toml", or a list of links, each device of a group draws one of them.
"""

_REPLAY = """\
[replay]
costs_from = "measured"            # the cost of training this model, measured on this machine

"""

_FLEET = """
[[fleet]]
{kind} = "{name}"
count = {count}
"""

_DATA_KEYS = ("dataset", "source", "label", "device", "folder")

_PARTITIONS = {
    **dict.fromkeys(USER_NAMES, 'partition = { kind = "natural" }'),
    "own": 'partition = { kind = "iid" }',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The user's choices in `fairbed init`."""

    data: DataConfig
    """The data set, or the user's own data."""
    model: str
    fleet: Sequence[tuple[str, str]]
    """Key and name of each group: `profile` or `population`."""
    devices: int
    """Number of devices; divided over the groups."""


def experiment_text(name: str, file: str, answers: Answers) -> str:
    """Return a commented experiment file.

    A third of the devices, at least one, is selected per round; `beta` is half of what is possible.
    """
    per_round = max(1, min(answers.devices, round(answers.devices / 3)))
    kind = "own" if answers.data.is_own else answers.data.name
    keys = {key: getattr(answers.data, key) for key in _DATA_KEYS}
    head = _TEMPLATE.format(
        schema=SCHEMA_FILE,
        file=file,
        name=_quoted(name),
        devices=answers.devices,
        data="\n".join(f"{key} = {_quoted(value)}" for key, value in keys.items() if value),
        partition=_PARTITIONS.get(kind, 'partition = { kind = "dirichlet", alpha = 0.5 }'),
        model=_quoted(answers.model),
        per_round=per_round,
        replay=_REPLAY if kind == "own" or answers.model not in MODELS else "",
        beta=math.floor(50 * per_round / answers.devices) / 100,
    )
    groups = len(answers.fleet)
    counts = [
        answers.devices // groups + (group < answers.devices % groups) for group in range(groups)
    ]
    return head.rstrip("\n") + "".join(
        _FLEET.format(kind=key, name=name, count=count)
        for (key, name), count in zip(answers.fleet, counts, strict=True)
        if count
    )


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
