"""Submits, changes and reads workloads by their objects, for people and for the operator alike.

The calls are those of ``fairlead.cluster.port.WorkloadStore``. The current objects come from an ``ObjectSource``: a
command lists each kind, the operator has them from its watches. No call here changes a status: only the operator does.

See decision 204.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol, cast

from fairlead.cluster.kubernetes.api.client import ApiError, Client, Object
from fairlead.cluster.kubernetes.kinds import objects_path, workload_kinds
from fairlead.cluster.kubernetes.manifests.revision_files import CODE, RevisionFiles, read_files, revised
from fairlead.cluster.kubernetes.manifests.spec_objects import merge_patch, write_object
from fairlead.cluster.kubernetes.manifests.workdir import REVISION, WORKDIR
from fairlead.cluster.kubernetes.names import owner
from fairlead.cluster.kubernetes.workloads.run_record import (
    FINALIZER,
    INTENT,
    SUBMITTED,
    AnyObject,
    event_record,
    filled,
    read_workload,
    submitted,
)
from fairlead.cluster.port import EventRecord, Spec
from fairlead.errors import ClusterError, Conflict, NameTaken, NotAllowed, NotFound
from fairlead.policy.kinds.retention import managed_elsewhere
from fairlead.policy.kinds.spec_updates import changed_meanwhile, check_update
from fairlead.policy.kinds.table import leaf
from fairlead.specs.serving import Replica, Serving, scaled_as
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import AnyWorkload, Intent, Workload

TRIES = 3
INHERITED = (WORKDIR, REVISION)
"""Annotations that children inherit from their parent: the uploaded files and their origin.

A replica inherits those that belong to its revision of the endpoint."""


class ObjectSource(Protocol):
    """Has the current objects of workloads, and is told of those that responses contain."""

    def objects(self) -> Iterable[AnyObject]:
        """Return the objects of all kinds of workloads.

        Raises:
            ClusterError: They have to be listed, and the API server does not answer.
        """
        ...

    def find(self, uid: str) -> AnyObject | None:
        """Return an object by its uid; None if it is unknown without a list."""
        ...

    def put(self, content: Object) -> None:
        """Take in an object that a response contained."""
        ...

    def drop(self, item: AnyObject) -> None:
        """Take in that an object was deleted."""
        ...


class ListedObjects:
    """Lists the objects anew for each question, and keeps none."""

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._client = client
        self._namespace = namespace

    def objects(self) -> Iterable[AnyObject]:
        for kind in workload_kinds():
            yield from map(read_workload, items_of(self._client, kind, self._namespace))

    def find(self, uid: str) -> AnyObject | None:
        return None

    def put(self, content: Object) -> None:
        pass

    def drop(self, item: AnyObject) -> None:
        pass


class WorkloadApi:
    """The workloads of a cluster, by requests to its API server.

    Args:
        namespace: Consider only workloads of this namespace; None for all.
        source: Has the current objects; by default they are listed for each call.
        adds_finalizer: Add our finalizer to new objects. False on Karmada, where no operator would remove it.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str | None = None,
        source: ObjectSource | None = None,
        adds_finalizer: bool = True,
    ) -> None:
        self.client = client
        self._namespace = namespace
        self._source = source or ListedObjects(client, namespace)
        self._adds_finalizer = adds_finalizer

    def submit(self, spec: Spec, annotations: Mapping[str, str] | None = None) -> Workload[Spec]:
        for kind in workload_kinds():
            if kind != type(spec).__name__:
                self._refuse_taken(kind, spec)
        return cast("Workload[Spec]", self._observed(self.create(spec, annotations or {})))

    def _refuse_taken(self, kind: str, spec: WorkloadSpec) -> None:
        """Refuse a name that an unfinished workload of another kind has; the API server checks only one kind."""
        try:
            current = self.read(kind, spec.team, spec.name)
        except ApiError as error:
            if not is_unknown_kind(kind, error):
                raise
            return
        run = None if current is None else current[1].workload
        if run is not None and not run.status.phase.is_final:
            raise name_taken(spec)

    def create(self, spec: WorkloadSpec, annotations: Mapping[str, str], parent: AnyWorkload | None = None) -> Object:
        """Create the object of a workload, or find the one that an earlier attempt created.

        Raises:
            NameTaken: Another unfinished workload of the kind has the name.
        """
        kind, body = type(spec).__name__, write_object(spec)
        token = f"{time.time():.6f}"
        if isinstance(spec, Serving):
            revised_files = revised(RevisionFiles(), spec.code, annotations)
            annotations = {name: value for name, value in revised_files.items() if value is not None}
        body["metadata"] |= {"annotations": {**annotations, SUBMITTED: token}}
        if self._adds_finalizer:
            body["metadata"]["finalizers"] = [FINALIZER]
        if parent is not None:
            body["metadata"]["ownerReferences"] = [owner(parent)]
        while True:
            try:
                return self.client.create(objects_path(kind, spec.team), body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise _explained(error, spec, self.client) from error
            current = self.read(kind, spec.team, spec.name)
            if current is not None:
                content, item = current
                is_ours = (content["metadata"].get("annotations") or {}).get(SUBMITTED) == token
                if is_ours or (parent is not None and parent_in(item) == parent.uid):
                    return content
                self._remove_finished(item, spec)

    def set_intent(self, uid: str, intent: Intent) -> AnyWorkload:
        item = self._find(uid)
        workload = workload_of(item)
        if workload.intent is intent:
            return workload
        path = objects_path(item.kind, item.namespace, item.name)
        try:
            if intent is Intent.DELETE:
                if managed_elsewhere(workload):
                    raise Conflict(
                        f"{item.name} was given to this cluster by Karmada, which would create it again and run it "
                        "anew. Delete it with the context of Karmada's control plane."
                    )
                content = self.client.delete(
                    path, {"propagationPolicy": "Background", "preconditions": {"uid": item.uid}}
                )
                if content.get("kind") != item.kind:
                    return replace(workload, intent=Intent.DELETE)
            elif item.is_leaving:
                raise Conflict(f"{item.name} is being deleted; submit it again when it is gone.")
            else:
                requested_intent = f"{intent.value}:{time.time_ns() // 1000}"
                metadata = {"uid": item.uid, "annotations": {INTENT: requested_intent}}
                content = self.client.merge(path, {"metadata": metadata})
        except ApiError as error:
            if error.status in (404, 409):
                raise NotFound(f"There is no run with the id {uid!r} any more.") from error
            raise
        return self._observed(content)

    def update(
        self, uid: str, spec: Spec, *, version: int, annotations: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        named = self._find(uid)
        for _ in range(TRIES):
            current = self.read(named.kind, named.namespace, named.name)
            if current is None or current[1].uid != uid:
                break
            content, item = current
            run = workload_of(item)
            if item.is_leaving:
                raise Conflict(f"{item.name} is being deleted; submit it again when it is gone.")
            if run.version != version:
                raise Conflict(changed_meanwhile(item.name))
            filled_spec: WorkloadSpec = filled(spec) if isinstance(spec, Training) else spec
            if not check_update(run, filled_spec) and not annotations:
                return cast("Workload[Spec]", run)
            metadata = {
                "uid": uid,
                "resourceVersion": str(item.version),
                "annotations": dict(annotations or {}),
                "labels": merge_patch(run.spec.labels, spec.labels),
            }
            body = {"metadata": metadata, "spec": merge_patch(content["spec"], write_object(spec)["spec"])}
            try:
                path = objects_path(item.kind, item.namespace, item.name)
                return cast("Workload[Spec]", self._observed(self.client.merge(path, body)))
            except ApiError as error:
                if error.status == 422:
                    raise Conflict(f"{item.name}: the API server refuses it: {error.server_message}") from error
                if error.status not in (404, 409):
                    raise
        else:
            raise Conflict(changed_meanwhile(named.name))
        raise NotFound(f"There is no run with the id {uid!r} any more.")

    def revise(self, uid: str, spec: WorkloadSpec, annotations: Mapping[str, str]) -> AnyWorkload:
        """Give an endpoint, or a top-level pipeline, a new spec.

        Raises:
            Conflict: It is over or being deleted, or the API server refuses the spec.
            NotFound: There is none with that id.
        """
        named = self._find(uid)
        for _ in range(TRIES):
            current = self.read(named.kind, named.namespace, named.name)
            if current is None or current[1].uid != uid:
                raise NotFound(f"There is no run with the id {uid!r} any more.")
            content, item = current
            if item.is_leaving or item.state.status.phase.is_final:
                raise Conflict(f"{item.name} is over or being deleted; submit it again when it is gone.")
            spec = scaled_as(spec, workload_of(item).spec)
            metadata = {
                "uid": uid,
                "resourceVersion": str(item.version),
                "annotations": _revised_files(content, spec, annotations),
                "labels": merge_patch(workload_of(item).spec.labels, spec.labels),
            }
            body = {"metadata": metadata, "spec": merge_patch(content["spec"], write_object(spec)["spec"])}
            try:
                return self._observed(self.client.merge(objects_path(item.kind, item.namespace, item.name), body))
            except ApiError as error:
                if error.status == 422:
                    raise Conflict(f"{item.name}: the API server refuses it: {error.server_message}") from error
                if error.status not in (404, 409):
                    raise
        raise Conflict(changed_meanwhile(named.name))

    def workloads(self, *, limit: int | None = None) -> tuple[AnyWorkload, ...]:
        newest = sorted(self._runs(), key=lambda run: (-run.created_at, run.uid))
        return tuple(newest[:limit])

    def children(self, uid: str) -> tuple[AnyWorkload, ...]:
        objects = list(self._objects())
        # Anybody who may create runs may claim any owner, so the key of a child must begin with its parent's as well.
        name_prefix = next((f"{item.key}-" for item in objects if item.uid == uid), "")
        runs = (item.workload for item in objects if not name_prefix or item.key.startswith(name_prefix))
        children = (run for run in runs if run is not None and run.parent == uid)
        return tuple(sorted(children, key=lambda run: (run.created_at, run.uid)))

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        events = [
            event_record(item, event)
            for item in self._objects()
            if uid in (None, item.uid)
            for event in (submitted(item), *item.state.events)
            if event.id > after
        ]
        return tuple(sorted(events, key=lambda event: event.id))

    def named(self, name: str, namespace: str) -> Workload:
        """Return the run of a name.

        Raises:
            NotFound: There is none.
        """
        current = self.read("Training", namespace, name)
        if current is None:
            raise NotFound(f"There is no run named {name!r} in the namespace {namespace!r}.")
        return leaf(workload_of(current[1]))

    def _remove_finished(self, item: AnyObject, spec: WorkloadSpec) -> None:
        """Remove a finished run whose name is needed again."""
        run = item.workload
        if item.is_leaving or run is None or not run.status.phase.is_final or run.intent is Intent.RUN:
            raise name_taken(spec)
        path = objects_path(item.kind, item.namespace, item.name)
        other_finalizers = [name for name in item.finalizers if name != FINALIZER]
        try:
            metadata = {"resourceVersion": str(item.version), "finalizers": other_finalizers}
            self.client.merge(path, {"metadata": metadata})
            self.client.delete(path, {"propagationPolicy": "Background", "preconditions": {"uid": item.uid}})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
        self._source.drop(item)

    def _runs(self) -> Iterator[AnyWorkload]:
        return (item.workload for item in self._objects() if item.workload is not None)

    def _objects(self) -> Iterable[AnyObject]:
        return [item for item in self._source.objects() if self._namespace in (None, item.namespace)]

    def _find(self, uid: str) -> AnyObject:
        item = self._source.find(uid)
        if item is None or self._namespace not in (None, item.namespace):
            item = next((item for item in self._objects() if item.uid == uid), None)
        if item is None:
            raise NotFound(f"There is no run with the id {uid!r}.")
        return item

    def read(self, kind: str, namespace: str, name: str) -> tuple[Object, AnyObject] | None:
        """Return an object as the API server has it now, raw and read; None if there is none."""
        try:
            content = self.client.get(objects_path(kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return content, read_workload(content)

    def _observed(self, content: Object) -> AnyWorkload:
        """Return the workload in a response, which the source knows from now on."""
        self._source.put(content)
        return workload_of(read_workload(content))


def items_of(client: Client, kind: str, namespace: str | None, query: dict[str, str] | None = None) -> Iterator[Object]:
    """Return the objects of a kind of workload; none of a kind that an older installation lacks."""
    try:
        yield from client.items(objects_path(kind, namespace), query)
    except ApiError as error:
        if not is_unknown_kind(kind, error):
            raise


def is_unknown_kind(kind: str, error: ApiError) -> bool:
    """Return whether an error means that an older installation lacks a kind: its roles then grant no access to
    the kind either."""
    return kind != "Training" and error.status in (403, 404)


def name_taken(spec: WorkloadSpec) -> NameTaken:
    """Return the error for the name of an unfinished run."""
    return NameTaken(
        f"A run named {spec.name!r} of team {spec.team!r} is not finished. "
        f"Stop it with `fairlead stop {spec.name}`, or choose another name with `--name`."
    )


def inherited_annotations(annotations: Mapping[str, str], child: WorkloadSpec) -> dict[str, str]:
    """Return the annotations that a child inherits; a replica has the files of its own revision."""
    inherited = {name: annotations[name] for name in INHERITED if name in annotations}
    if not isinstance(child, Replica):
        return inherited
    revision_files = read_files(annotations).annotations(child.code)
    if revision_files.get(WORKDIR) is None:
        return inherited
    if revision_files[WORKDIR] == inherited.get(WORKDIR):
        return inherited  # its REVISION annotation has the whole commit message, which `revision_files` shortens
    return {name: value for name, value in revision_files.items() if value is not None}


def _revised_files(content: Object, spec: WorkloadSpec, annotations: Mapping[str, str]) -> Mapping[str, str | None]:
    """Return the annotations that give an object a new spec; None removes one."""
    if not isinstance(spec, Serving):
        return dict(annotations)
    current = read_files(content["metadata"].get("annotations") or {})
    if spec.code and WORKDIR not in annotations and current.of(spec.code) is None:
        raise Conflict(
            f"{spec.name}: the files of that revision are not kept any more: the annotation {CODE} does not name them. "
            "Run its spec again from the directory that has them."
        )
    return revised(current, spec.code, annotations)


def parent_in(item: AnyObject) -> str | None:
    """Return the uid of an object's parent; None for none, or if the object cannot be read."""
    return None if item.workload is None else item.workload.parent


def workload_of(item: AnyObject) -> AnyWorkload:
    """Return the workload of an object.

    Raises:
        ClusterError: This version of Fairlead cannot read it.
    """
    if item.workload is None:
        raise ClusterError(f"The run {item.name} cannot be read by this Fairlead: {item.problem}")
    return item.workload


# The message of Kubernetes' admission plugin ResourceQuota for the number of objects of a kind.
OBJECT_QUOTA = re.compile(
    r"exceeded quota: (?P<quota>\S+), requested: count/\S+=\d+, used: count/\S+=(?P<used>\d+), "
    r"limited: count/\S+=(?P<limited>\d+)"
)


def _explained(error: ApiError, spec: WorkloadSpec, client: Client) -> ClusterError:
    """Return the error for a refused creation, with its remedy where one is known."""
    if error.status == 404 and "namespaces" in error.server_message:
        return ClusterError(
            f"There is no namespace {spec.team!r} for the run {spec.name!r}. Create it, apply a Team of that name, or "
            "choose another with `--namespace`."
        )
    if error.status == 404:
        install = f"fairlead install --image-to REGISTRY/NAME{client.access.option}"
        return ClusterError(f"This cluster does not know Fairlead's kinds. `{install}` sets them up.")
    if error.status == 422:
        return ClusterError(f"{spec.name}: the API server refuses it: {error.server_message}")
    counts = OBJECT_QUOTA.search(error.server_message) if error.status == 403 else None
    if counts is not None:
        return NotAllowed(
            f"{spec.name}: the namespace {spec.team} has {counts['used']} objects of this kind, finished ones "
            f"included, and may have {counts['limited']} (its ResourceQuota {counts['quota']}). Delete some with "
            "`fairlead delete NAME...`, or ask an administrator for a higher `max_objects` of the Team."
        )
    return error
