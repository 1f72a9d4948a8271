"""A Kubernetes cluster for its users: with their own rights, in one namespace, and without the operator's help.

A command that reads once sends one request. A command that waits keeps a watch on the runs and reads from its cache.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fairlead.cluster.client import CheckPrograms, OwnCheckpoints, Prepared
from fairlead.cluster.kept_code import KeptCode
from fairlead.cluster.kubernetes.api.client import ApiError, Client, Limits
from fairlead.cluster.kubernetes.api.objects import read_node
from fairlead.cluster.kubernetes.api.resource_slices import all_with_slices, list_offered
from fairlead.cluster.kubernetes.api.watching import ObjectCache
from fairlead.cluster.kubernetes.client import access_keys, model_records
from fairlead.cluster.kubernetes.client import workdir_upload as luggage
from fairlead.cluster.kubernetes.client.claim_checks import claim_problem
from fairlead.cluster.kubernetes.client.dataset_objects import delete_dataset, list_datasets, write_dataset
from fairlead.cluster.kubernetes.client.environment_locks import with_image
from fairlead.cluster.kubernetes.client.karmada import is_karmada
from fairlead.cluster.kubernetes.client.log_stores import log_store
from fairlead.cluster.kubernetes.client.node_cordons import cordon, uncordon
from fairlead.cluster.kubernetes.client.one_shot_snapshot import OneShotSnapshot
from fairlead.cluster.kubernetes.client.operator_lease import unattended
from fairlead.cluster.kubernetes.client.pod_logs import PodLogs
from fairlead.cluster.kubernetes.client.pod_series import read_series
from fairlead.cluster.kubernetes.client.published_costs import day_of, days_before, read_published, remove_days
from fairlead.cluster.kubernetes.client.run_code import edited_files, read_code
from fairlead.cluster.kubernetes.client.secret_checks import pull_problem, secret_problem
from fairlead.cluster.kubernetes.client.workdir_stores import Submit
from fairlead.cluster.kubernetes.client.workspaces import home_problem
from fairlead.cluster.kubernetes.engines.table import driver_of, missing, needs_of
from fairlead.cluster.kubernetes.informers.informers import TEAMS
from fairlead.cluster.kubernetes.informers.node_cache import NODES
from fairlead.cluster.kubernetes.informers.node_capacity import node_of
from fairlead.cluster.kubernetes.kinds import is_parent_kind, objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.endpoints import endpoint_url
from fairlead.cluster.kubernetes.manifests.pod_environment import checkpoint_place
from fairlead.cluster.kubernetes.manifests.pods import MEMORY_BYTES_PER_RANK
from fairlead.cluster.kubernetes.manifests.revision_files import code_name, without_unneeded
from fairlead.cluster.kubernetes.manifests.statuses import read_cost
from fairlead.cluster.kubernetes.manifests.team_views import NAME, read_view
from fairlead.cluster.kubernetes.manifests.workspaces import DEFAULT_SIZE_BYTES, claim_name
from fairlead.cluster.kubernetes.names import GATEWAY, GATEWAY_NAMESPACE, SYSTEM_NAMESPACE, is_object_name, segment
from fairlead.cluster.kubernetes.workloads.plain_objects import read_kind
from fairlead.cluster.kubernetes.workloads.run_record import AnyObject, filled, read_workload, submitted
from fairlead.cluster.kubernetes.workloads.workload_api import WorkloadApi, is_unknown_kind, items_of, name_taken
from fairlead.cluster.listing import Listing, page_of
from fairlead.cluster.model_versions import find_version
from fairlead.cluster.names import unknown
from fairlead.cluster.origins import is_run_name, refuse_unsaved
from fairlead.cluster.output import EVERYTHING, Dropped, LogQuery, Watermark
from fairlead.cluster.port import EventRecord, LogLine, Spec
from fairlead.cluster.preflight import pod_model_problem, pod_place_problem, pod_server_problem
from fairlead.cluster.selection import RunSelection
from fairlead.errors import ClusterError, Conflict, InvalidSpec, NotAllowed, NotFound
from fairlead.ledger.goodput import Goodput
from fairlead.policy.kinds.defaults import INTERVAL_LATER, describe_rendezvous
from fairlead.policy.kinds.retention import KEEP_ALL, Retention, managed_elsewhere
from fairlead.policy.kinds.serving import spec_of
from fairlead.policy.kinds.table import leaf
from fairlead.policy.queue.shared_view import seen_by
from fairlead.runtime.checkpoint.remote import open_remote
from fairlead.runtime.checkpoint.store import step_name
from fairlead.specs.dataset import Dataset
from fairlead.specs.endpoint_engines import EndpointEngine
from fairlead.specs.engines import Engine
from fairlead.specs.model_reference import LATEST, ModelReference, read_reference
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.serving import Replica, Serving, scaled_as
from fairlead.specs.sweep_engines import SweepEngine
from fairlead.specs.team import Team
from fairlead.specs.training import DEFAULT_TEAM, Logs, Training
from fairlead.specs.workload import WorkloadSpec, renamed
from fairlead.specs.workspace import Workspace
from fairlead.state.access_keys import AccessKey
from fairlead.state.endpoint_detail import detail_of
from fairlead.state.models import ModelVersion
from fairlead.state.series import Point
from fairlead.state.snapshot import AnyWorkload, Intent, Node, Phase, Pod, Snapshot, Workload, is_leaf
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_cpu, describe_memory, describe_of_each

if TYPE_CHECKING:
    from fairlead.cluster.kubernetes.client.published_costs import PublishedCosts, PublishedLoad
    from fairlead.cluster.ledger_tables import CostGrouping, Payer
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.goodput import Goodput
    from fairlead.ledger.run_cost import RunCost
    from fairlead.ledger.usage import Holder

PERSONAL = Limits(per_second=50.0, burst=200)
"""Limits of the requests of one user's command."""
SYNC_S = 30.0
TRIES = 8
SAME_S = 1.0
LEAST_UID = 4
"""Minimum length of a uid's prefix that identifies a run."""
MOST_TEAMS = 5
"""Number of other teams with a run of a name that are told."""


class UserClient:
    """The runs of one namespace; those of another are addressed as TEAM/NAME.

    Args:
        is_told: The namespace was given explicitly and does not come from the context alone.
        options: Options by which another command addresses this cluster and namespace.
    """

    has_containers = True

    def __init__(self, client: Client, *, namespace: str, is_told: bool = False, options: tuple[str, ...] = ()) -> None:
        self.client = client
        self.namespace = namespace
        self._is_told = is_told
        self._options = options
        self._keys: dict[str, tuple[str, str, str]] = {}
        self._watches: dict[tuple[str, str], ObjectCache[AnyObject]] = {}
        self._changed = threading.Condition()
        self._epoch = self._seen = 0
        self._costs: tuple[tuple[int, int], PublishedCosts] | None = None
        self._run_costs: dict[str, tuple[float, RunCost | None]] = {}
        self._karmada: bool | None = None

    @property
    def machine(self) -> None:
        return None

    @property
    def published_costs(self) -> UserClient:
        return self

    def another(self) -> UserClient:
        other = UserClient(self.client, namespace=self.namespace, is_told=self._is_told, options=self._options)
        other._keys = dict(self._keys)
        return other

    def close(self) -> None:
        for watch in self._watches.values():
            watch.stop()
        self.client.close()

    def prepare(
        self, spec: Training, directory: Path | None, *, probing: CheckPrograms = CheckPrograms.ANY
    ) -> Prepared:
        """Complete a spec with its namespace and the amounts that its pods will request."""
        if directory is None:
            complete = filled(spec)
            return Prepared(spec=complete, notes=tuple(_notes(spec, complete)))
        spec = self.in_its_team(spec)
        if (problem := pod_place_problem(spec)) is not None:
            raise InvalidSpec((f"{spec.name}: checkpoint.to: {problem}.",))
        needs_secrets = spec.secrets or any(source.credentials for source in spec.data.values())
        if needs_secrets and (problem := secret_problem(self.client, spec.team, spec)) is not None:
            raise InvalidSpec((f"{spec.name}: {problem}.",))
        if (problem := claim_problem(self.client, spec.team, spec)) is not None:
            raise InvalidSpec((f"{spec.name}: {problem}.",))
        names = _pull_secrets(spec)
        if names and (problem := pull_problem(self.client, spec.team, names)) is not None:
            raise InvalidSpec((f"{spec.name}: {problem}.",))
        if isinstance(spec, Replica):
            spec = self._with_model(spec)
            if (problem := pod_model_problem(spec)) is not None:
                raise Conflict(f"{spec.service}: model: {problem}.")
        if isinstance(spec, Workspace):
            if (problem := pod_server_problem(spec)) is not None:
                raise InvalidSpec((f"{spec.name}: {problem}.",))
            if (problem := home_problem(self.client, spec)) is not None:
                raise Conflict(f"{spec.name}: home: {problem}.")
        if spec.engine is not None:
            self._refuse_missing_engine(spec)
        spec = self._with_origin(spec)
        complete = filled(spec)
        notes = _notes(spec, complete)
        upload = luggage.choose(complete, directory)
        if upload.directory is not None and spec.engine is Engine.MPIJOB:
            raise Conflict(
                f"{spec.name}: workdir: `engine: mpijob` starts the program in workers to which no files go along. "
                "Put them into the image, and give `workdir` as an absolute path there."
            )
        if upload.note is not None:
            notes.append(f"workdir: {upload.note}")
        return Prepared(spec=upload.spec, directory=upload.directory, taken=upload.sentence, notes=tuple(notes))

    def _refuse_missing_engine(self, spec: Training) -> None:
        """Refuse a run whose engine the cluster does not have."""
        for kind, api in needs_of(spec):
            try:
                self.client.get(f"/apis/{api}")
            except ApiError as error:
                if error.status != 404:
                    raise
                assert spec.engine is not None
                raise Conflict(f"{spec.name}: {missing(spec.engine, kind, api)}.") from error

    def _with_origin(self, spec: Training) -> Training:
        """Replace ``checkpoint.from`` by the location that it refers to, which the pods must be able to reach."""
        origin = spec.checkpoint.origin
        reference = None if origin is None else read_reference(origin)
        if reference is not None:
            if not reference.is_run:
                place = self._version(reference, spec.team, f"{spec.name}: checkpoint.from").place
                return replace(spec, checkpoint=replace(spec.checkpoint, origin=place))
            if reference.which != LATEST:
                raise Conflict(
                    f"{spec.name}: checkpoint.from: {origin!r} is one checkpoint of several, and pods begin from the "
                    f"newest of a place. `fairlead model push {reference.name} {origin} {self.named()}`".rstrip("` ")
                    + f"` makes a version of it, {reference.name}@latest."
                )
            origin = reference.name
        if origin is None or not is_run_name(origin):
            return spec
        run = leaf(self.find(origin, spec.team))
        to = run.spec.checkpoint.to
        if to is None:
            raise Conflict(
                f"{spec.name}: checkpoint.from: the run {origin} has no `checkpoint.to`: its checkpoints are gone "
                "with its pods, or where the operator keeps those of all runs. If it does, give that place, a URL or "
                f"a directory, that ends in {origin}-{run.uid}."
            )
        if "://" not in to and not _is_mounted(spec, to):
            raise Conflict(
                f"{spec.name}: checkpoint.from: the checkpoints of {origin} are in {to}, on a volume that this run "
                "does not mount. Mount it there under `kubernetes.spec`, as that run does."
            )
        refuse_unsaved(spec, run)
        place = checkpoint_place(run, None)
        return replace(spec, checkpoint=replace(spec.checkpoint, origin=place))

    def _with_model(self, spec: Replica) -> Replica:
        """Replace an endpoint's model reference by the location of that version."""
        reference = read_reference(spec.model_path)
        if reference is None or reference.is_run:
            return spec
        version = self._version(reference, spec.team, f"{spec.service}: model")
        steps = open_remote(str(version.place), scratch=None).steps()
        if not steps:
            raise Conflict(f"{spec.service}: model: the content of {version} is gone: {version.place}. Push it again.")
        return replace(spec, model_path=f"{version.place}/{step_name(steps[-1])}")

    def _version(self, reference: ModelReference, team: str, key: str) -> ModelVersion:
        """Return the version of a model that a spec's key refers to, from the spec's namespace."""
        cluster = self if team == self.namespace else UserClient(self.client, namespace=team, options=self._options)
        try:
            return find_version(cluster, reference)
        except NotFound as error:
            raise NotFound(f"{key}: {error}") from error

    def launch(
        self, spec: Spec, *, directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        """Submit a workload; its program inherits nothing from the caller's environment."""
        return cast("Workload[Spec]", self._launch(spec, directory))

    def _launch(self, spec: WorkloadSpec, directory: Path | None) -> AnyWorkload:
        if self._is_karmada() and type(spec) is not Training:
            raise Conflict(
                f"{spec.name}: Karmada gives Trainings to its clusters, and a {type(spec).__name__} is not one. Submit "
                "it with the context of the cluster that is to have it."
            )
        place = self._of(spec.team, adds_finalizer=not self._is_karmada())
        spec, own = with_image(spec)
        submit: Submit = place.submit
        if directory is not None or _may_change(spec):
            existing = self._named(spec.team, spec.name)
            run = None if existing is None else _run_of(existing)
            if run is not None and not run.status.phase.is_final:
                revised = self.revised(run, spec, directory=directory)
                if revised is None:
                    # Raised before anything is uploaded, so that no files without an owner remain.
                    raise name_taken(spec)
                if run.spec == revised:
                    return self._known(run)
                spec, submit = revised, partial(place.revise, run.uid)
            else:
                spec = _with_code(spec, directory)
        if directory is None:
            return self._known(submit(spec, own))
        sent = self._known(luggage.send(self.client, spec, directory, _annotating(submit, own)))
        if isinstance(spec, Serving):
            self._let_go_of_files(sent)
        return sent

    def revised(self, workload: AnyWorkload, spec: Spec, *, directory: Path | None = None) -> Spec | None:
        """Return the spec that ``launch`` would give an existing endpoint or pipeline; None for any other workload."""
        before = workload.spec
        if not _may_change(spec) or type(spec) is not type(before) or not _may_change(before):
            return None
        return cast("Spec", scaled_as(_with_code(spec, directory), before))

    def edited_code(self, workload: AnyWorkload, spec: WorkloadSpec, directory: Path | None) -> tuple[str, ...] | None:
        """Return the files of an endpoint's code that differ from those that would be uploaded now."""
        return None if directory is None else edited_files(self.code(workload.uid), directory)

    def _let_go_of_files(self, endpoint: AnyWorkload) -> None:
        """Release an endpoint's files that no revision has any more, so that they are removed."""
        for _ in range(TRIES):  # the operator may write in the meantime
            current = self._read(endpoint.spec.team, endpoint.spec.name, "Serving")
            if current is None or current.uid != endpoint.uid or current.workload is None:
                return
            replicas = self._objects_of("Replica", current.namespace, "")
            own = {
                replica.workdir
                for replica in replicas
                if replica.workload is not None and replica.workload.parent == current.uid
            }
            codes = {spec_of(revision).code for revision in detail_of(current.workload).revisions}
            if luggage.let_go(self.client, current, without_unneeded(current.files, codes, own)):
                return

    def endpoint_url(self, workload: AnyWorkload) -> str | None:
        """Return the address of an endpoint within the cluster; None if it has ended or is not known yet."""
        if workload.status.phase.is_final:
            return None
        if isinstance(workload.spec, Serving) and workload.spec.engine is not None:
            return detail_of(cast("Workload[Serving]", workload)).url
        return endpoint_url(workload.spec)

    def has_gateway(self) -> bool:
        """Return whether gateways are installed; every authenticated user can then see them."""
        path = f"/apis/apps/v1/namespaces/{GATEWAY_NAMESPACE}/deployments/{GATEWAY}"
        try:
            self.client.get(path)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return False
        return True

    def engine_problem(self, engine: EndpointEngine | SweepEngine) -> str | None:
        """Return the problem if the cluster does not have the engine's API; otherwise None."""
        driver = driver_of(engine)
        try:
            self.client.get(f"/apis/{driver.api}")
        except ApiError as error:
            if error.status != 404:
                raise
            return missing(engine, driver.kind, driver.api)
        return None

    def access_keys(self) -> tuple[AccessKey, ...]:
        return access_keys.keys_of(self.client, self.namespace)

    def add_access_key(self, key: AccessKey) -> None:
        access_keys.add_key(self.client, key, self.named())

    def remove_access_key(self, team: str, name: str) -> None:
        access_keys.remove_key(self.client, team, name)

    def models(self, name: str | None = None) -> tuple[ModelVersion, ...]:
        """Return the namespace's versions of one model or of all, by name and number."""
        return model_records.versions_of(self.client, self.namespace, name)

    def add_model(self, version: ModelVersion) -> tuple[ModelVersion, bool]:
        """Store a new version of existing content; return it, or an equal existing version and False."""
        return model_records.add_version(self.client, self.namespace, version)

    def remove_model(self, version: ModelVersion) -> None:
        """Remove a version; its content remains in the object store.

        Raises:
            Conflict: The version has a stage.
        """
        model_records.remove_version(self.client, self.namespace, version)

    def promote_model(self, version: ModelVersion, stage: str) -> ModelVersion:
        """Give a version a stage, and remove that stage from any other version of its name."""
        return model_records.promote_version(self.client, self.namespace, version, stage)

    def in_its_team(self, spec: Spec) -> Spec:
        """Put a spec that names no team into the client's namespace.

        Raises:
            Conflict: The spec's team differs from the namespace given explicitly.
        """
        if spec.team == DEFAULT_TEAM:
            return renamed(spec, spec.name, self.namespace)
        if self._is_told and spec.team != self.namespace:
            raise Conflict(
                f"{spec.name}: `team` is {spec.team!r}, which is its namespace, and --namespace is "
                f"{self.namespace!r}. Leave one of them out."
            )
        return spec

    def change(self, workload: Workload[Spec], spec: Spec, *, directory: Path | None = None) -> Workload[Spec]:
        place = self._of(workload.spec.team)
        spec, own = with_image(spec)

        def update(spec: Spec, annotations: Mapping[str, str]) -> Workload[Spec]:
            return place.update(workload.uid, spec, version=workload.version, annotations={**annotations, **own})

        changed = update(spec, {}) if directory is None else luggage.send(self.client, spec, directory, update)
        return cast("Workload[Spec]", self._known(changed))

    def update(self, uid: str, spec: Spec, *, version: int) -> Workload[Spec]:
        namespace, _, _ = self._key(uid)
        return cast("Workload[Spec]", self._known(self._of(namespace).update(uid, spec, version=version)))

    def has_files_of(self, workload: Workload, directory: Path) -> bool:
        return luggage.is_same(self._object(workload.uid).workdir, directory)

    def submit(self, spec: Spec) -> Workload[Spec]:
        return self.launch(spec)

    def code(self, uid: str) -> KeptCode:
        namespace, name, kind = self._key(uid)
        try:
            return read_code(self.client, kind, namespace, name, uid)
        except ApiError as error:
            if error.status == 404:
                raise NotFound(f"The run {name} is not there any more.") from error
            raise _explained(error, namespace, self.client) from error

    def set_intent(self, uid: str, intent: Intent) -> AnyWorkload:
        namespace, _, _ = self._key(uid)
        return self._known(self._of(namespace).set_intent(uid, intent))

    def nodes(self) -> tuple[Node, ...]:
        nodes = map(read_node, self.client.items(NODES))
        return tuple(node_of(node, 0) for node in all_with_slices(nodes, list_offered(self.client)))

    def cordon(self, node: str, reason: str) -> None:
        cordon(self.client, node, reason)

    def uncordon(self, node: str) -> None:
        uncordon(self.client, node)

    def teams(self) -> tuple[Team, ...]:
        try:
            objects = [read_kind(Team, content) for content in self.client.items(TEAMS)]
        except ApiError as error:
            if error.status not in (403, 404):  # on a control plane of Karmada there are none
                raise
            return ()
        return tuple(team.spec for team in objects if team.spec is not None)

    def datasets(self, team: str | None = None) -> tuple[Dataset, ...]:
        """Return the data sets of a namespace and those that others share with it; empty without the right to list."""
        try:
            return tuple(list_datasets(self.client, team or self.namespace))
        except ApiError as error:
            if error.status != 403:
                raise
            return ()

    def store_dataset(self, dataset: Dataset, before: Dataset | None) -> None:
        """Create the object of a data set, or change what differs from before."""
        write_dataset(self.client, dataset, before)

    def remove_dataset(self, dataset: Dataset) -> None:
        """Delete the object of a data set; the data stays where it is."""
        delete_dataset(self.client, dataset)

    def snapshot(self) -> Snapshot:
        """Return the state of the whole cluster, read once.

        Raises:
            NotAllowed: The user may not read nodes, or pods and runs of all namespaces; or it is a control plane of
                Karmada, whose nodes are in its clusters.
        """
        try:
            return OneShotSnapshot(self.client).snapshot()
        except ApiError as error:
            if error.status == 404 and self._is_karmada():
                context = self.client.access.context
                raise NotAllowed(
                    f"{context} is a control plane of Karmada, whose nodes and queues are in its clusters; ask one of "
                    "these, by its context."
                ) from error
            if error.status != 403:
                raise
            seen = self._published_view()
            if seen is not None:
                return seen
            raise NotAllowed(f"your account may not read the whole cluster: {error.server_message}") from error

    def _published_view(self) -> Snapshot | None:
        """Return the cluster as the operator shows it to members of the namespace; None if it does not."""
        try:
            content = self.client.get(f"/api/v1/namespaces/{segment(self.namespace)}/configmaps/{NAME}")
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return None
        try:
            state, part = read_view(content)
        except ClusterError as error:
            raise NotAllowed(f"your account may not read the whole cluster, and {error}") from error
        return seen_by(self.namespace, state, part, self._runs(self.namespace))

    def workloads(self, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        newest = sorted(self._runs(self.namespace), key=lambda run: (-run.created_at, run.uid))
        return tuple(newest[:limit])

    def page(self, listing: Listing) -> tuple[AnyWorkload, ...]:
        """Return one page of the namespace's workloads; all are read, from the watches once these are synced."""
        return page_of(self._runs(self.namespace), listing)

    def num_kept(self) -> int:
        return sum(1 for _ in self._runs(self.namespace))

    def num_unfinished(self) -> Mapping[Phase, int]:
        return Counter(run.status.phase for run in self._runs(self.namespace) if not run.status.phase.is_final)

    def children(self, uid: str) -> tuple[AnyWorkload, ...]:
        namespace, name, kind = self._key(uid)
        if not is_parent_kind(kind):
            return ()
        # Whoever may create runs chooses their owners: a child has the name of its parent too.
        runs = (run for run in self._runs(namespace) if run.spec.name.startswith(f"{name}-"))
        children = (run for run in runs if run.parent == uid)
        return tuple(sorted(children, key=lambda run: (run.created_at, run.uid)))

    def unfinished(self, team: str | None = None) -> tuple[AnyWorkload, ...]:
        runs = sorted(self._runs(team or self.namespace), key=lambda run: (run.created_at, run.uid))
        return tuple(run for run in runs if not run.status.phase.is_final)

    def select(self, selection: RunSelection, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        """Return selected runs of the namespace; the API server filters by labels."""
        runs = self._runs(self.namespace, selection.label_selector)
        matching = sorted(filter(selection.matches, runs), key=lambda run: (-run.created_at, run.uid))
        return tuple(matching[:limit])

    def names(self) -> tuple[str, ...]:
        return tuple(run.spec.name for run in self.workloads())

    def finished_names(self, team: str) -> frozenset[str]:
        return frozenset(run.spec.name for run in self._runs(team) if run.status.phase.is_final)

    def get(self, uid: str) -> AnyWorkload:
        return _run_of(self._object(uid))

    def find(self, name: str, team: str | None = None) -> AnyWorkload:
        namespace = team or self.namespace
        if not is_object_name(namespace):
            raise NotFound(f"There is no namespace {namespace!r}: no namespace can have that name.")
        workload = self._named(namespace, name) if is_object_name(name) else None
        if workload is not None:
            return self._known(_run_of(workload))
        runs = sorted(self._runs(namespace), key=lambda run: -run.created_at)
        same = [run for run in runs if run.uid.startswith(name)]
        if len(same) == 1 and len(name) >= LEAST_UID:
            return same[0]
        elsewhere = self._teams_with(name) if team is None and is_object_name(name) else []
        if elsewhere:
            places = listed([f"{other}/{name}" for other in elsewhere], MOST_TEAMS)
            raise NotFound(
                f"There is no run named {name!r} in the namespace {namespace!r}, which is looked at without a team; "
                f"{'there is' if len(elsewhere) == 1 else 'there are'} {places}. Give it with its team."
            )
        raise unknown(
            name, [run.spec.name for run in runs], where=f" in the namespace {namespace!r}", options=self._options
        )

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        try:
            objects = self._objects(self.namespace) if uid is None else (self._object(uid),)
        except NotFound:
            return ()
        return _events(objects, after)

    def history(self) -> tuple[tuple[AnyWorkload, ...], tuple[EventRecord, ...]]:
        """Return workloads and events of all namespaces, or of the client's own if the user may read no other."""
        try:
            objects = tuple(
                read_workload(content) for kind in workload_kinds() for content in items_of(self.client, kind, None)
            )
        except ApiError as error:
            if error.status != 403:
                raise _explained(error, self.namespace, self.client) from error
            objects = self._objects(self.namespace)
        return tuple(self._known(obj.workload) for obj in objects if obj.workload is not None), _events(objects, 0)

    def pods(self, uid: str) -> tuple[Pod, ...]:
        obj = self._object(uid)
        return () if is_parent_kind(obj.kind) else OneShotSnapshot(self.client).pods(obj)

    def logs(
        self,
        uid: str,
        query: LogQuery = EVERYTHING,
        *,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
        watermark: Watermark | None = None,
    ) -> Iterator[LogLine]:
        obj = self._object(uid)
        ranks = leaf(_run_of(obj)).spec.ranks_on_each_node
        since, store = _run_of(obj).created_at, log_store(os.environ)
        logs = PodLogs(self.client, obj.namespace, uid, query, ranks_per_pod=ranks, store=store, since=since)
        if not follow:
            return logs.all()

        def over() -> bool:
            try:
                return (stop is not None and stop()) or self.get(uid).status.phase.is_final
            except NotFound:
                return True

        def num_started() -> int:
            try:
                status = self.get(uid).status
            except NotFound:
                return 0
            has_run = status.started_at is not None or status.failures.program > 0 or status.phase is Phase.SUCCEEDED
            return (status.attempt + 1 if has_run else status.attempt) if status.phase.is_final else 0

        return logs.follow(over, watermark, num_started)

    def series(self, uid: str) -> Mapping[str, tuple[Point, ...]]:
        """Return the metrics from existing pods' reporters; empty if the user may not read these."""
        namespace, _, kind = self._key(uid)
        return {} if is_parent_kind(kind) else read_series(self.client, namespace, uid)

    def dropped_output(self, workload: Workload) -> tuple[Dropped, ...]:
        """Return the missing output, derived from the beginnings of the newest logs and output of deleted pods."""
        namespace, _, _ = self._key(workload.uid)
        ranks = workload.spec.ranks_on_each_node
        try:
            return PodLogs(self.client, namespace, workload.uid, EVERYTHING, ranks_per_pod=ranks).dropped()
        except ClusterError:
            # A user who may read a run may still lack the right to read its pods.
            return ()

    def where(self, workload: AnyWorkload) -> str:
        return f" in the namespace {workload.spec.team} of {self.client.access.context}"

    def named(self, *workloads: AnyWorkload) -> str:
        home = self.namespace
        names = (run.spec.name if run.spec.team == home else f"{run.spec.team}/{run.spec.name}" for run in workloads)
        return " ".join((*names, *self._options))

    @property
    def account(self) -> str:
        return self.client.access.context

    def costs(self, by: CostGrouping, *, since: float, until: float, daily: bool = False) -> Statement[Payer]:
        """Return the costs of whole UTC days, from that of ``since`` to that of ``until``, the last as far as known.

        Raises:
            NotFound, NotAllowed: No costs are kept, or the user may not read any.
        """
        return self._published(since, until).statement(by, daily=daily)

    def holders(self) -> dict[str, Holder]:
        return {} if self._costs is None else self._costs[1].holders()

    def costs_at(self, since: float, until: float) -> tuple[float, str | None]:
        """Return the time up to which costs are known, and the team whose costs they are; None for all teams."""
        costs = self._published(since, until)
        return costs.at, costs.team

    def cost_days(self, namespace: str | None, before: float) -> list[tuple[str, str]]:
        return days_before(self.client, namespace, before)

    def remove_cost_days(self, days: Sequence[tuple[str, str]]) -> int:
        return remove_days(self.client, days)

    def load(self, since: float, until: float) -> PublishedLoad:
        """Return the load that runs were on the nodes on whole UTC days, those of the selected namespace or all.

        Raises:
            NotFound, NotAllowed: No load is recorded, or the user may not read any.
        """
        return self._published(since, until).load()

    def _published(self, since: float, until: float) -> PublishedCosts:
        first, last = day_of(since), day_of(until)
        if self._costs is None or self._costs[0] != (first, last):
            costs = read_published(
                self.client, namespace=self.namespace, system=SYSTEM_NAMESPACE, first_day=first, last_day=last,
                only_team=self._is_told,
            )  # fmt: skip
            self._costs = (first, last), costs
        return self._costs[1]

    def cost_of(self, workload: Workload) -> int | None:
        cost = self._run_cost(workload)
        return None if cost is None else cost.microusd_at(time.time())

    def goodput_of(self, workload: Workload) -> Goodput | None:
        cost = self._run_cost(workload)
        if cost is None:
            return None
        return Goodput(ratio=cost.goodput, seconds=cost.seconds, waiting_s=cost.waiting_s)

    def _run_cost(self, workload: Workload) -> RunCost | None:
        """Read the cost in the run's object, cached for ``SAME_S`` seconds."""
        if not is_leaf(workload):
            return None
        known = self._run_costs.get(workload.uid)
        if known is None or time.monotonic() - known[0] > SAME_S:
            namespace, name, kind = self._key(workload.uid)
            try:
                content = self.client.get(objects_path(kind, namespace, name))
            except ApiError as error:
                if error.status != 404:
                    raise _explained(error, namespace, self.client) from error
                content = {}
            known = self._run_costs[workload.uid] = time.monotonic(), read_cost(content.get("status") or {})
        return known[1]

    def own_checkpoints(self, workload: Workload) -> OwnCheckpoints | None:
        return None

    def kept_at(self, workload: AnyWorkload) -> str:
        where = f"{workload.spec.name} -n {workload.spec.team} --context {self.client.access.context}"
        return f"`kubectl describe {type(workload.spec).__name__.lower()} {where}`"

    def space_of(self, workload: AnyWorkload) -> int | None:
        """Return None: the run is an object of the API server and its pods, and takes no local space."""
        return None

    def forget(self, workloads: Sequence[AnyWorkload]) -> tuple[bool, ...]:
        """Delete runs that have ended, if they are unchanged; the operator removes their finalizers."""
        return tuple(self._forget(run) for run in workloads)

    def _forget(self, workload: AnyWorkload) -> bool:
        try:
            obj = self._object(workload.uid)
        except NotFound:
            return False
        run = _run_of(obj)
        if run.version != workload.version or not run.status.phase.is_final or managed_elsewhere(run):
            return False
        preconditions = {"uid": obj.uid, "resourceVersion": str(obj.version)}
        options = {"propagationPolicy": "Background", "preconditions": preconditions}
        try:
            self.client.delete(objects_path(obj.kind, obj.namespace, obj.name), options)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise _explained(error, obj.namespace, self.client) from error
        return True

    def sweep(self) -> None:
        """Do nothing: the operator finishes incomplete actions."""

    def keeps(self) -> Retention:
        """Return unlimited retention, as only the operator knows the actual one."""
        return KEEP_ALL

    def nudge(self) -> None:
        """Do nothing: the operator watches for changes."""

    def unattended(self) -> str | None:
        return unattended(self.client)

    def trouble(self) -> str | None:
        troubles = [(kind, watch.trouble) for (_, kind), watch in self._watches.items() if watch.trouble is not None]
        known = (
            trouble
            for kind, trouble in troubles
            if not (isinstance(trouble, ApiError) and is_unknown_kind(kind, trouble))
        )
        first = next(map(str, known), None)
        goes_on = "Runs continue, and are followed again as soon as there is an answer."
        return None if first is None else f"{first} {goes_on}"

    def wait(self, timeout_s: float) -> None:
        """Wait until a run has changed; the first call starts the watches."""
        for namespace in {self.namespace, *(namespace for namespace, _, _ in self._keys.values())}:
            for kind in workload_kinds():
                if (namespace, kind) not in self._watches:
                    watch = ObjectCache(self.client, objects_path(kind, namespace), read_workload, self._wake)
                    self._watches[namespace, kind] = watch
                    watch.start()
        with self._changed:
            self._changed.wait_for(lambda: self._epoch != self._seen, timeout_s)
            self._seen = self._epoch

    def _wake(self, before: AnyObject | None, after: AnyObject | None) -> None:
        with self._changed:
            self._epoch += 1
            self._changed.notify_all()

    def _of(self, namespace: str, *, adds_finalizer: bool = True) -> WorkloadApi:
        return WorkloadApi(self.client, namespace=namespace, adds_finalizer=adds_finalizer)

    def _is_karmada(self) -> bool:
        """Return whether the API server is Karmada's; asked once."""
        if self._karmada is None:
            self._karmada = is_karmada(self.client)
        return self._karmada

    def _known(self, run: AnyWorkload) -> AnyWorkload:
        self._keys[run.uid] = (run.spec.team, run.spec.name, type(run.spec).__name__)
        return run

    def _key(self, uid: str) -> tuple[str, str, str]:
        if uid not in self._keys:
            self._runs(self.namespace)
        if uid not in self._keys:
            raise NotFound(f"There is no run with the id {uid!r} in the namespace {self.namespace!r}.")
        return self._keys[uid]

    def _watch(self, namespace: str, kind: str) -> ObjectCache[AnyObject] | None:
        """Return the watch of a kind, if it is synced; otherwise None."""
        watch = self._watches.get((namespace, kind))
        return watch if watch is not None and watch.is_synced else None

    def _object(self, uid: str) -> AnyObject:
        namespace, name, kind = self._key(uid)
        watch = self._watch(namespace, kind)
        if watch is not None:
            if isinstance(watch.trouble, ApiError) and watch.trouble.status in (401, 403):
                raise _explained(watch.trouble, namespace, self.client)
            obj = watch.get(f"{namespace}/{name}")
        else:
            obj = self._read(namespace, name, kind)
        if obj is None or obj.uid != uid:
            raise NotFound(f"The run {name} is not there any more.")
        return obj

    def _objects(self, namespace: str, labels: str = "") -> tuple[AnyObject, ...]:
        return tuple(obj for kind in workload_kinds() for obj in self._objects_of(kind, namespace, labels))

    def _objects_of(self, kind: str, namespace: str, labels: str) -> tuple[AnyObject, ...]:
        watch = self._watch(namespace, kind)
        if watch is not None:
            return watch.all()
        try:
            query = {"labelSelector": labels} if labels else {}
            return tuple(map(read_workload, items_of(self.client, kind, namespace, query)))
        except ApiError as error:
            raise _explained(error, namespace, self.client) from error

    def _runs(self, namespace: str, labels: str = "") -> list[AnyWorkload]:
        objects = self._objects(namespace, labels)
        return [self._known(obj.workload) for obj in objects if obj.workload is not None]

    def _named(self, namespace: str, name: str) -> AnyObject | None:
        """Return the workload of a name: the unfinished one, or the newest; each kind has at most one of a name."""
        newest: AnyObject | None = None
        for kind in workload_kinds():
            obj = self._read(namespace, name, kind)
            if obj is None:
                continue
            if obj.workload is not None and not obj.workload.status.phase.is_final:
                return obj
            if newest is None or obj.created_at > newest.created_at:
                newest = obj
        return newest

    def _teams_with(self, name: str) -> list[str]:
        """Return the namespaces with a workload of a name, sorted; none if the user may not read all of them."""
        query = {"fieldSelector": f"metadata.name={name}"}
        try:
            objects = [obj for kind in workload_kinds() for obj in items_of(self.client, kind, None, query)]
        except ApiError as error:
            if error.status != 403:
                raise _explained(error, self.namespace, self.client) from error
            return []
        return sorted({str(obj["metadata"]["namespace"]) for obj in objects})

    def _read(self, namespace: str, name: str, kind: str) -> AnyObject | None:
        try:
            return read_workload(self.client.get(objects_path(kind, namespace, name)))
        except ApiError as error:
            if (error.status == 404 and f'"{name}" not found' in error.server_message) or is_unknown_kind(kind, error):
                return None
            raise _explained(error, namespace, self.client) from error


def _pull_secrets(spec: Training) -> tuple[str, ...]:
    """Return the Secrets with which nodes pull the images of a run."""
    return tuple(secret["name"] for secret in spec.kubernetes.pod.get("spec", {}).get("imagePullSecrets", ()))


def _may_change(spec: WorkloadSpec) -> bool:
    """Return whether another submission updates the workload: an endpoint, or a pipeline with triggers."""
    return isinstance(spec, Serving) or (isinstance(spec, Pipeline) and spec.runs_by_itself)


def _with_code(spec: WorkloadSpec, directory: Path | None) -> WorkloadSpec:
    """Return an endpoint's spec with the name of the uploaded code; any other spec unchanged."""
    if directory is None or not isinstance(spec, Serving):
        return spec
    return replace(spec, code=code_name(directory))


def _annotating(submit: Submit, own: Mapping[str, str]) -> Submit:
    """Return a submission that adds annotations to those of the files."""
    return lambda spec, annotations: submit(spec, {**annotations, **own})


def _is_mounted(spec: Training, path: str) -> bool:
    """Return whether a path is on a volume that the run mounts."""
    containers = spec.kubernetes.pod.get("spec", {}).get("containers", [])
    mounts = [mount["mountPath"].rstrip("/") for container in containers for mount in container.get("volumeMounts", [])]
    return any(path == mount or path.startswith(f"{mount}/") for mount in mounts)


def _events(objects: Iterable[AnyObject], after: int) -> tuple[EventRecord, ...]:
    """Return the events of runs with an id above a number, in order."""
    records = [
        EventRecord(id=event.id, at=event.at, workload_uid=obj.uid, run=obj.name, type=event.type, reason=event.reason)
        for obj in objects
        for event in (submitted(obj), *obj.state.events)
        if event.id > after
    ]
    return tuple(sorted(records, key=lambda event: event.id))


def _run_of(obj: AnyObject) -> AnyWorkload:
    if obj.workload is None:
        raise ClusterError(f"The run {obj.name} cannot be read by this Fairlead: {obj.problem}")
    return obj.workload


def _notes(spec: Training, complete: Training) -> list[str]:
    """Return notes on amounts that were filled in, and on where checkpoints are kept."""
    notes, resources = [], spec.resources
    ranks = complete.ranks_on_each_node
    if spec.ranks_per_node is None:
        why = "one for each GPU" if resources.gpu is not None else "no GPU asked for"
        notes.append(f"ranks_per_node: {ranks} ({why})")
    notes.append(describe_rendezvous(complete))
    if complete.checkpoint.every_auto:
        notes.append(INTERVAL_LATER)
    if resources.cpu_milli is None:
        cpu = describe_cpu(complete.resources.cpu_milli or 0)
        notes.append(f"resources.cpu: {cpu}{describe_of_each(spec)} (one core for each rank)")
    if resources.memory_bytes is None:
        memory = describe_memory(complete.resources.memory_bytes or 0)
        per_rank = describe_memory(MEMORY_BYTES_PER_RANK)
        notes.append(f"resources.memory: {memory}{describe_of_each(spec)} ({per_rank} for each rank)")
    if spec.logs != Logs():
        size = describe_memory(spec.logs.max_bytes)
        notes.append(f"logs.max: {size} is for this machine's runs; here each node's kubelet bounds logs by itself")
    if spec.image is None:
        notes.append("image: the operator's for runs that name none")
    if isinstance(spec, Workspace):
        size = describe_memory(spec.home.size_bytes or DEFAULT_SIZE_BYTES)
        notes.append(
            f"home: the claim {claim_name(spec.name)}, made with {size} unless it is there; it outlives the run"
        )
    elif spec.checkpoint.to is None and not isinstance(spec, Replica):
        notes.append(
            "checkpoint.to: the operator's place for checkpoints; if it has none, checkpoints are lost with their pods"
        )
    return notes


def _explained(error: ApiError, namespace: str, client: Client) -> ClusterError:
    if error.status == 404:
        install = f"fairlead install{client.access.option}"
        return ClusterError(f"This cluster does not know Fairlead's kinds. `{install}` sets them up.")
    if error.status == 403:
        return NotAllowed(
            f"Your account may not look at runs in the namespace {namespace!r}: {error.server_message}. Ask for the "
            "role fairlead-viewer or fairlead-user there, or choose another with `--namespace`."
        )
    return error
