"""`fairbed compare`: a grid of runs, the same seeds in every arm, and what they say together.

grid         the grid file: arms, seeds, baseline, target
folder       what a grid's folder remembers, so that a later call goes on
worker, pool the cells of replays, in processes of their own
live         the cells of emulated fleets, one after another
measures     a cell in numbers, read from its run
statistics   intervals and restricted times (pure)
comparison   the arms beside the baseline
table, tex, plots, report   what people read
"""
