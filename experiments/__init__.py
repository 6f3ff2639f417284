"""Studies that are not part of the product; they need a clone of the repository.

fairbed compare --live-replay EXP.toml     replay_fidelity: replays against live runs
fairbed show RUN --estimators              oracle: estimators against the ground truth
fairbed bench rbcs-f-paper                 rbcs_f_paper: the experiments of the RBCS-F paper
"""
