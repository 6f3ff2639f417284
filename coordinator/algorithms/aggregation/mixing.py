"""AAggFF as a rule of an experiment: the weights are decided from the losses of this very round."""

import math
from typing import Any, Literal

import numpy as np

from coordinator.algorithms.aggregation.aaggff import (
    AAggFFD,
    AAggFFS,
    Cdf,
    responses,
    weights_of,
)
from coordinator.algorithms.aggregation.base import Merge, Reports
from coordinator.algorithms.aggregation.guard import is_usable
from coordinator.algorithms.aggregation.participation import Participation
from coordinator.algorithms.aggregation.running import RunningSum, total_of
from coordinator.algorithms.arrays import Floats, Ints, Vector


class AAggFF:
    """Averages client models with weights that AAggFF-S or AAggFF-D decides anew in every round.

        r = responses(F(w_t)),   p' = learn(r),   w' = w + sum_(i in R) p'_i / sum_R p' (w_i - w)

    All losses of a round are needed before any weight is known, so the updates are kept until
    the last one is there. Buffers are an n_k-weighted mean. A silo that is missing is taken to
    answer what the others do on average; devices that fail count as not drawn.

    Source:
        Hahn et al., ICML 2024, Algorithms 2 and 3 (arXiv:2405.20821).
    """

    needs_loss = True

    def __init__(
        self,
        kind: Literal["s", "d"],
        cdf: Cdf = "weibull",
        *,
        per_round: int = 2,
        beta_cap: float = math.inf,
        impute: Literal["mean", "previous_mean"] = "mean",
        weights: Literal["n", "n_over_pi"] = "n",
    ) -> None:
        """Choose how the weights are decided.

        Args:
            kind: Silos, all of which report, or devices, of which some are drawn.
            cdf: Makes responses of losses.
            per_round: Devices: m, how many are drawn.
            beta_cap: Silos: see `AAggFFS`.
            impute: Devices: see `AAggFFD`.
            weights: Devices: with "n_over_pi" each is in the sample with its running rate of
                merged updates, for a selector that does not draw uniformly.
        """
        self._is_silo, self._cdf = kind == "s", cdf
        self._per_round, self._beta_cap, self._impute = per_round, beta_cap, impute
        self._participation = Participation() if weights == "n_over_pi" and kind == "d" else None
        self._rule: AAggFFS | AAggFFD | None = None

    def merge(self, vector: Vector, n_params: int, reports: Reports) -> Merge:
        """Return the next model, shape (n_values,), or the same one if no report is usable.

        Raises:
            ValueError: The reports carry no losses at all, or one device alone is drawn.
        """
        usable = [
            at
            for at, report in enumerate(reports.one_by_one())
            if is_usable(vector, report, needs_loss=True)
        ]
        weights = np.zeros(len(reports.models))
        if not usable:
            return Merge(vector.copy(), weights)
        assert reports.loss_before is not None
        rows = reports.rows[usable]
        weights[usable] = self._decide(rows, reports.loss_before[usable], reports.clients)
        params, buffers = RunningSum(n_params), RunningSum(vector.size - n_params)
        for at in usable:
            params.add(float(weights[at]), reports.models[at][:n_params])
            buffers.add(float(reports.n_k[at]), reports.models[at][n_params:])
        moved = params.divided_by(total_of(weights))
        averaged = buffers.divided_by(float(reports.n_k[usable].sum()))
        return Merge(np.concatenate([moved, averaged]), weights)

    def to_state(self) -> dict[str, Any]:
        """Return the state as plain numbers and lists, for the checkpoint."""
        return {
            "rule": self._rule.to_state() if self._rule else None,
            "participation": self._participation.to_state() if self._participation else None,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take over a state that `to_state` returned."""
        self._rule = None
        if state["rule"]:
            self._rule = self._made(len(state["rule"]["p"]))
            self._rule.load_state(state["rule"])
        if self._participation:
            self._participation.load_state(state["participation"])

    def _decide(self, rows: Ints, losses: Floats, clients: int) -> Floats:
        """Return the weights of a round's updates, shape (K,), decided from this very round."""
        rule = self._rule = self._rule or self._made(clients)
        rule.grow(clients)
        if isinstance(rule, AAggFFS):
            seen = responses(losses, self._cdf, rule.most)
            r = np.full(len(rule.p), total_of(seen) / len(seen))
            r[rows] = seen
            rule.learn(r)
        else:
            pi = self._participation.observe(rows) if self._participation else None
            rule.learn(rows, responses(losses, self._cdf, rule.inclusion(len(rows))), pi)
        return weights_of(rule.p, rows)

    def _made(self, clients: int) -> AAggFFS | AAggFFD:
        if self._is_silo:
            return AAggFFS(clients, self._beta_cap)
        return AAggFFD(clients, self._per_round, self._impute)
