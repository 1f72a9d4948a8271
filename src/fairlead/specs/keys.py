"""The one description of every key of every kind: parser, rendering, JSON Schema and CRDs come from these tables.

Defaults are the dataclasses' own and bounds are their rules; nothing of that is repeated in them.
"""

from fairlead.specs.pool import Pool
from fairlead.specs.pool_keys import POOL
from fairlead.specs.simulation import Simulation
from fairlead.specs.simulation_keys import SIMULATION
from fairlead.specs.team import Team
from fairlead.specs.team_keys import TEAM
from fairlead.specs.training import Training
from fairlead.specs.training_keys import TRAINING

API_VERSION = "fairlead.dev/v1alpha1"

Spec = Training | Team | Pool | Simulation

KINDS = {"Training": TRAINING, "Team": TEAM, "Pool": POOL, "Simulation": SIMULATION}
