"""What a person without a TUI reads while a run is on: one line per round."""

from coordinator.campaign import Progress


def progress_line(progress: Progress, rounds: int) -> str:
    """Return the line of a closed round: cohort, slowest device, tau, accuracy, queue total."""
    row, metric = progress.round, progress.metric
    width = len(str(rounds))
    head = f"round {row.round:>{width}}/{rounds}"
    if row.status == "void":
        return f"{head}  void: nobody trained; the model stays  queues {row.queue_total:.2f}"
    accuracy = f"{metric.accuracy_mean:.3f}" if metric is not None else "-"
    missing = f" ({row.selected - row.aggregated} missing)" if row.aggregated < row.selected else ""
    return (
        f"{head}  tau {row.tau_max_s:6.2f} s  accuracy {accuracy}  queues {row.queue_total:5.2f}  "
        f"slowest {row.slowest}  cohort {' '.join(progress.cohort)}{missing}"
    )
