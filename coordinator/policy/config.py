"""The coordinator's sections of an experiment file; defaults are defined only here."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
from msgspec import Meta, Struct

from fairbed.coordinator.algorithms.aggregation.base import Step
from fairbed.coordinator.algorithms.aggregation.propfair import LEAST_GAP
from fairbed.coordinator.algorithms.aggregation.quadratic import MOST_WEIGHTS
from fairbed.coordinator.algorithms.arrays import Ints
from fairbed.wire.artifact import Adaptation, BatchNorm, ClassesAxis, Lora, Patterns, TaskKind
from fairbed.wire.messages import (
    ALTERNATING_SKILL,
    AUGMENT_SKILL,
    MAX_AUGMENTS,
    MAX_OPTIONS,
    OPTIMISER_SKILL,
    Augment,
    Beta,
    DownCodec,
    HeldOut,
    Hyperparameters,
    Lambda,
    LambdaChoice,
    LocalValues,
    Optimiser,
    OptimiserName,
    OptionName,
    OptionValue,
    Personal,
    Privacy,
    Schedule,
    ScheduleKind,
    UpCodec,
)
from fairbed.wire.plugins import is_path

PositiveFloat = Annotated[float, Meta(gt=0.0)]
NonNegativeFloat = Annotated[float, Meta(ge=0.0)]
Duration = Annotated[float, Meta(gt=0.0, le=1e7)]
PositiveInt = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Rounds = Annotated[int, Meta(ge=1, le=10_000_000)]


MIN_LEARNING_RATE = 1e-30
"""Smallest learning rate, near the smallest float32; its square is a float64 above 0."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: immutable, and unknown keys are errors."""


ModelEngine: TypeAlias = Literal["auto", "onnx", "torch"]


ModelClass: TypeAlias = Annotated[str, Meta(pattern=r"^[a-z0-9-]{1,32}$")]


OF_MODULE = "module"
"""`model.weights`: the values that the factory gave."""


class ModelConfig(Section, frozen=True, kw_only=True):
    """`[model]`: the model that is trained."""

    name: str = "cnn"
    """softmax, mlp, cnn, a model of a published study (docs/data-sets.md), or
    `package.module:Name`; all but the first three need the torch extra."""
    task: TaskKind | None = None
    """classification: a logit per class; binary: one logit for two classes; regression: one number;
    multi-label: a logit per label, of which any number may be set; not set: regression if the
    targets are floats, else classification."""
    classes_axis: ClassesAxis | None = None
    """Where the classes are in an output for several positions per example: first is
    (B, classes, ...), last is (B, ..., classes); not set: the one axis that has their number."""
    engine: ModelEngine = "auto"
    """What trains it on devices: onnx exports it as graphs; torch imports the module on devices
    that have torch and whose owners allow it; auto takes torch if it cannot be exported."""
    batch_norm: BatchNorm = "merged"
    """Running statistics of batch normalisation: merged, as the parameters are; silobn: each device
    keeps its own; fedbn: it keeps scale and shift, too; frozen: they never change, in training
    neither."""
    weights: str | None = None
    """Values before round 1: a `.safetensors` file with the tensors of the model by name, or
    `module`, those that the factory gave; not set: random values of `seeds.init`."""
    fresh: Patterns = ()
    """Parameters that begin at random although there are weights, as a new head does: patterns of
    names such as `head.*`."""
    trainable: Patterns = ()
    """Parameters that are trained; all others are frozen, and are sent once, as the base. Not set:
    those that the module leaves trainable or, with `lora`, the adapters alone."""
    lora: Lora | None = None
    """Adapters of low rank: a frozen weight W counts as W + (alpha / rank) B A, and A and B are
    trained."""
    personal: Patterns = ()
    """Parameters that each device keeps for itself, such as `head.*` (FedPer): they are trained,
    and never leave it."""
    loss: Annotated[str, Meta(min_length=1, max_length=256)] = "auto"
    """What training minimises: auto is the cross-entropy of classes and labels, and half the
    squared error of regression; cross-entropy, hinge, huber, multi-label and dice have options;
    `package.module:function` is your own (docs/own-loss.md). All but auto need torch here."""
    loss_options: Annotated[
        dict[OptionName, OptionValue | tuple[float, ...]], Meta(max_length=MAX_OPTIONS)
    ] = {}
    """Arguments of the loss by name, such as `{ label_smoothing = 0.1, weight = [1.0, 4.0] }`."""
    like: ModelClass | None = None
    """Class of the model, such as resnet-18: a training step takes what a profile has measured for
    it (`train_s`), if anything; not set: what follows from its arithmetic, memory and cost."""

    def __post_init__(self) -> None:
        if self.fresh and self.weights is None:
            raise ValueError(
                f"fresh must have weights beside it, got {list(self.fresh)} without: all "
                "parameters begin at random; remove it, or set weights"
            )

    @property
    def has_local_values(self) -> bool:
        """Each device keeps some values of the model for itself."""
        return self.batch_norm in ("silobn", "fedbn") or bool(self.personal)

    @property
    def adaptation(self) -> Adaptation | None:
        """What of the module is trained; None: all that it leaves trainable."""
        if not self.trainable and self.lora is None:
            return None
        return Adaptation(trainable=self.trainable, lora=self.lora)

    @property
    def has_own_loss(self) -> bool:
        """The loss is not that of the task."""
        return self.loss != "auto" or bool(self.loss_options)


LOCAL_RULES = ("sgd", "propfair")
"""Built-in local rules."""
RESCALING_LOCAL_RULES = ("propfair",)
"""Local rules whose steps are shorter or longer than those of SGD, whatever the merge does."""


class TrainingConfig(Section, frozen=True, kw_only=True):
    """`[training]`: local training on the device; its bounds are those of the wire messages."""

    epochs: Annotated[int, Meta(ge=1, le=10_000)] = 1
    """Passes over the training examples of the device."""
    personal_epochs: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Passes that first train `model.personal` alone, before `epochs` passes that train the other
    parameters alone (FedRep); 0: all are trained together (FedPer)."""
    least_epochs: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Each device draws its passes of a round by seed, uniformly from this number to `epochs`; not
    set: `epochs`."""
    batch_size: Annotated[int, Meta(ge=1, le=1 << 20)] = 20
    """Examples of a mini-batch."""
    learning_rate: Annotated[float, Meta(ge=MIN_LEARNING_RATE, le=1e15)] = 0.1
    """Step size in the first rounds, after the warm-up."""
    learning_rate_decay: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Factor on the learning rate after every `decay_every` rounds (schedule step)."""
    decay_every: PositiveInt = 10
    """Rounds, or local steps with `schedule_by`."""
    schedule: ScheduleKind = "step"
    """How the learning rate falls: by `learning_rate_decay` (step), or along half a cosine to
    `least_learning_rate` (cosine)."""
    schedule_by: Literal["round", "step"] = "round"
    """The schedule and `warm_up` count rounds, or the local steps of each round from its first."""
    schedule_length: PositiveInt | None = None
    """cosine: rounds until the least rate, with those of `warm_up`, after which it stays; by step
    not set: the steps of the device in the round."""
    least_learning_rate: Annotated[float, Meta(ge=0.0, le=1e15)] = 0.0
    """cosine: the least rate."""
    warm_up: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """Rounds, or local steps with `schedule_by`, in which the learning rate rises linearly."""
    optimiser: OptimiserName = "sgd"
    """sgd, adam, or adamw, whose weight decay is decoupled."""
    optimiser_state: Literal["reset", "kept"] = "reset"
    """Momentum and moments of the optimiser begin at zero in each round (reset), or each device
    keeps its own from round to round; a round counts if its update was merged."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """adam, adamw: decays of the means of gradients and of their squares."""
    epsilon: Annotated[float, Meta(gt=0.0, le=1.0)] = 1e-8
    """adam, adamw: term of the denominator."""
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """sgd: momentum."""
    nesterov: bool = False
    """sgd: Nesterov's momentum."""
    weight_decay: Annotated[float, Meta(ge=0.0, le=1e3)] = 0.0
    """L2 penalty on the parameters, as in torch.optim.SGD and Adam; with adamw, the decay that
    AdamW decouples from the gradient."""
    proximal: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.0
    """FedProx mu."""
    clip_norm: Annotated[float, Meta(gt=0.0, le=1e15)] | None = None
    """Largest L2 norm of the gradient of a mini-batch; not set: no clipping."""
    max_steps: PositiveInt | None = None
    """Stop after this many mini-batches; not set: all epochs."""
    least_steps: PositiveInt | None = None
    """Each device draws its mini-batches of a round by seed, uniformly from this number to
    `max_steps`; not set: `max_steps`."""
    micro_batch: Annotated[int, Meta(ge=1, le=1 << 20)] | Literal["auto"] | None = None
    """Examples of a part in which a device computes a mini-batch, which bounds its memory; auto:
    the most that fit into it; not set: whole mini-batches."""
    micro_batch_statistics: bool = False
    """Micro-batches may change the results of a model whose examples affect each other, as those of
    batch normalisation do; otherwise such a model is refused."""
    augment: Annotated[
        tuple[dict[OptionName, OptionValue], ...], Meta(max_length=MAX_AUGMENTS)
    ] = ()
    """Changes of each mini-batch by seed, in order, each a table with its `kind` and options, as in
    `[{kind = "crop", padding = 4}, {kind = "flip"}]`; docs/optimisers.md has the kinds. A function
    of yours is `package.module:function`, which the owner of a device allows."""
    rule: Annotated[str, Meta(examples=list(LOCAL_RULES))] = "sgd"
    """Change of local training: none (sgd), proportional fairness of each mini-batch (propfair), or
    a plug-in as `package.module:Name` or by entry point."""
    rule_options: Annotated[dict[OptionName, OptionValue], Meta(max_length=MAX_OPTIONS)] = {}
    """Keyword arguments of a plug-in rule; they are sent to devices."""
    M: Annotated[float, Meta(gt=0.2, le=1e6)] = 3.0
    """propfair: bound of the loss of a mini-batch, nats; take one above every usual loss."""
    client: str | None = None
    """Training code of yours, as `package.module:Class`, that replaces model and training loop; it
    gets the keys above as hyperparameters. Not set: SGD on `[model]`."""
    client_folder: str | None = None
    """Folder with the code of the client; not set: that of the experiment file. A device runs it if
    its owner allows a folder of this name and content."""
    client_python: str | None = None
    """Python that runs the client on emulated devices and before round 1; not set: that of
    Fairbed."""
    client_options: Annotated[dict[OptionName, OptionValue], Meta(max_length=64)] = {}
    """Hyperparameters of the client; they are sent to devices."""
    loss_metric: Annotated[str, Meta(max_length=64)] = ""
    """Metric of the client that is the loss of the received model on its training examples, which
    rules and policies that need losses use; not set: there is none, so they are refused."""

    @property
    def local_options(self) -> dict[str, OptionValue]:
        """Arguments of the local rule."""
        return {"base": self.M} if self.rule == "propfair" else self.rule_options

    def learning_rate_at(self, round_id: int) -> float:
        """Return the learning rate of a round, counted from 1; by step: before its schedule."""
        if self.schedule_by == "step":
            return self.learning_rate
        if self.schedule == "step" and not self.warm_up:  # every run before other schedules
            factor = self.learning_rate_decay ** ((round_id - 1) // self.decay_every)
        else:
            from fairbed.wire.schedule import rate_factor

            factor = rate_factor(self._schedule, round_id - 1, 1)
        return max(self.learning_rate * factor, MIN_LEARNING_RATE)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(
            kind=self.schedule,
            warm_up=self.warm_up,
            every=self.decay_every,
            factor=self.learning_rate_decay,
            length=self.schedule_length,
            least_ratio=min(1.0, self.least_learning_rate / self.learning_rate),
        )

    @property
    def _optimiser(self) -> Optimiser | None:
        """What devices need to know of the optimiser; None: SGD with momentum from zero."""
        keeps = self.keeps_state
        if self.optimiser == "sgd":
            is_other = self.nesterov or keeps
            return Optimiser(nesterov=self.nesterov, keeps_state=keeps) if is_other else None
        name, betas, epsilon = self.optimiser, self.betas, self.epsilon
        return Optimiser(name=name, betas=betas, epsilon=epsilon, keeps_state=keeps)

    @property
    def changes_within_round(self) -> bool:
        """The learning rate changes between the local steps of a round."""
        falls = self.schedule == "cosine" or self.learning_rate_decay != 1.0
        return self.schedule_by == "step" and (falls or self.warm_up > 0)

    @property
    def keeps_state(self) -> bool:
        """Each device keeps the moments of its optimiser from round to round."""
        has_moments = self.optimiser != "sgd" or self.momentum > 0.0
        return self.optimiser_state == "kept" and has_moments

    @property
    def needed_skills(self) -> tuple[str, ...]:
        """Skills without which a device would train otherwise than the run."""
        if self.client is not None:
            return ()
        needs_it = self._optimiser is not None or self.changes_within_round
        return (
            *((OPTIMISER_SKILL,) if needs_it else ()),
            *((AUGMENT_SKILL, *self.own_augmentations) if self.augment else ()),
            *((ALTERNATING_SKILL,) if self.personal_epochs else ()),
        )

    @property
    def own_augmentations(self) -> tuple[str, ...]:
        """Paths of the functions that augment."""
        kinds = (str(one.get("kind", "")) for one in self.augment)
        return tuple(kind for kind in kinds if is_path(kind))

    @property
    def augmentations(self) -> tuple[Augment, ...]:
        """What devices do with each mini-batch.

        Raises:
            PluginError: The file of a function cannot be found.
        """
        if not self.augment:
            return ()
        from fairbed.wire.augment import requested

        return tuple(map(requested, self.augment))

    @property
    def gradients_per_step(self) -> int:
        """Gradients that a local step computes."""
        return 2 if any(one.get("kind") == "mixup" for one in self.augment) else 1

    @property
    def draws_work(self) -> bool:
        """Each device draws how long it trains in a round."""
        return self.least_epochs is not None or self.least_steps is not None

    def optimiser_problem(self) -> str:
        """Return which keys of the optimiser contradict each other; empty if none do."""
        for least, most in (("least_epochs", "epochs"), ("least_steps", "max_steps")):
            low, high = getattr(self, least), getattr(self, most)
            if low is not None and (high is None or low > high):
                got = f"{low} with no {most}" if high is None else f"{low} and {high}"
                return f"training.{least} must be at most training.{most}, got {got}; set {most}"
        if self.optimiser != "sgd" and (self.momentum or self.nesterov):
            key = "momentum" if self.momentum else "nesterov"
            return (
                f'training.{key} must be left out with optimiser "{self.optimiser}", got '
                f"{getattr(self, key)}: betas are its momentum; remove it"
            )
        if self.nesterov and not self.momentum:
            return "training.nesterov must have a momentum above 0, got 0; set training.momentum"
        if self.optimiser_state == "kept" and not self.keeps_state:
            return (
                'training.optimiser_state must be "reset" for sgd without momentum, which has no '
                'state, got "kept"; set momentum, or remove the key'
            )
        if self.augment:
            from fairbed.wire.augment import list_problem

            if problem := list_problem(self.augment):
                return problem
        if self.schedule == "cosine":
            if self.schedule_by == "round" and self.schedule_length is None:
                return (
                    "training.schedule_length must be set with schedule cosine by round, got none; "
                    "set the rounds after which the least learning rate is reached"
                )
            if self.schedule_length is not None and self.schedule_length <= self.warm_up:
                return (
                    "training.schedule_length must be above warm_up, got "
                    f"{self.schedule_length} and {self.warm_up}"
                )
            if self.least_learning_rate > self.learning_rate:
                return (
                    "training.least_learning_rate must be at most learning_rate, got "
                    f"{self.least_learning_rate:g} and {self.learning_rate:g}"
                )
        return ""

    def local_steps(
        self, n_k: Ints, epochs: Ints | None = None, max_steps: Ints | None = None
    ) -> Ints:
        """Return the mini-batches of local training on n_k examples, shape (K,), at least 1.

        Args:
            n_k: Training examples, shape (K,).
            epochs: Passes that each device has drawn, shape (K,); None: `epochs`.
            max_steps: Limits that each device has drawn, likewise.
        """
        per_epoch = -(-n_k // self.batch_size)
        steps = (self.epochs if epochs is None else epochs) * per_epoch
        limit = self.max_steps if max_steps is None else max_steps
        limited = steps if limit is None else np.minimum(steps, limit)
        least_one: Ints = np.maximum(limited + self.personal_epochs * per_epoch, 1)
        return least_one

    def hyperparameters(self, round_id: int) -> Hyperparameters:
        """Return the hyperparameters of a round, counted from 1."""
        is_other = (
            self.optimiser != "sgd"
            or self.nesterov
            or self.optimiser_state != "reset"
            or self.schedule_by != "round"
            or self.augment
            or self.personal_epochs
        )
        return Hyperparameters(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate_at(round_id),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            proximal=self.proximal,
            clip_norm=self.clip_norm,
            max_steps=self.max_steps,
            micro_batch=None if self.micro_batch == "auto" else self.micro_batch,
            **(self._beyond_sgd() if is_other else {}),
        )

    def _beyond_sgd(self) -> dict[str, Any]:
        """Return the hyperparameters beyond plain SGD."""
        return {
            "optimiser": self._optimiser,
            "schedule": self._schedule if self.changes_within_round else None,
            "augment": self.augmentations,
            "personal_epochs": self.personal_epochs,
        }

    @property
    def has_parts(self) -> bool:
        """Whether a mini-batch may be computed in parts."""
        size = self.micro_batch
        return size is not None and self.batch_size > (1 if size == "auto" else size)

    @property
    def part_size(self) -> int:
        """Examples that a device computes at once, unless they depend on its memory."""
        size = self.micro_batch
        return min(self.batch_size, size) if isinstance(size, int) else self.batch_size


class PersonalisationConfig(Section, frozen=True, kw_only=True):
    """`[personalisation]`: a personal model v_k of each device, trained beside the global one.

    v_k minimises F_k(v_k) + lambda / 2 |v_k - w|^2, where w is the global model, and never leaves
    its device (Li et al., ICML 2021, arXiv:2012.04221).
    """

    method: Literal["none", "ditto", "local-only"] = "none"
    """ditto: pulled towards the global model by `lambda`; local-only: ditto with lambda 0, which
    trains on the device's examples alone."""
    lambda_: Lambda = msgspec.field(default=1.0, name="lambda")
    """Weight of the distance to the global model (ditto): 0 is a local model, a large one the
    global model. Learning rate times lambda must be at most 0.5."""
    lambda_choice: LambdaChoice = "fixed"
    """fixed: `lambda`; local: each device tries `lambda_candidates` in each round and keeps the
    model of least loss on a tenth of its examples, which the section leaves out; dynamic: likewise
    in each step. A device with at most 30 examples takes `lambda`."""
    lambda_candidates: Annotated[tuple[Lambda, ...], Meta(min_length=1, max_length=16)] = (
        0.1,
        1.0,
        2.0,
    )
    """Values to choose from; the source takes 0.05, 0.1 and 0.2, and a `lambda` of 0.1, under
    strong attacks."""
    epochs: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    """Passes over the examples for the personal model; not set: `training.epochs`, on the same
    mini-batches."""
    max_steps: PositiveInt | None = None
    """Stop after this many mini-batches; not set: `training.max_steps`."""

    @property
    def is_on(self) -> bool:
        """Devices train a personal model."""
        return self.method != "none"

    def hyperparameters(self, training: TrainingConfig, round_id: int) -> Hyperparameters:
        """Return the hyperparameters of the personal model in a round, counted from 1."""
        h = training.hyperparameters(round_id)
        return msgspec.structs.replace(
            h,
            optimiser=None  # v_k itself is kept
            if h.optimiser is None
            else msgspec.structs.replace(h.optimiser, keeps_state=False),
            proximal=self.lambda_ if self.method == "ditto" else 0.0,
            epochs=self.epochs or h.epochs,
            max_steps=self.max_steps or h.max_steps,
            personal_epochs=0,
        )

    def request(
        self,
        training: TrainingConfig,
        round_id: int,
        *,
        run: str,
        init_seed: int | None,
    ) -> Personal:
        """Return how a device trains its personal model in a round, counted from 1."""
        return Personal(
            run=run,
            init_seed=init_seed,
            hyperparameters=self.hyperparameters(training, round_id),
            choice=self.choice,
            candidates=() if self.choice == "fixed" else self.lambda_candidates,
        )

    @property
    def choice(self) -> LambdaChoice:
        """Where lambda comes from."""
        return self.lambda_choice if self.method == "ditto" else "fixed"

    def problem(self, training: TrainingConfig) -> str:
        """Return why the personal model cannot be trained; empty if it can."""
        if self.method != "ditto":
            return ""
        if self.choice == "dynamic" and (training.optimiser != "sgd" or training.nesterov):
            shown = "nesterov" if training.nesterov else training.optimiser
            return (
                f'personalisation.lambda_choice must be "fixed" or "local" with {shown}, got '
                '"dynamic": its trial steps are those of plain SGD; change one of them'
            )
        if training.optimiser != "sgd":  # the length of its steps does not depend on lambda
            return ""
        key, pull = "lambda", self.lambda_
        if self.choice != "fixed" and max(self.lambda_candidates) > pull:
            key, pull = "lambda_candidates", max(self.lambda_candidates)
        step = training.learning_rate * pull
        if step > MAX_PULL:
            return (
                f"personalisation.{key} times training.learning_rate must be at most {MAX_PULL}, "
                f"got {pull:g} x {training.learning_rate:g} = {step:g}: the personal model "
                "would oscillate; lower one of them"
            )
        return ""


class PrivacyConfig(Section, frozen=True, kw_only=True):
    """`[privacy]`: each device clips its update and adds Gaussian noise before it is sent.

    With D = w_k - w_t a device sends w_t + D min(1, clip / |D|) + e, where e has the standard
    deviation noise_multiplier x clip in each value. The summary states epsilon, by the updates that
    each device has sent. Losses have no noise, so what needs them is refused (docs/privacy.md).
    """

    clip: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    """Largest L2 norm of an update; not set: no clip and no noise. Take about the median norm of
    the updates without noise."""
    noise_multiplier: Annotated[float, Meta(gt=0.0, le=1e6)] | None = None
    """Standard deviation of the noise in each value, in multiples of `clip`."""
    delta: Annotated[float, Meta(gt=0.0, lt=1.0)] = 1e-5
    """Probability with which the bound epsilon need not hold; it only enters the summary."""
    scores: bool = False
    """Devices send the scores of models on their held-out examples, although no noise covers
    them."""

    def __post_init__(self) -> None:
        if (self.clip is None) != (self.noise_multiplier is None):
            missing = "clip" if self.clip is None else "noise_multiplier"
            raise ValueError(
                f"{missing} must be set with the other of clip and noise_multiplier, got none; "
                f"set {missing}, or remove both for no noise"
            )

    @property
    def is_on(self) -> bool:
        """Devices clip their updates and add noise."""
        return self.clip is not None

    def request(self) -> Privacy | None:
        """Return what a device adds to its update; None without noise."""
        if self.clip is None or self.noise_multiplier is None:
            return None
        return Privacy(clip=self.clip, noise_multiplier=self.noise_multiplier, scores=self.scores)


MAX_PULL = 0.5
"""Largest product of learning rate and lambda; from 1 on, a step overshoots the global model."""


Policy: TypeAlias = Literal[
    "rbcs-f",
    "uniform",
    "weighted",
    "fedcs",
    "oort",
    "power-of-choice",
    "rbcs-f-known",
    "fedcs-oracle",
    "fastest-known",
    "app",
]
POLICIES: tuple[str, ...] = tuple(sorted(get_args(Policy)))
"""The built-in policies; others are plug-ins."""
ORACLE_POLICIES: tuple[Policy, ...] = ("rbcs-f-known", "fedcs-oracle", "fastest-known")
"""Oracle policies, which get the true expected times; only a replay has them."""
APP: Policy = "app"
"""An application selects by itself; only a live run of one has this policy."""


ESTIMATORS = ("mixture", "phases", "ridge")
"""The built-in estimators; others are plug-ins."""


class OortConfig(Section, frozen=True, kw_only=True):
    """`[selection.oort]`: the parameters of oort; see `coordinator.algorithms.selection.oort`."""

    exploration: Ratio = 0.9
    """Initial share of the cohort for devices never selected."""
    exploration_decay: Ratio = 0.98
    """Factor on `exploration` per round."""
    exploration_min: Ratio = 0.2
    """Lower bound of `exploration`."""
    clip_quantile: Ratio = 0.95
    """Quantile at which utilities are clipped."""
    penalty: NonNegativeFloat = 2.0
    """Exponent on T / t of a device slower than the preferred duration T."""
    threshold: Annotated[float, Meta(gt=0.0, le=100.0)] = 30.0
    """Initial T, as a percentile of the known durations; 100 is no preference."""
    pacer_step: PositiveInt = 20
    """Rounds in one window of the pacer."""
    pacer_delta: NonNegativeFloat = 5.0
    """Step of the pacer, in percentile points."""
    cut_off: Ratio = 0.95
    """Devices are drawn among those above this share of the lowest score of the top devices."""


ColdStartCoding: TypeAlias = Literal["not_previous", "literal_seed"]
"""s of a context: 1 for a device that did not train, or 1 for a device that was selected, in the
previous round."""


class SelectionConfig(Section, frozen=True, kw_only=True):
    """`[selection]`: the selection of devices for a round."""

    policy: Annotated[str, Meta(examples=list(POLICIES))] = "rbcs-f"
    """Policy that selects the devices of a round; `app`: the strategy of an application."""
    options: dict[str, Any] = {}
    """Keyword arguments of a plug-in selector."""
    per_round: PositiveInt = 4
    """m: number of devices selected per round."""
    beta: Ratio = 0.15
    """Guaranteed long-run selection rate of every device (rbcs-f)."""
    V: NonNegativeFloat = 20.0
    """Weight of time against fairness (rbcs-f), 1/s."""
    estimator: Annotated[str, Meta(examples=list(ESTIMATORS))] = "mixture"
    """Predicts exchange times: by one regression of the whole time, as in the paper (ridge), by one
    regression per phase (phases), or by the latter and the last exchange, weighted by their recent
    errors (mixture)."""
    estimator_options: dict[str, Any] = {}
    """Keyword arguments of a plug-in estimator."""
    ridge_lambda: Annotated[float, Meta(ge=1e-6, le=1e12)] = 1.0
    """Penalty of the regression; a smaller one is lost in the rounding of large contexts."""
    discount: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Factor on the weight of an exchange for each later one of the same device; 1: no discount."""
    alpha: NonNegativeFloat | Literal["theory"] = 0.1
    """Confidence: tau_bar = tau_hat - alpha x width; `theory` uses the self-normalised bound."""
    cold_start_coding: ColdStartCoding = "not_previous"
    """s of the context: 1 for a device that did not complete training in the last round, or, by
    the other reading of the paper, 1 for a device selected in the last round."""
    queue_counts: Literal["selected", "aggregated"] = "selected"
    """The event that lowers a device's virtual queue: selection (the paper) or aggregation."""
    lcb_floor: float | Literal["none"] = 0.0
    """Lower bound of tau_bar, seconds; `none` is the paper's form, in which tau_bar may be negative
    for a device with few measurements."""
    z_max: PositiveFloat | None = None
    """Upper bound of a virtual queue; voids the guarantee of beta, so it is not set by default."""
    on_timeout: Literal["drop", "lower_bound"] = "lower_bound"
    """An exchange that missed the deadline is ignored by the estimator, as in the paper, or teaches
    it the deadline as a lower bound of the time."""
    context_check: Annotated[float, Meta(ge=1.5, le=1000.0)] | None = None
    """Factor between claimed and measured above which a claim of a context is replaced by what
    exchanges show; not set: contexts are used as claimed. 5 is more than the times of honest
    devices vary."""
    miss_limit: Annotated[int, Meta(ge=0)] = 3
    """Deadlines missed in a row after which a device is selected only as often as its guarantee
    requires; an exchange that holds a round up and gives no update counts, too. 0: no limit. Not
    for uniform, weighted and plug-ins."""
    deadline_s: PositiveFloat = 60.0
    """Time budget of the greedy fedcs selection, seconds."""
    uploads: Literal["parallel", "sequential"] = "parallel"
    """Assumption of fedcs on uploads: at the same time, or one after another."""
    candidates: PositiveInt | None = None
    """d of power-of-choice: number of devices drawn before selection; not set: 2 x per_round."""
    weights: Annotated[tuple[NonNegativeFloat, ...], Meta(min_length=1)] | None = None
    """weighted: share of each device in the draws, in row order; not set: proportional to n_k."""
    variant: Literal["rpow-d", "pow-d", "cpow-d"] = "rpow-d"
    """Source of the losses of power-of-choice: the last round of each device (rpow-d), or a loss
    query to the candidates before the selection, on all their data (pow-d) or one mini-batch
    (cpow-d)."""
    loss_query_timeout_s: Duration = 30.0
    """Time for the reply to a loss query; a candidate without a reply is not available."""
    audit: Ratio = 0.0
    """Probability per round that a uniformly drawn device replaces a device of the cohort."""
    oort: OortConfig = OortConfig()

    def __post_init__(self) -> None:
        if self.weights is not None and (self.policy != "weighted" or not any(self.weights)):
            raise ValueError(
                "weights must be for policy 'weighted' with one above 0, got policy "
                f"{self.policy!r} with a sum of {sum(self.weights):g}; remove them, or set the "
                "shares of the draws"
            )
        if self.policy == "power-of-choice" and self.n_candidates < self.per_round:
            raise ValueError(
                f"candidates must be at least the {self.per_round} devices of per_round, got "
                f"{self.n_candidates}; raise it, or remove it for 2 x per_round"
            )

    @property
    def n_candidates(self) -> int:
        """d: the number of candidates that power-of-choice draws."""
        return self.candidates or 2 * self.per_round

    @property
    def limits_misses(self) -> bool:
        """Devices that keep missing the deadline are excluded.

        Random policies guarantee rates that an exclusion would break; a plug-in and an application
        decide for themselves.
        """
        is_exempt = self.is_plugin or self.policy in ("uniform", "weighted", APP)
        return self.miss_limit > 0 and not is_exempt

    @property
    def has_queues(self) -> bool:
        """The policy guarantees the rate beta by virtual queues."""
        return self.policy in ("rbcs-f", "rbcs-f-known")

    @property
    def queries_losses(self) -> bool:
        """Whether candidates get a loss query before the selection."""
        return self.policy == "power-of-choice" and self.variant != "rpow-d"

    @property
    def selects_by_losses(self) -> bool:
        """Whether a built-in policy selects by losses that devices report."""
        return self.policy in ("oort", "power-of-choice")

    @property
    def needs_known_times(self) -> bool:
        """The policy is an oracle: it needs the true expected times, which only a replay has."""
        return self.policy in ORACLE_POLICIES

    @property
    def is_plugin(self) -> bool:
        """The policy is not built in."""
        return self.policy not in POLICIES


Rule: TypeAlias = Literal[
    "fedavg",
    "q-fedavg",
    "q-fedsgd",
    "afl",
    "term",
    "propfair",
    "fedmgda+",
    "corefed",
    "aaggff-s",
    "aaggff-d",
]
RULES: tuple[str, ...] = tuple(sorted(get_args(Rule)))
"""The built-in weight rules; others are plug-ins."""

Defence: TypeAlias = Literal["none", "clip", "k-norm", "k-loss", "krum", "multi-krum"]
"""Filters of updates, which act before any weighting."""

PSEUDO_GRADIENTS = ("average", "fednova", "median", "trimmed-mean", "geometric-median")
SERVER_STEPS = ("plain", "momentum", "adagrad", "adam", "yogi")
"""The built-in pseudo-gradients and server steps; others are plug-ins."""

SERVERS_WITH: Mapping[str, tuple[str, ...]] = {
    "server_learning_rate": SERVER_STEPS,
    "server_beta1": ("momentum", "adagrad", "adam", "yogi"),
    "server_beta2": ("adam", "yogi"),
    "server_tau": ("adagrad", "adam", "yogi"),
}
"""Server steps that read a key of `[aggregation]`."""

KEYS_OF_METHODS: Mapping[str, str] = {
    "fednova": 'pseudo_gradient = "fednova"',
    "fedavgm": 'server = "momentum"',
    "fedadagrad": 'server = "adagrad"',
    "fedadam": 'server = "adam"',
    "fedyogi": 'server = "yogi"',
    "fedopt": 'server = "adam", "adagrad", "yogi" or "momentum"',
    "fedprox": "proximal = 0.01 in [training]",
    "clip": 'defence = "clip"',
    "k-norm": 'defence = "k-norm"',
    "k-loss": 'defence = "k-loss"',
    "krum": 'defence = "krum"',
    "multi-krum": 'defence = "multi-krum"',
    "median": 'pseudo_gradient = "median"',
    "trimmed-mean": 'pseudo_gradient = "trimmed-mean"',
    "geometric-median": 'pseudo_gradient = "geometric-median"',
}
"""Methods that are no rule of weights, and the keys that choose them beside any rule."""

RAW_RULES = ("mean", "largest", "first", "sum", "max")
"""Built-in merges of raw arrays; others are functions of the user."""

RULES_BY_EXAMPLES = ("fedavg", "q-fedavg", "q-fedsgd", "term", "propfair")
"""Rules that weight devices by n_k unless `aggregation.weights` is set."""


class AggregationConfig(Section, frozen=True, kw_only=True):
    """`[aggregation]`: the merge of updates."""

    by: Literal["rule", "app"] = "rule"
    """What merges: the rules below, or the strategy of an application, which alone sets `app`."""
    rule: Annotated[str, Meta(examples=list(RULES))] = "fedavg"
    """Rule that decides the weights of the updates of a round."""
    defence: Defence = "none"
    """Filter that leaves out or shortens updates before they are weighted; the robust means
    (median, trimmed-mean, geometric-median) are values of pseudo_gradient."""
    malicious_share: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.2
    """k-norm, k-loss, krum, multi-krum, trimmed-mean: share of the updates of a round that is
    expected to be malicious; f is the share times the number of updates, rounded down."""
    rule_options: dict[str, Any] = {}
    """Keyword arguments of a plug-in rule."""
    pseudo_gradient: Annotated[str, Meta(examples=list(PSEUDO_GRADIENTS))] = "average"
    """Combination of the weighted changes of the devices into one change of the model: their sum
    (average), that of their directions, whatever the number of local steps (fednova), or a robust
    mean."""
    pseudo_gradient_options: dict[str, Any] = {}
    """Keyword arguments of a plug-in pseudo-gradient."""
    server: Annotated[str, Meta(examples=list(SERVER_STEPS))] = "plain"
    """Step of the model along the pseudo-gradient: by it (plain), or by its moments."""
    server_options: dict[str, Any] = {}
    """Keyword arguments of a plug-in server step."""
    q: Annotated[float, Meta(ge=0.0, le=1e3)] = 1.0
    """q-fedavg, q-fedsgd: fairness exponent; 0 is FedAvg."""
    lipschitz: Annotated[float, Meta(ge=1e-15, le=1e30)] | None = None
    """q-fedsgd: L, the Lipschitz constant of the gradients; not set: 1 / learning rate."""
    gamma: Annotated[float, Meta(ge=0.0, le=1e6)] = 0.1
    """afl: step size of the weights, 1/nat; 0 keeps them equal."""
    tilt: Annotated[float, Meta(ge=-1e3, le=1e3)] = 1.0
    """term: t, 1/nat; above 0 favours large losses, below 0 small ones; 0 is FedAvg."""
    epsilon: Ratio = 0.5
    """fedmgda+: largest difference of a weight from 1/n; 0 is the mean of unit updates."""
    weights: Literal["equal", "n", "n_over_pi"] | None = None
    """Weight of each device before its loss counts: 1, n_k, or n_k divided by its running rate of
    merged updates; not set: n for fedavg, q-fedavg, q-fedsgd, term and propfair, otherwise
    equal."""
    max_weight: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    """Largest weight of one update, as a share of their sum; not set: no limit."""
    server_learning_rate: Annotated[float, Meta(gt=0.0, le=1e3)] | None = None
    """Factor eta_s on the server step, not for plug-ins; not set: 1, for adagrad, adam and yogi
    0.01."""
    server_beta1: Annotated[float, Meta(ge=0.0, le=0.9999)] | None = None
    """Decay of the first moment, all server steps but plain; not set: 0.9, with adagrad 0."""
    server_beta2: Annotated[float, Meta(ge=0.0, le=0.9999)] | None = None
    """Decay of the second moment, adam and yogi; not set: 0.99."""
    server_tau: Annotated[float, Meta(ge=1e-15, le=1e3)] | None = None
    """Degree of adaptivity of adagrad, adam and yogi: changes well below it are not scaled up; not
    set: 0.001."""
    cdf: Literal["weibull", "exponential", "frechet", "normal", "gumbel", "logistic"] = "weibull"
    """aaggff: the distribution function that maps losses to bounded responses."""
    beta_cap: PositiveFloat | None = None
    """aaggff-s: upper bound of beta; not set: K/4."""
    impute: Literal["mean", "previous_mean"] = "mean"
    """aaggff-d: response imputed for a device that was not drawn: the mean of the round, or of the
    previous round, which is unbiased."""
    M: PositiveFloat = 3.0
    """corefed, propfair: utilities are M - F, in nats; must be above every loss."""
    raw: Annotated[str, Meta(examples=list(RAW_RULES))] = "mean"
    """Merge of the integers and booleans of a client, and of its bytes: mean weighted by examples
    and rounded half to even, largest (of the device with most examples), first (of the first
    device of the fleet), sum, max, or a function of yours, `package.module:merge`. Bytes have no
    mean, sum or max."""
    step: Step = "as-published"
    """Length of the step: as rule and pseudo-gradient are published, or normalised to that of the
    mean of the same updates with equal weights, so that rules differ in the direction alone."""

    def __post_init__(self) -> None:
        for key, servers in SERVERS_WITH.items():
            if getattr(self, key) is not None and self.server not in servers:
                raise ValueError(
                    f"{key} must be for server {' or '.join(map(repr, servers))}, got "
                    f"{getattr(self, key)} with {self.server!r}; remove it, or set server"
                )

    @property
    def weighting(self) -> Literal["equal", "n", "n_over_pi"]:
        """The value of `weights`, or the default of the rule."""
        return self.weights or ("n" if self.rule in RULES_BY_EXAMPLES else "equal")


JOIN_TIMEOUT_S = 600.0
"""Time to start the agents of a few devices by hand, before round 1."""

EMULATED_JOIN_TIMEOUT_S = 120.0
"""The same for emulated devices, which start by themselves."""


class RoundConfig(Section, frozen=True, kw_only=True):
    """`[round]`: when a round ends."""

    mode: Literal["sync", "async"] = "sync"
    """sync: all devices of a round start together. async: a device starts when another one has
    finished, and a round lasts until `buffer` updates of any model version have arrived."""
    buffer: PositiveInt | None = None
    """K of an asynchronous round: number of updates per version; not set: per_round."""
    concurrency: PositiveInt | None = None
    """C of an asynchronous round: devices that train at the same time; not set: per_round."""
    deadline_s: Duration = 60.0
    """Time from the dispatch, without the time in the upload queue."""
    late: Literal["drop", "merge"] = "drop"
    """An update that misses the deadline is dropped, or merged in a later round."""
    max_staleness: Annotated[int, Meta(ge=1, le=100)] = 5
    """Largest staleness of a merged update, in model versions; as many versions are kept."""
    staleness: Literal["polynomial", "constant"] = "polynomial"
    """Weight of an update s versions late: (1 + s)^-staleness_exponent, or 1."""
    staleness_exponent: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.5
    """Exponent of the polynomial weight."""
    over_select: Annotated[int, Meta(ge=0)] = 0
    """Select this many more than per_round; the first per_round updates are merged."""
    void_wait_s: Duration = 1.0
    """Duration of a round without an available device, although some are in contact. Such an empty
    round counts for the queues, but is none of `rounds`."""
    min_devices: PositiveInt | None = None
    """A round begins when this many devices are in contact and ready, less those that are excluded,
    revoked or given up on; not set: round 1 waits for all devices of an emulated fleet, else for as
    many as a round selects, later rounds for one."""
    join_timeout_s: Duration | None = None
    """The run fails if fewer than min_devices are ready for round 1 by then; not set: 120 s for an
    emulated fleet without code of its own, else 600 s."""
    give_up_after_s: Duration | None = None
    """A later round that has waited so long for min_devices begins without those that are missing,
    and rounds count on each again once it is back; not set: it waits, with an alert."""

    def __post_init__(self) -> None:
        if self.mode == "sync" and (self.buffer is not None or self.concurrency is not None):
            key = "concurrency" if self.buffer is None else "buffer"
            raise ValueError(
                f'{key} must not be set with mode = "sync", got {getattr(self, key)}; '
                'selection.per_round sets how many devices train, or write mode = "async"'
            )
        if self.mode == "async" and self.over_select:
            raise ValueError(
                f'over_select must be 0 with mode = "async", got {self.over_select}; '
                "concurrency sets how many devices train"
            )
        if self.mode == "async" and self.late == "merge":
            raise ValueError(
                'late must not be set with mode = "async", got "merge"; updates are merged '
                "up to max_staleness versions late"
            )

    @property
    def is_buffered(self) -> bool:
        """Rounds are asynchronous."""
        return self.mode == "async"

    @property
    def merges_late_updates(self) -> bool:
        """Exchanges may continue after the round in which they began."""
        return self.is_buffered or self.late == "merge"

    @property
    def late_limit_s(self) -> float | None:
        """Time from the dispatch until a late exchange ends; not set: it ends at the deadline."""
        return (1 + self.max_staleness) * self.deadline_s if self.late == "merge" else None


WEIGHTS_OF_RULE: Mapping[str, tuple[str, ...]] = {
    "aaggff-s": ("equal",),
    "aaggff-d": ("equal", "n_over_pi"),
    "afl": ("equal",),
    "fedmgda+": ("equal",),
}
"""Values of `aggregation.weights` that a rule can have; all for other rules."""

RULES_FOR_LATE_UPDATES = ("fedavg",)
"""Rules that can merge updates of earlier versions; others need losses or models of one w_t."""


def rule_problem(
    aggregation: AggregationConfig,
    selection: SelectionConfig,
    training: TrainingConfig,
    devices: int,
) -> str:
    """Return why a rule does not fit the options or a fleet of `devices`; empty if it fits."""
    rule, per_round = aggregation.rule, selection.per_round
    allowed = WEIGHTS_OF_RULE.get(rule)
    if allowed is not None and aggregation.weighting not in allowed:
        return (
            f"aggregation.weights must be {' or '.join(map(repr, allowed))} with rule {rule!r}, "
            f"got {aggregation.weighting!r}: it decides the weights without example counts; "
            "remove the key"
        )
    if rule == "q-fedsgd" and (problem := _gradient_problem(training)):
        return problem
    if rule == "propfair" and aggregation.M <= LEAST_GAP:
        return (
            f"aggregation.M must be above {LEAST_GAP} with rule 'propfair', got {aggregation.M:g}; "
            "take one above every loss"
        )
    if rule == "fedmgda+" and per_round > MOST_WEIGHTS:
        return (
            f"selection.per_round must be at most {MOST_WEIGHTS} with aggregation.rule 'fedmgda+', "
            f"got {per_round}: a round needs K^3 steps; lower it"
        )
    cap = aggregation.max_weight
    if cap is not None and rule == "fedmgda+":
        return (
            f"aggregation.max_weight must not be set with rule 'fedmgda+', got {cap:g}; "
            "epsilon limits its weights"
        )
    if cap is not None and cap * per_round < 1.0 - 1e-9:
        return (
            f"aggregation.max_weight must be at least 1 / selection.per_round = "
            f"{1.0 / per_round:.3g}, got {cap:g}; raise it, or remove it"
        )
    if rule == "aaggff-s" and devices > MOST_WEIGHTS:
        return (
            f"aggregation.rule must not be 'aaggff-s' with more than {MOST_WEIGHTS} devices, got "
            f"{devices}; use aaggff-d"
        )
    if rule == "aaggff-d" and aggregation.impute == "mean" and selection.per_round == 1:
        return (
            "selection.per_round must be at least 2 with aggregation.rule 'aaggff-d', got 1: the "
            'mean of one device is its own value; or set aggregation.impute = "previous_mean"'
        )
    return ""


def misnamed_rule(rule: str) -> str:
    """Return which key to write for a method that is no rule of weights; empty for others."""
    name = rule.lower().replace("-", "")
    if name not in KEYS_OF_METHODS:
        return ""
    return (
        f'aggregation.rule: must be a rule of weights, got {rule!r}; write rule = "fedavg" (or '
        f"another one) and {KEYS_OF_METHODS[name]}"
    )


def _gradient_problem(training: TrainingConfig) -> str:
    """Return why local training does not give the gradient of F_k; empty if it does."""
    if training.rule != "sgd":
        return (
            f"training.rule must be \"sgd\" with aggregation.rule 'q-fedsgd', got "
            f"{training.rule!r}: the rule needs the gradient of F_k; remove one of the two"
        )
    if training.optimiser != "sgd" or training.augment:
        key = "augment" if training.augment else "optimiser"
        return (
            f"training.{key} must be left out with aggregation.rule 'q-fedsgd', got "
            f"{len(training.augment) if training.augment else repr(training.optimiser)}: the rule "
            "needs the gradient of F_k; remove the key"
        )
    needed = {"max_steps": 1, "weight_decay": 0.0, "clip_norm": None, "personal_epochs": 0}
    for key, value in needed.items():
        if (got := getattr(training, key)) != value:
            remedy = "remove the key" if value is None else f"set {key} = {value:g}"
            return (
                f"training.{key} must be {'unset' if value is None else format(value, 'g')} with "
                f"aggregation.rule 'q-fedsgd', got {'none' if got is None else format(got, 'g')}: "
                f"the rule needs the gradient of one step on all examples; {remedy}"
            )
    return ""


def mini_batch_problem(aggregation: AggregationConfig, training: TrainingConfig, n_k: Ints) -> str:
    """Return why updates are no gradients of F_k as the rule needs them; empty if they are.

    Args:
        aggregation: `[aggregation]`.
        training: `[training]`.
        n_k: Training examples of each device, shape (N,).
    """
    most, above = int(n_k.max(initial=0)), np.count_nonzero(n_k > training.batch_size)
    if aggregation.rule != "q-fedsgd" or not above:
        return ""
    return (
        f"training.batch_size must be at least the {most} examples of the largest device with "
        f"aggregation.rule 'q-fedsgd', got {training.batch_size}: {above} of {len(n_k)} devices "
        "send the gradient of a random mini-batch, which is longer on average, so that steps are "
        "too short; raise it"
    )


def merge_problem(
    round_: RoundConfig, aggregation: AggregationConfig, selection: SelectionConfig
) -> str:
    """Return why updates cannot be merged as configured; empty if they can."""
    if round_.is_buffered and selection.queries_losses:
        return (
            f'selection.variant must be "rpow-d" with round.mode = "async", got '
            f"{selection.variant!r}: losses cannot be queried while a round is open"
        )
    if round_.merges_late_updates and aggregation.defence == "k-loss":
        return (
            'aggregation.defence must not be "k-loss" where late updates are merged: their losses '
            "are of other model versions; choose k-norm or multi-krum"
        )
    may_merge = aggregation.rule in RULES_FOR_LATE_UPDATES or aggregation.rule not in RULES
    if not round_.merges_late_updates or may_merge:  # a plug-in is checked when it is loaded
        return ""
    setting = f'mode = "{round_.mode}"' if round_.is_buffered else f'late = "{round_.late}"'
    return (
        f"aggregation.rule must be one of {', '.join(RULES_FOR_LATE_UPDATES)} with "
        f"round.{setting}, got {aggregation.rule!r}; other rules cannot merge "
        "updates of earlier versions"
    )


class ExchangeConfig(Section, frozen=True, kw_only=True):
    """`[exchange]`: codecs of models and updates; a device that has none of them gets float32."""

    up: UpCodec = "float32"
    """Codec of the updates."""
    down: DownCodec = "float32"
    """Codec of the models; delta sends devices that hold the last version its int8 difference."""
    top_k: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.01
    """Share of the parameters that top-k sends; the rest is added to the next update."""


ACCURACY = "accuracy"


class EvaluationConfig(Section, frozen=True, kw_only=True):
    """`[evaluation]`: metrics, which no measured time includes."""

    every: Annotated[int, Meta(ge=0)] = 1
    """Rounds between evaluations; 0: only after the last round."""
    own_data: Literal["devices", "server-test-set", "off"] = "devices"
    """Accuracy where devices have own data. `devices`: each tests the model on
    `data.test_fraction` of its examples, or on test examples in its file. Otherwise they train on
    all their examples without a test; `server-test-set`: the coordinator tests the model on all
    held-out examples of `[data]`."""
    timeout_s: Duration | None = None
    """Longest wait for these tests after a round; not set: `round.deadline_s`."""
    metrics: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...], Meta(max_length=32)
    ] = ()
    """What an evaluation measures beside accuracy and error, by name: top5, f1, iou, perplexity,
    mse, rmse, mae, or `package.module:function` (docs/own-loss.md). They need torch here."""
    worst: Annotated[str, Meta(min_length=1, max_length=64)] = ACCURACY
    """The metric that the worst 10 % and the spread over devices are about: accuracy, or the error
    of regression; or one of `metrics`, which is shown beside them."""

    def is_due(self, round_id: int, *, is_last: bool) -> bool:
        """Return whether the model after a round is evaluated; that of the last one always is."""
        return is_last or (self.every > 0 and round_id % self.every == 0)


LEAST_RAW_BYTES, RAW_GROWTH = 16 << 20, 4
"""Raw bytes that an update may always have, and the factor on those of the model."""


class LimitsConfig(Section, frozen=True, kw_only=True):
    """`[limits]`: what a device may plausibly report; a report beyond it is refused.

    They are wide: an honest device does not reach them. They bound what one faulty device does to a
    model; against malicious ones set `aggregation.defence` and `aggregation.max_weight`, too. A
    replay has no limits.
    """

    check: Literal["auto", "on", "off"] = "auto"
    """auto: on, but off in a study with malicious devices, so that it agrees with its replay."""
    update_norm: Annotated[float, Meta(gt=0.0, le=1e30)] = 100.0
    """Largest |w_k - w_t| of an update, in multiples of 1 + |w_t|, over the parameters. Buffers and
    vectors of a local rule may change by 10,000 times as much. With `[privacy]` the noise is
    added."""
    loss: Annotated[float, Meta(gt=0.0, le=1e30)] = 1e6
    """Largest loss that a device reports with its update."""
    examples: PositiveInt = 10_000_000
    """Most training examples of a device with own data; one with more may not join."""
    time_ratio: Annotated[float, Meta(ge=1.0, le=1e6)] = 1.5
    """Largest sum of the reported phases, in multiples of the time that the coordinator measured,
    after the first 2 s."""
    raw_bytes: PositiveInt | None = None
    """Most bytes of integers, booleans and bytes of a client in an update; not set: 4 times those
    of the model that was sent, and at least 16 MiB. `check = "off"` does not lift it."""

    def most_raw_bytes(self, sent: int) -> int:
        """Return the most raw bytes of an update of a model that was sent with `sent` of them."""
        return self.raw_bytes or max(LEAST_RAW_BYTES, RAW_GROWTH * sent)


ALERTS_OFF = "none: operator.alerts is false, so no condition of this run was examined"
"""The warning of a run without alerts, where its alerts would be."""


class OperatorConfig(Section, frozen=True, kw_only=True):
    """`[operator]`: what operators see of a run, and their commands to a live one."""

    read_only: bool = False
    """Refuse every command, also stop; a signal still ends the run."""
    alerts: bool = True
    """Examine a live run for what needs a person, and store the alerts and what the run waits
    for."""
    reasons: bool = True
    """Store why each device was selected, or not."""


class CoordinatorConfig(Section, frozen=True, kw_only=True):
    """The coordinator's part of an experiment."""

    name: str
    seed_init: int
    seed_selection: int
    seed_training: int
    rounds: Rounds
    model: ModelConfig
    training: TrainingConfig
    selection: SelectionConfig
    aggregation: AggregationConfig
    round: RoundConfig
    evaluation: EvaluationConfig
    exchange: ExchangeConfig = ExchangeConfig()
    personalisation: PersonalisationConfig = PersonalisationConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    operator: OperatorConfig = OperatorConfig()
    limits: LimitsConfig = LimitsConfig()
    held_out: HeldOut | None = None
    """How devices with own data hold out test examples; None: they do not."""
    min_linked: PositiveInt = 1
    """Devices in contact without which no round after the first begins: `round.min_devices` if the
    experiment sets it, else 1."""

    def local_values(self, run: str, merged: int | None) -> LocalValues | None:
        """Return which values of its own a device puts into a model; None: it keeps none.

        Args:
            run: Id of the run.
            merged: Last round in which an update of the device was merged.
        """
        if not self.model.has_local_values:
            return None
        return LocalValues(run=run, init_seed=self.first_seed, merged=merged)

    @property
    def first_seed(self) -> int | None:
        """Seed by which a device draws the model before round 1; None: it has weights."""
        return self.seed_init if self.model.weights is None else None

    @property
    def test_timeout_s(self) -> float:
        """Longest wait for tests by devices, seconds."""
        return self.evaluation.timeout_s or self.round.deadline_s

    @property
    def cohort_size(self) -> int:
        """Number of devices of a round; asynchronous: of devices at work at the same time."""
        if self.round.is_buffered:
            return self.round.concurrency or self.selection.per_round
        return self.selection.per_round + self.round.over_select

    @property
    def min_devices(self) -> int:
        """Number of ready devices with which round 1 begins."""
        return self.round.min_devices or self.cohort_size

    @property
    def join_timeout_s(self) -> float:
        """Longest wait for these devices, seconds."""
        return self.round.join_timeout_s or JOIN_TIMEOUT_S

    @property
    def max_computing(self) -> int:
        """Largest number of devices that compute at the same time.

        They are the cohort, or the candidates of a loss query, and late devices. A round that
        leaves a device late lasts at least `deadline_s`, so late devices belong to at most
        `max_staleness` rounds. The number of devices that a plug-in queries is unknown.
        """
        rounds_before = 0 if self.round.late_limit_s is None else self.round.max_staleness
        drawn = self.selection.n_candidates if self.selection.queries_losses else 0
        return max(self.cohort_size, drawn) + rounds_before * self.cohort_size

    @property
    def updates_per_version(self) -> int:
        """Number of updates that are merged into the next version."""
        own = self.round.buffer if self.round.is_buffered else None
        return own or self.selection.per_round
