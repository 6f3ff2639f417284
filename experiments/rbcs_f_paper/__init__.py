"""The experiments of the RBCS-F paper, replayed: `fairbed bench rbcs-f-paper`.

    fairbed bench rbcs-f-paper --figures 2,3,4     selection alone: times, queues, rates
    fairbed bench rbcs-f-paper --figures 5,6       with training; needs FAIRBED_DATA

`arms` and `settings` list the replays, `rounds` and `training` run them, `table`, `summary` and
`reading` evaluate them, `figures`, `accuracy` and the reports present them. `reference` has the
numbers of the recorded reference simulation. The results are in docs/selection.md.
"""
