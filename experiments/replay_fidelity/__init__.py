"""How well a replay predicts a live fleet: `fairbed compare --live-replay EXP.toml`.

The study runs an experiment live several times and records each run. It replays each recorded run
with the same cohorts. The error of the replay is compared with the difference between two live
runs, which no prediction can beat. The results are in docs/live-against-replay.md.
"""
