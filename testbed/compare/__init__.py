"""`fairbed compare`: run a grid of experiments with shared seeds, and compare its arms.

grid                  the grid file: arms, seeds, baseline, target
folder                the manifest in the folder of a grid, with which a later call resumes it
pool, worker, cell    run the cells: replays in worker processes, live fleets one after another
tuning                constants of the arms: search space, successive halving, result (pure)
tuning_runs           the runs by which they are chosen
measures              the numbers of a cell, read from its run
statistics            intervals and restricted times (pure)
differences           means and differences from the baseline, on their scales, with verdicts (pure)
twin                  the devices of a run beside replays of their exchanges under a profile
comparison            the arms in comparison with the baseline
table, plots, report  the results as text, figures and files
"""
