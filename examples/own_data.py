"""Writes the data of own-data.toml: server.npz, and a file for each of two devices.

No picture is in two files. The camera of board-b is mounted upside down.
"""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
order = np.random.default_rng(1).permutation(len(digits.target))
pictures, labels = digits.images[order].astype(np.float32) / 16, digits.target[order]
for name, rows in (
    ("server", slice(0, 800)),
    ("board-a", slice(800, 1300)),
    ("board-b", slice(1300, 1797)),
):
    x = pictures[rows, ::-1, ::-1] if name == "board-b" else pictures[rows]
    np.savez(f"{name}.npz", x=x.reshape(-1, 1, 8, 8), y=labels[rows])
