"""Environment variables that set the number of threads of numerical libraries at their import."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")
"""Settings for a process that computes beside others: more threads would wait for each other."""
