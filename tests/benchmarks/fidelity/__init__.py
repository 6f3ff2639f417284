"""The benchmark of fidelity: its arithmetic, its ends, and its quick form on real kernels."""
