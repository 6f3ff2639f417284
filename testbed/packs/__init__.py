"""A room: packs of runs and grids that a colleague checks and runs again."""
