"""Environment variables that numerical libraries read at their import: their threads."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")
"""Settings for a process that computes beside others: more threads would wait for each other."""

BLAS_WAITS = ("OPENBLAS_THREAD_TIMEOUT", "20")
"""Setting for a process beside agents: an idle thread of OpenBLAS takes a core for 2^20 cycles,
0.4 ms, before it sleeps; by default for 60 ms (measured here), also after the import of numpy."""
