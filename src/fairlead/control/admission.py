"""Admits a spec to a cluster: fills in omitted fields and refuses what the cluster cannot honour."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, cast

from fairlead.cluster.client import CheckPrograms, ClusterClient
from fairlead.cluster.local.home import Home
from fairlead.cluster.port import Spec
from fairlead.control.exit_codes import hidden_exit_code
from fairlead.control.framework_detection import detect
from fairlead.control.model_config import read_config
from fairlead.control.pipelines.command import is_driver
from fairlead.deferred import deferred
from fairlead.errors import CannotFit, Conflict, NotAllowed
from fairlead.frozen import dataclass
from fairlead.policy.kinds.defaults import complete
from fairlead.policy.kinds.table import map_runs, parent_of, runs_of
from fairlead.policy.placement.placement import why_never
from fairlead.policy.queue.run_limits import limit_of, refusal
from fairlead.policy.strategy.checkpoint_memory import memory_note
from fairlead.specs.overlay import Overlay
from fairlead.specs.parallel import Choose
from fairlead.specs.quantities import format_duration
from fairlead.specs.resources import NOT_IN_PODS, ONLY_BY_LEAST_WORK
from fairlead.specs.training import Elastic, Training
from fairlead.specs.workload import PIPELINE_VARIABLE, Kind, WorkloadSpec
from fairlead.state.scheduling_policy import Selection
from fairlead.state.snapshot import Node
from fairlead.text.quantities import describe_memory

IGNORABLE = ("image", "shm")


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from fairlead.policy.strategy.corrections import MeasuredStep
    from fairlead.specs.federation import Federation
    from fairlead.specs.pipeline import Pipeline
    from fairlead.specs.serving import Serving
    from fairlead.specs.sweep import Sweep

    Spec_co = TypeVar("Spec_co", bound=WorkloadSpec, covariant=True, default=Training)
    from fairlead.cluster import preflight
    from fairlead.control import data as run_data
    from fairlead.control import federations, gpu_measurement, step_times
    from fairlead.control.image import environments as image_environments
    from fairlead.control.pipelines import as_pod
    from fairlead.policy.strategy import resolution
    from fairlead.specs.formats import packing
else:
    from typing import TypeVar

    Spec_co = TypeVar("Spec_co", covariant=True)
    preflight = deferred("fairlead.cluster.preflight")
    run_data = deferred("fairlead.control.data")
    federations = deferred("fairlead.control.federations")
    gpu_measurement = deferred("fairlead.control.gpu_measurement")
    image_environments = deferred("fairlead.control.image.environments")
    as_pod = deferred("fairlead.control.pipelines.as_pod")
    step_times = deferred("fairlead.control.step_times")
    resolution = deferred("fairlead.policy.strategy.resolution")
    packing = deferred("fairlead.specs.formats.packing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission(Generic[Spec_co]):
    """An admitted spec, as the cluster will run it.

    Attributes:
        spec: The spec with all fields filled in.
        notes: Choices and omissions, one sentence each.
        directory: Directory whose files are copied for the run; None for none.
        taken: A sentence about the copied files; None if there are none.
    """

    spec: Spec_co
    notes: tuple[str, ...]
    directory: Path | None = None
    taken: str | None = None


def admit(
    cluster: ClusterClient,
    spec: Spec,
    directory: Path | None,
    *,
    ignore: frozenset[str] = frozenset(),
    probing: CheckPrograms = CheckPrograms.ANY,
) -> Admission[Spec]:
    """Admit a spec to a cluster, in the form that the cluster stores; of a parent, each run that it describes.

    Args:
        directory: Directory of the spec file, the base of a relative ``workdir``; None for a run that keeps its files.
        ignore: Fields that the user agrees to drop; from ``IGNORABLE``.
        probing: Programs that may be started to check the spec.

    Raises:
        Conflict: This cluster cannot honour a field, or ``ignore`` names one that it can.
        CannotFit: The gang would not fit even on an empty cluster, where this cluster can check that in advance.
    """
    chosen: tuple[str, ...] = ()
    if spec.kind == Kind.SERVING:
        _refuse_endpoint(cluster, cast("Serving", spec))
    if spec.kind == Kind.SWEEP:
        _refuse_engine(cluster, cast("Sweep", spec))
    if spec.kind == Kind.FEDERATION:
        federation = cast("Federation", spec)
        federation, chosen = federations.admit_federation(federation, directory, has_containers=cluster.has_containers)
        spec = cast("Spec", federation)
    if cluster.has_containers and spec.kind == Kind.PIPELINE:
        spec = cast("Spec", as_pod.as_object(cast("Pipeline", spec)))
    admitted = admit_as(cluster, spec, directory, ignore=ignore, probing=probing)
    return replace(admitted, notes=(*chosen, *admitted.notes)) if chosen else admitted


def admit_as(
    cluster: ClusterClient,
    spec: Spec,
    directory: Path | None,
    *,
    ignore: frozenset[str] = frozenset(),
    probing: CheckPrograms = CheckPrograms.ANY,
) -> Admission[Spec]:
    """Admit a spec that is already in the form that the cluster stores; see ``admit``."""
    if cluster.has_containers and parent_of(spec) is not None:
        problem = preflight.population_problem(spec) or preflight.input_problem(spec)
        if problem is not None:
            raise Conflict(f"{spec.name}: {problem}; or `--cluster local`.")
    runs: list[Admission] = []
    has_sites = spec.kind == Kind.SERVING and bool(cast("Serving", spec).sites)
    # The resources of a pipeline's driver are not available to the runs that it waits for.
    driver: Training | None = getattr(spec, "driver", None)
    team = next((member for member in cluster.teams() if member.name == spec.team), None)
    held = 0 if driver is None else driver.resources.cpu_milli or 0

    def of(run: Training) -> Training:
        if (problem := refusal(run, team)) is not None:
            raise Conflict(f"{run.name}: {problem}.")
        if has_sites:  # each site's cluster admits it
            is_here = any(site.home is not None for site in cast("Serving", spec).sites.values())
            prepared = cluster.prepare(run, directory, probing=probing if is_here else CheckPrograms.ELSEWHERE)
            admitted = Admission(spec=prepared.spec, notes=prepared.notes)
        else:
            admitted = _admit_run(cluster, run, directory, ignore, 0 if run is driver else held, probing)
        # An endpoint and the driver of a pipeline have no end.
        is_endless = run is driver or spec.kind == Kind.SERVING
        limit_s = None if is_endless else limit_of(admitted.spec, team)
        if limit_s is not None and team is not None:
            note = f"max_duration: {format_duration(limit_s)}, as team {team.name} has it for runs without one"
            limits = replace(admitted.spec, max_duration_s=limit_s)
            admitted = replace(admitted, spec=limits, notes=(*admitted.notes, note))
        runs.append(admitted)
        return runs[-1].spec

    admitted = map_runs(spec, of)
    if parent_of(spec) is not None:
        admitted = cluster.in_its_team(admitted)
    notes = tuple(dict.fromkeys(note for run in runs for note in run.notes))
    if spec.kind == Kind.SWEEP:
        notes += _pause_notes(cast("Sweep", admitted))
    if spec.kind == Kind.SERVING:  # has no such keys
        notes = tuple(note for note in notes if not note.startswith(("launch: ", "checkpoint.to: ")))
    taken = next((run for run in runs if run.directory is not None), None)
    if taken is None:
        return Admission(spec=admitted, notes=notes)
    return Admission(spec=admitted, notes=notes, directory=taken.directory, taken=taken.taken)


def _pause_notes(spec: "Sweep") -> tuple[str, ...]:
    """Return what happens to trials at a rung, if that depends on whether they keep checkpoints."""
    prune = spec.pruning
    if prune is None or not spec.may_pause:
        return ()
    others = (
        "the others pause, as trials keep checkpoints"
        if spec.trial.checkpoint.is_periodic
        else "others without a checkpoint stop for good; with `checkpoint: {every: ...}` in the trial they pause"
    )
    return (f"prune: 1 of {prune.one_in} trials continues at a rung; {others}",)


def _locked(
    cluster: ClusterClient, spec: Training, directory: Path | None, probing: CheckPrograms
) -> tuple[Training, tuple[str, ...]]:
    """Return a run with the lock of its `environment`, and notes on it."""
    if probing is CheckPrograms.NONE:
        return spec, ("environment: not looked at, since no programs may be started; `fairlead run` locks it",)

    home = Home.open()
    nodes: tuple[Node, ...] = ()
    unknown: tuple[str, ...] = ()
    if spec.resources.gpu is not None:
        try:
            nodes = cluster.nodes()
        except NotAllowed:
            unknown = ("environment: unknown whether it works with the GPUs, since you may not list nodes",)
    matched = image_environments.lock_for_pods(spec, directory, home, os.environ, nodes)
    return matched.spec, (image_environments.note_of(matched.spec, home), *unknown, *matched.notes)


def _refuse_endpoint(cluster: ClusterClient, spec: "Serving") -> None:
    """Refuse an endpoint that needs a gateway or an engine on a cluster without one."""
    _refuse_engine(cluster, spec)
    if spec.sites and cluster.has_containers:
        raise Conflict(
            f"{spec.name}: sites: a supervisor of this machine reaches them, with the contexts of your kubeconfig, and "
            "not an operator. Give `--cluster local`."
        )
    if not cluster.has_containers and not spec.sites:
        if spec.scale.by is not None:
            raise Conflict(
                f"{spec.name}: scale.by: {spec.scale.by} is an autoscaler of Kubernetes, and the local cluster has "
                "none. Remove `by`, or name a cluster that has it with `--context`."
            )
        return
    if spec.sites:
        return
    problem = preflight.gateway_problem(spec)
    if problem is not None and not cluster.has_gateway():
        raise Conflict(f"{spec.name}: {problem}. Or give `--cluster local`, where there is one.")


def _refuse_engine(cluster: ClusterClient, spec: "Serving | Sweep") -> None:
    """Refuse what needs an engine on a cluster without it."""
    problem = None if spec.engine is None else cluster.engine_problem(spec.engine)
    if problem is not None:
        raise Conflict(f"{spec.name}: engine: {problem}.")


def _admit_run(
    cluster: ClusterClient,
    spec: Training,
    directory: Path | None,
    ignore: frozenset[str],
    held_milli: int,
    probing: CheckPrograms,
) -> Admission:
    if spec.checkpoint.is_in_memory or spec.elastic is Elastic.IN_PLACE:
        if cluster.has_containers and (problem := preflight.pod_problem(spec)) is not None:
            raise Conflict(f"{spec.name}: {problem}; or `--cluster local`.")
        if not cluster.has_containers and (problem := preflight.shared_memory_problem(spec)) is not None:
            raise Conflict(f"{spec.name}: {problem}.")
    own_notes: tuple[str, ...] = ()
    if spec.environment is not None and cluster.has_containers:
        spec, own_notes = _locked(cluster, spec, directory, probing)
    if PIPELINE_VARIABLE in spec.env:
        packing.unpacked(spec.env[PIPELINE_VARIABLE])  # raises if the marker of a pipeline does not hold one
    if cluster.has_containers and directory is not None and is_driver(spec) and PIPELINE_VARIABLE not in spec.env:
        spec = as_pod.in_pods(spec)
    if cluster.has_containers and spec.resources.colocate:
        raise Conflict(f"{spec.name}: resources.colocate: {NOT_IN_PODS}.")
    detected = detect(spec, _workdir(spec, directory))
    prepared = cluster.prepare(detected.spec, directory, probing=probing)
    hidden = hidden_exit_code(spec.run)
    notes = (*own_notes, *detected.notes, *([hidden] if hidden else ()), *prepared.notes)
    prepared = replace(prepared, notes=notes)
    if prepared.spec.parallel is not None:
        measured = gpu_measurement.read_measured()
        steps: tuple[MeasuredStep, ...] = ()
        if prepared.spec.parallel.choose is Choose.AUTO:
            steps = step_times.known_steps(cluster, measured)
        resolved = resolution.resolve(prepared.spec, read_config(prepared.spec, directory), measured, steps)
        divided = replace(prepared.spec, parallel=resolved.parallel)
        prepared = replace(prepared, spec=divided, notes=(*prepared.notes, resolved.note))
    if prepared.spec.data:
        home = Home.at()
        admitted = run_data.admit_data(
            prepared.spec,
            _workdir(spec, directory),
            in_pods=cluster.has_containers,
            directory=home.data,
            secrets=home.secrets,
            datasets=cluster.datasets,
        )
        prepared = replace(
            prepared, spec=replace(prepared.spec, data=admitted.data), notes=(*prepared.notes, *admitted.notes)
        )
    if prepared.spec.checkpoint.is_in_memory:
        prepared = replace(prepared, notes=(*prepared.notes, _memory_note(prepared.spec, directory)))
    if not cluster.has_containers:
        if spec.resources.colocate and cluster.snapshot().rules.selection is not Selection.LEAST_WORK:
            raise Conflict(f"{spec.name}: resources.colocate: {ONLY_BY_LEAST_WORK}")
        nodes = tuple(replace(node, cpu_milli=node.cpu_milli - held_milli) for node in cluster.nodes())
        checked = check(prepared.spec, nodes, ignore=ignore)
        return replace(checked, notes=(*prepared.notes, *checked.notes))
    if ignore:
        raise Conflict(f"`{min(ignore)}` is honoured on this cluster; leave `--ignore {min(ignore)}` out.")
    # Nodes come and go there, so the operator decides whether the gang fits.
    return Admission(spec=prepared.spec, notes=prepared.notes, directory=prepared.directory, taken=prepared.taken)


def _memory_note(spec: Training, directory: Path | None) -> str:
    model = None if spec.model is None else resolution.transformer_of(spec.model, read_config(spec, directory))
    return memory_note(spec, model)


def left_open(cluster: ClusterClient, spec: Training) -> Training:
    """Return an admitted spec without fields that admission fills in anyway, so that a change determines them anew."""
    nodes = () if cluster.has_containers else cluster.nodes()

    def filled(spec: Training) -> Training:
        return cluster.prepare(spec, None).spec if cluster.has_containers else complete(spec, nodes).spec

    whole = filled(spec)
    opened = replace(spec, resources=replace(spec.resources, memory_bytes=None))
    spec = opened if filled(opened) == whole else spec
    opened = replace(spec, resources=replace(spec.resources, cpu_milli=None))
    spec = opened if filled(opened) == whole else spec
    opened = replace(spec, framework=None)
    spec = opened if detect(opened, _workdir(spec, None)).spec == spec else spec
    opened = replace(spec, ranks_per_node=None)
    return opened if filled(opened) == whole else spec


def _workdir(spec: Training, directory: Path | None) -> Path:
    """Return the directory in which the command starts, if its files are on this machine."""
    base = Path.home() if directory is None else directory.absolute()
    return base if spec.workdir is None else base / Path(spec.workdir).expanduser()


def check(spec: Training, nodes: tuple[Node, ...], *, ignore: frozenset[str] = frozenset()) -> Admission:
    """Admit a spec to a cluster without containers.

    Args:
        ignore: Fields that the user agrees to drop; from ``IGNORABLE``.
        probing: Programs that may be started to check the spec.

    Raises:
        Conflict: This cluster cannot honour a field, or ``ignore`` names one that cannot be dropped.
        CannotFit: The gang would not fit even on an empty cluster.
    """
    unknown = ignore - set(IGNORABLE)
    if unknown:
        raise Conflict(f"`{sorted(unknown)[0]}` cannot be ignored; only these can: {', '.join(IGNORABLE)}.")
    if spec.engine is not None:
        raise Conflict(
            f"{spec.name}: engine: {spec.engine} is a controller of Kubernetes, and the local cluster has none. Remove "
            "`engine` (and `queue`) to run it here, or name a cluster that has it with `--context`."
        )
    notes: list[str] = []
    if spec.image is not None:
        if "image" not in ignore:
            raise Conflict(
                f"{spec.name}: image: {spec.image!r} was asked for, but the local cluster runs programs without "
                "containers. Add `--ignore image` to run it with this machine's own Python, or remove `image`."
            )
        notes.append(f"image: {spec.image} is not used here; the program runs with this machine's own software")
        spec = replace(spec, image=None)
    if spec.resources.shm_bytes is not None:
        if "shm" not in ignore:
            raise Conflict(
                f"{spec.name}: resources.shm: {describe_memory(spec.resources.shm_bytes)} was asked for, but programs "
                "here share this machine's own /dev/shm. Add `--ignore shm` to run with that, or remove `shm`."
            )
        notes.append("resources.shm: this machine's own /dev/shm is used, whatever its size")
        spec = replace(spec, resources=replace(spec.resources, shm_bytes=None))
    if spec.network.is_required or spec.network.attach:
        raise Conflict(
            f"{spec.name}: network: {spec.network.fabric} is a network between pods, and programs here have this "
            "machine's own. Remove `network` to run it here, or name a cluster that has it with `--context`."
        )
    if spec.kubernetes != Overlay():
        notes.append("kubernetes: has no effect on this cluster; it applies to pods on Kubernetes")
    completed = complete(spec, nodes)
    never = why_never(completed.spec, nodes)
    if never is not None:
        raise CannotFit(f"{never.message}\n{never.remedy}" if never.remedy else never.message)
    return Admission(spec=completed.spec, notes=(*notes, *completed.notes))


def with_images(
    cluster: ClusterClient, admitted: Admission[Spec], tell: Callable[[str], None] = lambda _: None
) -> Admission[Spec]:
    """Return an admitted spec with the images of its environments, which are built and pushed; others as they are.

    Args:
        tell: Takes sentences on the progress.

    Raises:
        ClusterError: An image cannot be built or pushed.
    """
    if not cluster.has_containers or all(run.environment is None for run in runs_of(admitted.spec)):
        return admitted

    home = Home.open()
    return replace(
        admitted, spec=map_runs(admitted.spec, lambda run: image_environments.with_image(run, home, os.environ, tell))
    )


def free_name(cluster: ClusterClient, spec: WorkloadSpec, *, beside_unfinished: bool = False) -> str:
    """Return the spec's name, with the first number appended that makes it differ from those of finished runs.

    Args:
        beside_unfinished: Whether a Training's name also differs from those of unfinished runs of its team. That of an
            unfinished parent is no such name: its children have numbers, of which the run would take one.
    """
    if spec.kind in (Kind.SERVING, Kind.WORKSPACE):
        return spec.name  # an endpoint keeps its address, and a workspace its home, and with it its name
    taken, wanted = cluster.finished_names(spec.team), spec.name
    if beside_unfinished and isinstance(spec, Training):
        unfinished = {run.spec.name: run.spec for run in cluster.unfinished(spec.team)}
        if wanted in unfinished and not isinstance(unfinished[wanted], Training):
            return wanted
        taken |= unfinished.keys()
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted[:45]}-{number}", number + 1
    return name
