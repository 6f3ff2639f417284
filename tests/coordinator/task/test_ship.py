"""The shipped artifacts equal those of the exporter."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be exported")
pytest.importorskip("onnx", reason="onnx is not installed: nothing can be exported")

from fairbed.coordinator.task.catalogue import read_shipped  # noqa: E402
from fairbed.coordinator.task.recipes import SHIPPED, Recipe  # noqa: E402
from fairbed.coordinator.task.ship import export_recipe  # noqa: E402

EXPORTED_WITH = "2.13.0"

RECIPES = [
    pytest.param(
        recipe, id=recipe.name, marks=[] if recipe.x_shape == (1, 8, 8) else pytest.mark.full
    )
    for recipe in SHIPPED
]


@pytest.mark.skipif(
    torch.__version__.split("+")[0] != EXPORTED_WITH,
    reason=f"the artifacts were exported with torch {EXPORTED_WITH}, this is {torch.__version__}",
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_shipped_file_equals_a_fresh_export(recipe: Recipe) -> None:
    assert export_recipe(recipe) == read_shipped(recipe.name), (
        f"{recipe.name}: the shipped artifact is outdated; "
        "run `python -m fairbed.coordinator.task.ship`"
    )
