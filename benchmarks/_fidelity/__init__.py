"""Parts of `fairbed bench fidelity`: target against achieved, by backend."""
