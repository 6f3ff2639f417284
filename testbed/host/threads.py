"""Environment variables for the number of threads of numerical libraries, read when they load."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")
"""One thread, for a process beside others that compute: more would wait for each other."""
