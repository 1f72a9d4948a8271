"""The table of kinds: one record for each, in the module of its name, imported on first use."""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from fairlead.errors import Conflict
from fairlead.policy.kinds.record import Kind, LeafKind, ParentKind
from fairlead.specs.keys import added_kinds
from fairlead.specs.training import Training
from fairlead.specs.workload import WorkloadSpec
from fairlead.state.snapshot import LEAVES, AnyWorkload, Workload, is_leaf

Spec = TypeVar("Spec", bound=WorkloadSpec)


class _Kinds(Mapping[str, Kind]):
    _homes = ("Training", "Sweep", "Serving", "Replica", "Pipeline", "Workspace", "Federation")

    def __getitem__(self, kind: str) -> Kind:
        if kind in self._homes:
            record: Kind = import_module(f"fairlead.policy.kinds.{kind.lower()}").KIND
            return record
        added: Kind = added_kinds()[kind].KIND
        return added

    def __iter__(self) -> Iterator[str]:
        yield from self._homes
        yield from added_kinds()

    def __len__(self) -> int:
        return len(self._homes) + len(added_kinds())


KINDS: Mapping[str, Kind] = _Kinds()


_RECORDS: dict[type, Kind] = {}
"""Records used so far."""


def _record(spec: type) -> Kind:
    record = _RECORDS.get(spec)
    if record is None:
        record = _RECORDS[spec] = KINDS[spec.__name__]
    return record


def leaf_of(spec: Training) -> LeafKind:
    """Return the record of a kind with pods."""
    record = _record(type(spec))
    assert isinstance(record, LeafKind), "parents have no pods"
    return record


def parent_of(spec: WorkloadSpec) -> ParentKind[Any] | None:
    """Return the record of a kind with children; None for one with pods."""
    if isinstance(spec, LEAVES):
        return None
    record = _record(type(spec))
    return record if isinstance(record, ParentKind) else None


def map_runs(spec: Spec, of: Callable[[Training], Training]) -> Spec:
    """Return a spec of any kind with a function applied to each run that it describes."""
    record = parent_of(spec)
    mapped: Any = of(cast(Training, spec)) if record is None else record.map_runs(spec, of)
    return cast(Spec, mapped)


def runs_of(spec: WorkloadSpec) -> tuple[Training, ...]:
    """Return the runs that a spec of any kind describes: itself if it is one."""
    runs: list[Training] = []

    def note(run: Training) -> Training:
        runs.append(run)
        return run

    map_runs(spec, note)
    return tuple(runs)


def leaf(workload: AnyWorkload) -> Workload:
    """Return the workload, which has to have pods.

    Raises:
        Conflict: It has children instead.
    """
    if is_leaf(workload):
        return workload
    name = workload.spec.name
    raise Conflict(f"{name} is a {type(workload.spec).__name__} and has no pods; name one of its runs, {name}-...")
