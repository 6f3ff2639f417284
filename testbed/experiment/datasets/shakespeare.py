"""Speeches of Shakespeare by role: 80 characters, and the character that follows.

Source:
    McMahan et al., AISTATS 2017; Caldas et al., LEAF, arXiv:1812.01097: one user per role, a model
    that reads 80 characters predicts the next.
Deviates:
    The text is tinyshakespeare, so a role is a name in any of its plays. Windows begin every 20
    characters instead of every one: 21 times fewer examples, of the same text.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np

from fairbed.testbed.experiment.datasets.dataset import Dataset
from fairbed.testbed.experiment.datasets.own import check_memory
from fairbed.testbed.experiment.datasets.published_files import read_published
from fairbed.testbed.experiment.published import PUBLISHED
from fairbed.wire.preparation import FIRST, TextPreparation, tokenizer

STRIDE = 20
"""Characters from the start of a window to that of the next."""
LEAST = 10
"""Fewest examples of a role: `data.min_examples`."""


def load_shakespeare(name: str, folder: Path) -> Dataset:
    """Return the windows of all roles, x tokens of shape (n, 80), y the character that follows.

    Token k is the character k - 2 of the text, in their order, and class k is character k.

    Roles with fewer than `LEAST` windows are left out, with a line.

    Raises:
        DatasetError: The file is missing, damaged or another one.
    """
    (content,) = read_published(name, folder).values()
    return windows(name, content.decode("utf-8"))


def roles(text: str) -> dict[str, str]:
    """Return the words of each role, by its name, roles in the order of their names.

    A speech begins with a line `Name:` and ends with an empty line.
    """
    words = defaultdict[str, list[str]](list)
    for speech in text.split("\n\n"):
        role, _, lines = speech.strip("\n").partition(":\n")
        if lines:
            words[role.strip()].append(lines)
    return {role: "\n".join(lines) for role, lines in sorted(words.items())}


def windows(name: str, text: str) -> Dataset:
    """Return the data set of a text of speeches."""
    length = PUBLISHED[name].x_shape[0]
    preparation = TextPreparation(
        unit="characters",
        length=length,
        target="label",
        stride=STRIDE,
        vocabulary=tuple(sorted(set(text))),
    )
    encode = tokenizer(preparation)
    found = {role: encode(text_of_role) for role, text_of_role in roles(text).items()}
    starts = {role: np.arange(0, len(tokens) - length, STRIDE) for role, tokens in found.items()}
    kept = [role for role in found if len(starts[role]) >= LEAST]
    n = sum(len(starts[role]) for role in kept)
    check_memory(name, n * length * np.dtype(np.int64).itemsize)
    places = np.arange(length)
    x = [found[role][starts[role][:, np.newaxis] + places] for role in kept]
    y = [found[role][starts[role] + length] - FIRST for role in kept]
    left_out = len(found) - len(kept)
    published = PUBLISHED[name]
    return Dataset(
        name=name,
        x=np.concatenate(x),
        y=np.concatenate(y),
        classes=len(preparation.vocabulary),
        x_classes=preparation.x_classes,
        device_ids=np.repeat(np.arange(len(kept)), [len(each) for each in y]),
        description=f"{n:,} windows of {length} characters and the next one, {len(kept)} roles, "
        f"{preparation.x_classes} tokens",
        source=published.source,
        origin="verified",
        notes=(f"{left_out} of {len(found)} roles have fewer than {LEAST} windows: left out",),
    )
