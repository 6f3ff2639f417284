"""Trains a network with torch in one place, and writes its values for fine-tuning on devices.

    python pretrain.py pictures pictures.safetensors            # mobilenet.py on five digits
    python pretrain.py pictures cifar.safetensors --folder DIR  # on five classes of CIFAR-10
    python pretrain.py text text.safetensors                    # transformer.py on four speakers

docs/fine-tuning.md goes on with the file.
"""

import argparse
import sys
from pathlib import Path

import halves
import mobilenet
import torch
import transformer
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy

LENGTH = 80
"""Characters of an example, as in lora.toml."""


def main() -> None:
    """Train and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("pictures", "text"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--folder", help="of CIFAR-10, or of texts")
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    if options.what == "pictures":
        x, y = map(torch.from_numpy, halves.first(options.folder))
        model = mobilenet.make(tuple(x.shape[1:]), halves.HALF)
    else:
        x, y, tokens = windows(Path(options.folder or "shakespeare"))
        model = transformer.make((LENGTH,), tokens)
    last = trained(model, x, y, options.epochs)
    save_file({name: value.clone() for name, value in model.state_dict().items()}, options.file)
    line = f"{options.file}: {len(x)} examples, {options.epochs} epochs, last loss {last:.3f}"
    sys.stdout.write(f"{line}\n")


def windows(folder: Path) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return characters and the next ones, shape (n, LENGTH), of the first half of the files.

    Characters are numbered as Fairbed numbers those of the whole folder.
    """
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.txt"))]
    if not texts:
        raise SystemExit(f"{folder}: must have texts, *.txt, got none; name their folder: --folder")
    known = sorted(set("".join(texts)))
    numbers = {character: at for at, character in enumerate(known, start=FIRST_TOKEN)}
    rows = []
    for text in texts[: len(texts) // 2]:
        found = [numbers[character] for character in text]
        rows += [found[at : at + LENGTH + 1] for at in range(0, len(found) - LENGTH, LENGTH // 2)]
    both = torch.tensor(rows)
    return both[:, :-1], both[:, 1:], FIRST_TOKEN + len(known)


FIRST_TOKEN = 2
"""0 is padding, 1 an unknown character."""


def trained(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> float:
    """Train a model in place; return the mean loss of the last epoch."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    total = 0.0
    for _ in range(epochs):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(x)).split(32):
            output = model(x[rows])
            loss = cross_entropy(output.flatten(0, -2), y[rows].flatten())
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += loss.item() * len(rows) / len(x)
    return total


if __name__ == "__main__":
    main()
