"""Check of the augmentations of a task before the first round of a run or a replay."""

from fairbed.testbed.experiment.file import Experiment
from fairbed.wire.artifact import Artifact
from fairbed.wire.augment import Augmenter
from fairbed.wire.selfcheck import selfcheck_inputs

EXAMPLES = 4
"""Of the mini-batch that is augmented once."""


def check_augment(experiment: Experiment, artifact: Artifact) -> None:
    """Check that `training.augment` fits a task; one mini-batch passes through it.

    Raises:
        PluginError: It does not, or a function of the user breaks its contract.
    """
    _, x, y = selfcheck_inputs(artifact.spec, artifact.spec.selfcheck.seed, EXAMPLES)
    Augmenter(experiment.training.augmentations, artifact.spec).batch(x, y, 0, 0)
