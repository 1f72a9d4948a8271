"""Answers whether the replicas of an endpoint fit the devices of its sites: their memory, CPU kind and programs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from fairlead.cluster.client import CheckPrograms, ClusterClient
from fairlead.control.admission import admit
from fairlead.control.sites import Open, open_site
from fairlead.errors import CannotFit, Conflict, FairleadError, InvalidSpec, RuntimeFault
from fairlead.frozen import dataclass
from fairlead.policy.placement.placement import why_never
from fairlead.runtime.serving.published_model import PublishedIndex, architecture, signed_index
from fairlead.specs.serving import Serving
from fairlead.specs.serving_sites import ServingSite, Waves
from fairlead.state.site_rollouts import SiteState
from fairlead.state.snapshot import Node
from fairlead.text.quantities import describe_memory, plural

ARCHITECTURE_LABEL = "kubernetes.io/arch"
AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFit:
    """The answer for one site.

    Attributes:
        fits: None where nobody can say, as the site does not answer.
        device: Its nodes, CPU kinds and largest memory; empty if unknown.
        why: Why it does not fit, or why that is not known; empty if it fits.
    """

    site: str
    fits: bool | None
    device: str = ""
    why: str = ""


def fit_sites(spec: Serving, *, open_site: Open = open_site) -> tuple[SiteFit, ...]:
    """Return for each site of an endpoint whether one of its replicas fits there; nothing is submitted."""
    index: PublishedIndex | None = None
    if spec.signed_by is not None and spec.model is not None:
        try:
            index = signed_index(spec.model, spec.signed_by)
        except RuntimeFault as error:
            return tuple(SiteFit(site=name, fits=False, why=str(error)) for name in spec.sites)

    def fit(item: tuple[str, ServingSite]) -> SiteFit:
        return _fit(spec, *item, index, open_site)

    with ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="fit") as threads:
        return tuple(threads.map(fit, spec.sites.items()))


def _fit(
    spec: Serving,
    name: str,
    site: ServingSite,
    index: PublishedIndex | None,
    open_site: Callable[[SiteState], ClusterClient],
) -> SiteFit:
    context, namespace, home = site.place
    try:
        client = open_site(SiteState(name=name, context=context, namespace=namespace, home=home))
    except FairleadError as error:
        return SiteFit(site=name, fits=None, why=f"it does not answer: {error}")
    nodes: tuple[Node, ...] = ()
    try:
        nodes = client.nodes()
        resources = spec.resources if site.resources is None else site.resources
        own = replace(client.in_its_team(spec), sites={}, waves=Waves(), resources=resources)
        problem = _model_problem(index, nodes, own)
        if problem is None:
            admitted = admit(client, own, Path(spec.workdir or Path.home()), probing=CheckPrograms.INSTALLED)
            never = why_never(admitted.spec.replica(), nodes) if client.has_containers else None
            problem = None if never is None else never.message
        return SiteFit(site=name, fits=problem is None, device=_device(nodes), why=problem or "")
    except (CannotFit, Conflict, InvalidSpec) as error:
        return SiteFit(site=name, fits=False, device=_device(nodes), why=str(error))
    except FairleadError as error:
        return SiteFit(site=name, fits=None, why=f"it does not answer: {error}")
    finally:
        client.close()


def _kinds(nodes: tuple[Node, ...]) -> set[str]:
    """Return the CPU kinds of nodes; that of this machine for nodes without a label."""
    return {node.labels.get(ARCHITECTURE_LABEL, architecture()) for node in nodes}


def _model_problem(index: PublishedIndex | None, nodes: tuple[Node, ...], spec: Serving) -> str | None:
    if index is None:
        return None
    kinds = _kinds(nodes)
    if index.architectures and not kinds & set(index.architectures):
        return f"the model is for {', '.join(index.architectures)}, and its nodes have {', '.join(sorted(kinds))}"
    size = sum(file.size for file in index.files.values())
    memory = spec.resources.memory_bytes
    if memory is not None and size > memory:
        return f"the model has {describe_memory(size)}, and a replica gets {describe_memory(memory)} of memory"
    return None


def _device(nodes: tuple[Node, ...]) -> str:
    largest = max((node.memory_bytes for node in nodes), default=0)
    kinds = ", ".join(sorted(_kinds(nodes)))
    return f"{plural(len(nodes), 'node')}, {kinds}, up to {describe_memory(largest)}" if nodes else "no nodes"
