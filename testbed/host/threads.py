"""How numerical libraries are told how many threads to start; read once, when they are loaded."""

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

ONE_THREAD = dict.fromkeys(THREAD_VARIABLES, "1")
"""For a process beside others that compute: their threads would wait for each other."""
