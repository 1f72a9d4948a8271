"""Engines that choose the values of a sweep's trials instead of Fairlead, and why keys are refused with them.

An engine only proposes values. Trials remain runs of Fairlead, which tells the engine how each ended.
"""

from enum import StrEnum


class SweepEngine(StrEnum):
    """The engines by their common names."""

    KATIB = "katib"


TITLES = {SweepEngine.KATIB: "Katib"}
# Katib names a Deployment after the Experiment and its longest algorithm, and each of its trials with a suffix.
NAME_MOST = 38
# Every proposal's name is kept in the status of the sweep.
TRIALS_MOST = 1_000

# Messages of both the parser and the API server; all follow `engine: NAME` and a verb.
PROPOSES = "proposes the values of trials"
NO_OBJECTIVE = "it searches for the best value of one metric; give `objective`"
ONE_OBJECTIVE = "it searches by one metric; give `objective` instead of `objectives`"
NO_PARALLEL = "it has to know how many trials run at once; give `parallel` a number"
NO_POPULATION = "none of them continues from another's checkpoint; give `prune` another rule than pbt"
NO_CONDITION = "it has no values that are there only with others; leave `when` out"
NO_CHOICES = "cma-es has ranges only there; give a range, or another sampler"
NO_SEED = "grid takes them in their order; leave `seed` out"
