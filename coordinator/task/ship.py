"""Regenerates the shipped artifacts; needs torch.

Run `python -m fairbed.coordinator.task.ship [FOLDER]`.
"""

import sys
from pathlib import Path

from fairbed.coordinator.task.catalogue import ARTIFACTS, SUFFIX
from fairbed.coordinator.task.export import export_task
from fairbed.coordinator.task.models import make_model
from fairbed.coordinator.task.recipes import SHIPPED, Recipe
from fairbed.wire.artifact import encode_artifact
from fairbed.wire.console import print_line


def export_recipe(recipe: Recipe) -> bytes:
    """Return the blob of a recipe, newly exported and verified."""
    artifact = export_task(
        make_model(recipe),
        recipe.name,
        recipe.model,
        recipe.x_shape,
        recipe.classes,
        kind=recipe.kind,
    )
    return encode_artifact(artifact)


def main() -> None:
    """Write one file per shipped recipe and print its size."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    for recipe in SHIPPED:
        blob = export_recipe(recipe)
        (folder / f"{recipe.name}{SUFFIX}").write_bytes(blob)
        print_line(f"{recipe.name}: {len(blob)} bytes", sys.stdout)


if __name__ == "__main__":
    main()
