"""The promises of ``fairlead.cluster.port`` as tests: what every adapter passes, whatever it is made of.

A subclass gives the fixture ``harness``. Nothing here assumes a database, processes or a virtual clock.
"""

from tests.cluster.keeping_contract import KeepingContract
from tests.cluster.pod_contract import PodContract
from tests.cluster.retry_contract import RetryContract


class ClusterContract(KeepingContract, PodContract, RetryContract):
    """All of it; an adapter's test class is a subclass of this with the fixture ``harness``."""
