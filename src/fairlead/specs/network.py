"""The network between the pods of a gang: a fabric faster than the cluster's own. See decision 244."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import Text, enforce, quote
from fairlead.specs.field_types import TEXT, ListField
from fairlead.specs.key import Key, broken

ATTACHED_MOST = 16
RESOURCE = Text(
    max_length=253,
    pattern=r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?",
    what="a resource of nodes; it has a domain and a name, such as `rdma/hca_shared_devices_a`",
)
ATTACHMENT = Text(
    max_length=63,
    pattern=r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?",
    what="a NetworkAttachmentDefinition of the team's own namespace; use lower-case letters, digits and dashes",
)
RESERVED_DOMAINS = ("kubernetes.io", "nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/")


class FabricChoice(StrEnum):
    """The networks that a gang may use."""

    AUTO = "auto"
    NONE = "none"
    EFA = "efa"
    RDMA = "rdma"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network between the pods of a gang."""

    profile: Annotated[
        FabricChoice,
        Key("profile", example="efa", also="fabric type kind tier interconnect network_tier", alone=True),
        "`auto` uses what all nodes of the gang have, `none` plain TCP; `efa` and `rdma` wait for nodes that have it.",
    ] = FabricChoice.AUTO
    rdma: Annotated[
        str | None,
        Key(
            "rdma",
            rule=RESOURCE,
            example="rdma/hca_shared_devices_a",
            also="resource device devices resource_name device_plugin",
        ),
        "The resource of nodes that each pod requests for RDMA; one that begins with `rdma/` when left out.",
    ] = None
    attach: Annotated[
        tuple[str, ...],
        Key(
            "attach",
            ListField(item=TEXT, most=ATTACHED_MOST, rule=ATTACHMENT),
            example="[rail-0, rail-1]",
            also="networks multus interfaces nads attachments",
        ),
        "NetworkAttachmentDefinitions of Multus in the team's namespace, which give each pod further interfaces.",
    ] = ()

    def __post_init__(self) -> None:
        enforce(self._problems())

    @property
    def fabric(self) -> FabricChoice:
        """Return the fabric; a resource for RDMA asks for that."""
        return self.profile if self.rdma is None else FabricChoice.RDMA

    @property
    def is_required(self) -> bool:
        """Return whether pods must have the fabric, so that they wait where no node has it."""
        return self.fabric in (FabricChoice.EFA, FabricChoice.RDMA)

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        if self.rdma is None:
            return
        if self.profile in (FabricChoice.NONE, FabricChoice.EFA):
            yield "rdma", f"`profile: {self.profile}` does not request it; leave one of the two out"
        if any(domain in self.rdma for domain in RESERVED_DOMAINS):
            yield "rdma", f"{quote(self.rdma)} is no network device; GPUs are asked for by `resources.gpu`"
