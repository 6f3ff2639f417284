"""Constants of the arms of a grid, chosen on validation examples before the arms are compared.

space     the search space of each arm, as a grid file has it (pure)
halving   which points run with which seeds, and which one is chosen (pure)
result    all that was tried, as JSON, CSV and lines (pure)

`fairbed.testbed.compare.tuning_runs` makes a grid of the tuning runs, and the grid of the arms with
the chosen constants.
"""
