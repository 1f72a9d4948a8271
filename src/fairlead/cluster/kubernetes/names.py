"""Names the objects of a run, and the labels by which they are found. Every name fits in a DNS label."""

import re

from fairlead.specs.gang import GangSpec
from fairlead.specs.training import MANAGED_BY as MANAGED_BY
from fairlead.state.snapshot import AnyWorkload, Workload

DOMAIN = "fairlead.dev"
MANAGER = "fairlead"
RUN, RUN_UID = f"{DOMAIN}/run", f"{DOMAIN}/run-uid"
ATTEMPT, INDEX = f"{DOMAIN}/attempt", f"{DOMAIN}/index"
TEAM, CONTENT = f"{DOMAIN}/team", f"{DOMAIN}/content"
ROOM_FOR = f"{DOMAIN}/room-for"
# On the costs of a day: whose they are.
COSTS = f"{DOMAIN}/costs"
PLACEHOLDER_CLASS = "fairlead-placeholder"
SYSTEM_NAMESPACE, LEASE = "fairlead-system", "fairlead-operator"
# On the Lease: by which rules the one that leads starts what waits.
POLICY = f"{DOMAIN}/policy"
# Where the Cluster Autoscaler says how it is.
AUTOSCALER_STATUS = "cluster-autoscaler-status"


def is_object_name(text: str) -> bool:
    """Return whether an object can have the name, so that it may stand in the path of a request."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", text) is not None


def pod_name(spec: GangSpec, attempt: int, index: int) -> str:
    """At most 62 characters: the run's name has 50, an index 4, and an attempt has 6 at its most."""
    return f"{spec.name}-{attempt}-{index}"


def placeholder_name(spec: GangSpec, index: int) -> str:
    """Of no pod of a gang, whose names end in two numbers after the run's."""
    return f"{spec.name}-room-{index}"


def service_name(workload: Workload) -> str:
    """A Service's name starts with a letter, which a run's need not.

    It has the beginning of the run's uid in it: what a run of the same name left behind may be on its way out.
    """
    return f"ft-{workload.spec.name}-{workload.uid[:6]}"


def run_labels(workload: Workload) -> dict[str, str]:
    """Labels of everything that belongs to a run."""
    return {MANAGED_BY: MANAGER, RUN: workload.spec.name, RUN_UID: workload.uid}


def owner(workload: AnyWorkload) -> dict[str, object]:
    """The owner reference of everything that goes with a workload."""
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": type(workload.spec).__name__,
        "name": workload.spec.name,
        "uid": workload.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
