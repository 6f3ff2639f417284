"""Predictors with access to the ground truth: `fairbed show RUN --estimators`.

An emulated or replayed run stores the true processor speed and link of every device. A predictor
that reads them gives a lower bound of an estimator's error. In an installed package, which has no
`experiments`, the command shows the estimators alone. See docs/estimation.md.
"""
