"""The local cluster behind the port, as the loop and the faces see it. Only the supervisor also runs an agent."""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairlead.cluster.client import OwnCheckpoints, Prepared
from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.home import LEFTOVERS, Home
from fairlead.cluster.local.logs import dropped_output, read_logs
from fairlead.cluster.local.policy_file import read_rules
from fairlead.cluster.local.room import release_reserve, trouble
from fairlead.cluster.local.store import Store
from fairlead.cluster.local.team_file import read_teams
from fairlead.cluster.names import unknown
from fairlead.cluster.output import EVERYTHING, Dropped, LogQuery, Watermark
from fairlead.cluster.port import MOST_COMPLETED, EventRecord, LogLine, Spec
from fairlead.cluster.selection import Selection
from fairlead.errors import ClusterError, Conflict, InvalidSpec, NoRoom, NotFound
from fairlead.runtime.podfiles import is_locked, read_json, write_json
from fairlead.specs.training import Training
from fairlead.state.snapshot import (
    AnyWorkload,
    Grant,
    Intent,
    Node,
    Phase,
    Pod,
    Snapshot,
    Spending,
    Workload,
    is_leaf,
)

if TYPE_CHECKING:
    from fairlead.cluster.kept_code import KeptCode
    from fairlead.cluster.ledger_tables import Grouping, Payer, Price
    from fairlead.cluster.listing import Listing
    from fairlead.cluster.local.code.keeping import CodeStore
    from fairlead.cluster.local.utilization_meter import UtilizationMeter
    from fairlead.cluster.prometheus import PrometheusReader
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.goodput import Goodput
    from fairlead.ledger.usage import Holder
    from fairlead.policy.kinds.retention import Retention
    from fairlead.specs.endpoint_engines import EndpointEngine
    from fairlead.specs.serving import Serving
    from fairlead.specs.team import Team
    from fairlead.specs.workload import WorkloadSpec
    from fairlead.state.access_keys import AccessKey
    from fairlead.state.demand import Demand
    from fairlead.state.measurements import Measurement
    from fairlead.state.models import ModelVersion
    from fairlead.state.plan import Change, Plan
    from fairlead.state.series import Point

# How often a waiting process asks the database whether anything has changed; one such question costs microseconds.
LOOK_S = 0.02
# How often it is tried whether anything can be kept; a try writes a little and costs tens of microseconds.
TRY_S = 2.0
# Bytes of a supervisor's answer; its counts take a few thousand.
MOST_ANSWER = 65_536


class LocalCluster:
    """This machine as a cluster. An instance belongs to one thread.

    Args:
        is_loops: It is the loop's own, which looks twice a second: it is shown what matters only to those that wait
            while somebody does. Whoever asks what would happen is shown all.
    """

    has_containers = False

    def __init__(self, home: Home, *, is_loops: bool = False) -> None:
        self.home = home
        self._is_loops = is_loops
        try:
            self.store = Store(home)
        except NoRoom:
            # To look, and to make room, takes a little of it.
            if not release_reserve(home):
                raise
            self.store = Store(home)
        self._trouble: ClusterError | None = None
        self._tried_at: float | None = None
        self._prometheus: PrometheusReader | None = None
        self._node: Node | None = None
        self._teams_read: tuple[tuple[int, int], tuple[Team, ...]] | None = None
        self._seen = self.store.change_counter()
        self._meter: UtilizationMeter | None = None

    @classmethod
    def open(cls, path: Path | None = None) -> "LocalCluster":
        """The cluster whose state is in ``path``, or where FAIRLEAD_HOME or the user's state directory says."""
        return cls(Home.open(path))

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
        self.store.close()

    def measure(self, num_live: int, now: float) -> None:
        """Measure how busy runs keep what they hold, if it is time; only the loop does.

        Args:
            num_live: How many pods are live; before the first is there is nothing to measure.
        """
        if self._meter is None:
            if num_live == 0:
                return
            # Here and not above: only what looks after runs needs it.
            from fairlead.cluster.local.utilization_meter import UtilizationMeter

            self._meter = UtilizationMeter(self.home, self.store)
        if self._meter.is_due(now):
            active, pods, _ = self.store.active()
            self._meter.measure(filter(is_leaf, active), pods, now)

    def _with_idleness(self, runs: tuple[Workload, ...]) -> tuple[Workload, ...]:
        """Runs with what was measured of those that leave idle what they hold."""
        if self._meter is None:
            return runs
        found = [(run, self._meter.idle_of(run)) for run in runs]
        return tuple(run if idle is None else replace(run, idle=idle) for run, idle in found)

    def another(self) -> "LocalCluster":
        return LocalCluster(self.home)

    def nodes(self) -> tuple[Node, ...]:
        return (self._priced_node(),)

    def node(self) -> Node:
        """This machine; asked for once, since its hardware does not change under a process."""
        if self._node is None:
            # Here and not above: what only lists runs need not load what looks at hardware.
            from fairlead.cluster.local import machine

            self._node = machine.node()
        return self._node

    def share_of(self, grant: Grant) -> int:
        """The part of this machine that a pod pays for."""
        from fairlead.ledger.usage import share_of  # here and not above: what only lists runs needs nothing of money

        return share_of(grant, self.node())

    def _priced_node(self) -> Node:
        """This machine with the price of now; one of which nobody says is there already, and costs nothing more."""
        node = self.node()
        rate = self.store.rate_at(node.name, time.time())
        return node if rate is None else replace(node, price_per_hour=rate / 1_000_000)

    def snapshot(self) -> Snapshot:
        active, pods, ended = self.store.active()
        runs = self._with_idleness(tuple(filter(is_leaf, active)))
        parents = tuple(each for each in active if not is_leaf(each)) if len(runs) < len(active) else ()
        waits = any(run.status.phase in (Phase.PENDING, Phase.RESTARTING) for run in runs)
        try:
            teams = self.teams()
        except ClusterError:
            # Nothing is started by half of what was meant; what runs is looked after all the same.
            if waits or not self._is_loops:
                raise
            teams = ()
        seen = Snapshot(
            nodes=(self._priced_node(),),
            workloads=runs,
            pods=pods,
            spending=self._spending(runs, teams),
            parents=parents,
            ended=ended,
        )
        if seen.spending is not None:
            seen = replace(seen, teams=teams)
        seen = replace(seen, demand=self._demand(seen), measurements=self._measurements(seen))
        # What others took, and whose turn it is, matters only to those that wait, or may share GPUs.
        if self._is_loops and not waits and not any(run.spec.resources.colocate for run in runs):
            return seen
        return replace(
            seen,
            teams=teams,
            completed=self.store.completed(MOST_COMPLETED),
            rules=read_rules(self.home.policy),
        )

    def _demand(self, seen: Snapshot) -> "Mapping[str, Demand]":
        """Read what the gateway counts of the endpoints that are there, by their uids."""
        if not seen.parents or not any(type(each.spec).__name__ == "Serving" for each in seen.parents):
            return {}
        # Here and not above: what only lists runs needs neither.
        from fairlead.cluster.local.endpoints import demand_here
        from fairlead.policy.serving.routes import public_names

        names = public_names(seen)
        found = demand_here(self.home, names.values())
        return {uid: found[name] for uid, name in names.items() if name in found}

    def _measurements(self, seen: Snapshot) -> "Mapping[str, Measurement]":
        """Return what the queries answered by which endpoints scale; the loop alone asks."""
        if not self._is_loops or not any(type(each.spec).__name__ == "Serving" for each in seen.parents):
            return {}
        if self._prometheus is None:
            from fairlead.cluster.prometheus import PrometheusReader  # here and not above: few clusters have endpoints

            self._prometheus = PrometheusReader()
        return self._prometheus.look(seen, time.time())

    def teams(self) -> "tuple[Team, ...]":
        """Those of the file, read anew when it has changed."""
        try:
            found = self.home.teams.stat()
        except FileNotFoundError:
            return ()
        version = found.st_mtime_ns, found.st_size
        if self._teams_read is None or self._teams_read[0] != version:
            self._teams_read = version, read_teams(self.home.teams)
        return self._teams_read[1]

    def _spending(self, workloads: tuple[Workload, ...], teams: "tuple[Team, ...]") -> Spending | None:
        """Sum up what was spent where somebody has a limit; None where nobody has one or no price is set."""
        bounded = [run.uid for run in workloads if run.spec.max_cost is not None]
        has_budgets = any(team.has_budgets for team in teams)
        # Whoever asks what would become of a run may mean one with a limit that is not among them yet.
        if self._is_loops and not (bounded or has_budgets):
            return None
        now = time.time()
        if self.store.rate_at(self.node().name, now) is None:
            return None
        spent = self.store.spent_this_month(now) if has_budgets else Spending()
        return replace(spent, by_run={uid: self.store.cost_of(uid, now) or 0 for uid in bounded})

    def tell_budgets(self) -> None:
        """Tell the unfinished runs of each budget once a month when half, four fifths and all of it is spent."""
        with suppress(ClusterError):  # told by the snapshot as soon as somebody waits
            self._tell_budgets([team for team in self.teams() if team.has_budgets])

    def _tell_budgets(self, teams: "list[Team]") -> None:
        if not teams:
            return
        # Here and not above: only what looks after runs needs it.
        from fairlead.policy.queue.budgets import accounts_of, reached_notice

        now = time.time()
        spent = self.store.spent_this_month(now)
        for account in accounts_of(teams):
            notice = reached_notice(account, spent)
            if notice is not None:
                self.store.tell_budget(account, *notice, now)

    def apply(self, plan: "Plan") -> tuple[bool, ...]:
        now = time.time()
        forgotten = False
        applied: dict[int, bool] = {}
        no_room: NoRoom | None = None
        # What is forgotten makes room for the rest.
        for place, change in sorted(enumerate(plan.changes), key=lambda item: not item[1].forget):
            new: tuple[str, ...] = ()
            try:
                new = self._prepare_children(change, now)
                done = self.store.apply(change, now, self._move_away, self.share_of)
            except NoRoom as error:
                no_room, done = error, False
            for uid in new if not done else ():
                self._remove_unknown(uid)
            applied[place] = done
            if done and change.forget:
                self._remove(change.workload_uid)
                forgotten = True
            elif done and self.store.is_over(change.workload_uid):
                self.home.environment(change.workload_uid).unlink(missing_ok=True)
        if forgotten:
            self._code().prune()
        if no_room is not None:
            raise no_room
        return tuple(applied[place] for place in range(len(plan.changes)))

    def _prepare_children(self, change: "Change", now: float) -> tuple[str, ...]:
        """Give children their files before a change submits or resumes them; the uids of those that are new.

        They inherit the environment and the code that their parent was submitted or resumed with.
        """
        if not change.submit and not change.children:
            return ()
        # Here and not above: what only lists runs needs neither.
        from fairlead.policy.kinds.table import runs_of
        from fairlead.state.plan import child_uid

        parent, new = change.workload_uid, list[str]()
        specs = {child_uid(parent, order.name): order.spec for order in change.submit}
        resumed = {each.uid for each in change.children if each.intent is Intent.RUN}
        specs |= {run.uid: run.spec for run in self.store.those(sorted(resumed)) if run.status.phase.is_final}
        for uid, spec in specs.items():
            if not self.store.has(uid):
                new.append(uid)
            elif uid not in resumed:
                continue
            self._inherit_environment(uid, parent)
            try:
                for run in runs_of(spec):
                    self._code().inherit(uid, parent, run, now)
            except OSError as error:
                raise explained(self.home.path, error) from error
        return tuple(new)

    def _remove_unknown(self, uid: str) -> None:
        """Remove the files of a child that was not submitted in the end."""
        if not self.store.has(uid):
            self._remove(uid)

    def _move_away(self, uid: str) -> None:
        """Mark the files of a workload as nobody's, before it is forgotten: whoever dies in between leaves a mark."""
        # Files that cannot be moved do not keep it from being forgotten; removing them is tried where they are.
        with suppress(OSError):
            self.home.run(uid).rename(self.home.leftovers(uid))

    def _remove(self, uid: str) -> None:
        for left in (self.home.leftovers(uid), self.home.run(uid)):
            self._code().settle_in(left)
            shutil.rmtree(left, ignore_errors=True)

    def forget(self, workloads: Sequence[AnyWorkload]) -> tuple[bool, ...]:
        """Remove workloads that are over, as far as they are as given."""
        from fairlead.state.plan import Change, Plan  # here and not above: what only lists runs needs nothing of plans

        over = [run for run in workloads if run.status.phase.is_final]
        changes = (Change(workload_uid=run.uid, version=run.version, forget=True) for run in over)
        done = dict(zip((run.uid for run in over), self.apply(Plan(changes=tuple(changes))), strict=True))
        return tuple(done.get(run.uid, False) for run in workloads)

    def sweep(self) -> None:
        """Remove the files of workloads that were forgotten by somebody who died before removing them."""
        runs = self.home.runs
        for left in sorted(runs.glob(f"*{LEFTOVERS}")) if runs.exists() else ():
            uid = left.name.removesuffix(LEFTOVERS)
            if not self.store.has(uid):
                self._remove(uid)

    def space_of(self, workload: AnyWorkload) -> int | None:
        from fairlead.cluster.local.space import used_bytes  # here and not above: seldom needed

        return used_bytes(self.home.run(workload.uid))

    def keeps(self) -> "Retention":
        from fairlead.cluster.local.retention import read_keep  # here and not above: seldom needed

        return read_keep(self.home.keep)

    def in_its_team(self, spec: Spec) -> Spec:
        """As it is: any team may be named here."""
        return spec

    def prepare(self, spec: Training, directory: Path | None) -> Prepared:
        """With an absolute working directory, which is used where it is.

        Raises:
            InvalidSpec: It is not there, or the command cannot start in it.
        """
        # Here and not above: only what submits needs it.
        from fairlead.cluster.local.code.snapshots import no_project
        from fairlead.cluster.preflight import command_problem, place_problem, workdir_problem

        base = Path.home() if directory is None else directory.absolute()
        workdir = Path(os.path.normpath(base if spec.workdir is None else base / Path(spec.workdir).expanduser()))
        if (problem := workdir_problem(workdir)) is not None:
            raise InvalidSpec((f"{spec.name}: workdir: {problem}. Correct `workdir`, or make the directory first.",))
        if (problem := command_problem(spec, workdir, os.environ)) is not None:
            raise InvalidSpec((f"{spec.name}: run: {problem}.",))
        if (problem := place_problem(spec, workdir, os.environ)) is not None:
            raise InvalidSpec((f"{spec.name}: checkpoint.to: {problem}.",))
        spec = self._with_model(replace(spec, workdir=str(workdir)), base)
        problem = no_project(workdir) if spec.snapshot else None
        notes = () if problem is None else (f"snapshot: the code is not kept, and edits reach the run: {problem}",)
        return Prepared(spec=spec if directory is None else self._with_origin(spec, workdir), notes=notes)

    def _with_model(self, spec: Training, base: Path) -> Training:
        """With the path of the model, of a replica of an endpoint that has one."""
        if not getattr(spec, "model_path", ""):
            return spec
        # Here and not above: few runs serve a model.
        from fairlead.cluster.local.models import path_of
        from fairlead.specs.serving import Replica

        assert isinstance(spec, Replica)
        try:
            return replace(spec, model_path=str(path_of(self, spec.model_path, spec.team, base)))
        except (NotFound, Conflict) as error:
            raise type(error)(f"{spec.service}: model: {error}") from error

    def _with_origin(self, spec: Training, workdir: Path) -> Training:
        """With the place that ``checkpoint.from`` means, once there is something in it."""
        given = spec.checkpoint.origin
        if given is None:
            return spec
        # Here and not above: few runs need it.
        from fairlead.cluster.local.pod_spec import checkpoint_place
        from fairlead.cluster.origins import is_run_name, refuse_empty
        from fairlead.specs.model_reference import read_reference

        if read_reference(given) is not None:
            return replace(spec, checkpoint=replace(spec.checkpoint, origin=self._place_of_model(spec)))
        run = self.find(given, spec.team) if is_run_name(given) else None
        if run is not None:
            place = checkpoint_place(self.home, run)
        else:
            place = given if "://" in given else os.path.normpath(workdir / Path(given).expanduser())
        refuse_empty(spec, place, run)
        return replace(spec, checkpoint=replace(spec.checkpoint, origin=place))

    def _place_of_model(self, spec: Training) -> str:
        from fairlead.cluster.local.models import resolve  # here and not above: few runs need it

        given = spec.checkpoint.origin or ""
        try:
            found = resolve(self, given, spec.team)
        except (NotFound, Conflict) as error:
            raise type(error)(f"{spec.name}: checkpoint.from: {error}") from error
        if found.place is None:
            raise Conflict(
                f"{spec.name}: checkpoint.from: {found.said} is a {found.content.value}, not a checkpoint. "
                "Push a run's checkpoint, or read the model in the program."
            )
        return str(found.place)

    def models(self, name: str | None = None) -> "tuple[ModelVersion, ...]":
        """Versions of models that were pushed here, those of a name or all, by name and number."""
        return self.store.models(name)

    def add_model(self, given: "ModelVersion") -> "tuple[ModelVersion, bool]":
        """Keep a new version, whose content is there; the version, and False where it was known already."""
        return self.store.add_model(given)

    def remove_model(self, version: "ModelVersion") -> None:
        """Remove a version of a model; its content is removed when outputs that nobody needs are.

        Raises:
            Conflict: It has a stage.
        """
        self.store.remove_model(version.name, version.version)

    def promote_model(self, version: "ModelVersion", stage: str) -> "ModelVersion":
        """Give a version a stage, which no other of its name has from then on."""
        return self.store.promote_model(version.name, version.version, stage)

    def launch(
        self, spec: Spec, *, directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        workload = self._revised(spec, environ) or self.submit(spec, environ=environ)
        self.nudge()
        return workload

    def _revised(self, spec: Spec, environ: Mapping[str, str] | None) -> Workload[Spec] | None:
        """Give an endpoint that is there the spec of another of its name; None where there is none."""
        if type(spec).__name__ != "Serving":
            return None
        found = self.store.named(spec.name, spec.team)
        if found is None or found.status.phase.is_final:
            return None
        revised = self.revised(found, spec)
        if revised is None:
            return None
        # Also of the same code: what is no source, such as a table beside it, may be another by now.
        kept = self._keep_code(found.uid, spec)
        if found.spec == revised:
            return found
        self._keep_environment(found.uid, environ)
        return self.store.revise(found.uid, kept, time.time())

    def revised(self, workload: AnyWorkload, spec: Spec, *, directory: Path | None = None) -> Spec | None:
        """Return the spec that ``launch`` gives an endpoint that is there; None for any other workload."""
        if type(spec).__name__ != "Serving" or type(workload.spec) is not type(spec):
            return None
        serving = cast("Serving", spec)
        if serving.code and self._code().keeps(workload.uid, serving.code):
            return spec
        return cast("Spec", replace(serving, code=self._code().name_now(serving.replica())))

    def edited_code(
        self, workload: AnyWorkload, spec: "WorkloadSpec", directory: Path | None
    ) -> tuple[str, ...] | None:
        """Return the sources of an endpoint's code that differ from those in the directory of a spec of it."""
        before, serving = cast("Serving", workload.spec), cast("Serving", spec)
        return self._code().edited_sources(workload.uid, before.code, serving.replica())

    def endpoint_url(self, workload: AnyWorkload) -> str | None:
        """Return the address of an endpoint; None while there is no gateway, or it is over."""
        # Here and not above: what only lists runs asks for none.
        from fairlead.cluster.local.endpoints import gateway_url
        from fairlead.policy.serving.routes import public_names

        url, name = gateway_url(self.home), public_names(self.snapshot()).get(workload.uid)
        return None if url is None or name is None else f"{url}/{name}/"

    def has_gateway(self) -> bool:
        """Return True: one is started with the first endpoint."""
        return True

    def engine_problem(self, engine: "EndpointEngine") -> str | None:
        """Return that there are no engines here."""
        return (
            f"{engine} is a controller of Kubernetes, and the local cluster has none. Remove `engine` to serve it "
            "here, or name a cluster that has it with `--context`"
        )

    def access_keys(self) -> "tuple[AccessKey, ...]":
        """Return the keys of all teams."""
        from fairlead.cluster.local.access_keys import read_keys  # here and not above: only endpoints have any

        return read_keys(self.home.access_keys)

    def add_access_key(self, key: "AccessKey") -> None:
        """Keep a key.

        Raises:
            Conflict: The team has one of that name.
        """
        from fairlead.cluster.local.access_keys import add_key

        add_key(self.home.access_keys, key)

    def remove_access_key(self, team: str, name: str) -> None:
        """Keep a key no longer.

        Raises:
            NotFound: The team has none of that name.
        """
        from fairlead.cluster.local.access_keys import remove_key

        remove_key(self.home.access_keys, team, name)

    def change(self, workload: Workload, spec: Training, *, directory: Path | None = None) -> Workload:
        return self.update(workload.uid, spec, version=workload.version)

    def has_files_of(self, workload: Workload, directory: Path) -> bool:
        """Always: it runs where they are."""
        return True

    def submit(self, spec: Spec, *, environ: Mapping[str, str] | None = None) -> Workload[Spec]:
        """Keep a new workload, Pending; ``environ`` is the environment its program inherits, by default ours.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
        """
        # Eleven hex digits: unique among millions, and short enough to read aloud.
        uid = uuid.uuid4().hex[:11]
        try:
            # Files first: as soon as the row is there, a supervisor may start it.
            self._keep_environment(uid, environ)
            return self.store.submit(uid, self._keep_code(uid, spec), time.time())
        except BaseException:
            shutil.rmtree(self.home.run(uid), ignore_errors=True)
            raise

    def _keep_code(self, uid: str, spec: Spec) -> Spec:
        """Keep the code of a spec, as it is now or as an endpoint names it. The spec, of an endpoint with that."""
        # Here and not above: what only lists runs keeps none.
        from fairlead.policy.kinds.table import runs_of

        is_endpoint = type(spec).__name__ == "Serving"
        if is_endpoint and (had := getattr(spec, "code", "")) and self._code().keep_again(uid, had):
            return spec

        # The runs of a pipeline mostly have one directory.
        runs = {(run.workdir, run.snapshot): run for run in runs_of(spec)}
        for run in runs.values():
            self._code().keep(uid, run, time.time())
        if not is_endpoint:
            return spec
        return cast("Spec", replace(cast("Serving", spec), code=self._code().newest(uid)))

    def code(self, uid: str) -> "KeptCode":
        """Return what is kept of a workload's code, and what it ran with."""
        return self._code().shown(uid)

    def set_intent(self, uid: str, intent: Intent, *, environ: Mapping[str, str] | None = None) -> Workload[Any]:
        """Record what the user wants of a workload now; a resumed one inherits the environment given then.

        One that is over goes on with the code of that moment, too.
        """
        run = self.store.get(uid)
        if intent is Intent.RUN and run.status.phase.is_final:
            self._keep_environment(uid, environ)
            self._keep_code(uid, run.spec)
        if intent is not Intent.RUN and isinstance(self._found_trouble(), NoRoom):
            # A full disk must not keep anybody from ending what fills it: neither this from being recorded, nor what
            # follows from it.
            release_reserve(self.home)
            if intent is Intent.DELETE:
                self._remove_files(uid)
        return self.store.set_intent(uid, intent)

    def update(self, uid: str, spec: Training, *, version: int) -> Workload:
        from fairlead.policy.kinds.table import leaf  # here and not above: what only lists runs changes none

        before = leaf(self.store.get(uid)).spec
        updated = self.store.update(uid, spec, version, time.time())
        if (before.run, before.setup, before.workdir, before.snapshot) != (
            spec.run,
            spec.setup,
            spec.workdir,
            spec.snapshot,
        ):
            self._code().keep(uid, spec, time.time())
        return updated

    def workloads(self, *, limit: int | None = None) -> tuple[Workload[Any], ...]:
        return self.store.workloads(limit)

    def children(self, uid: str) -> tuple[Workload[Any], ...]:
        return self.store.children(uid)

    def events(self, uid: str | None = None, *, after: int = 0) -> tuple[EventRecord, ...]:
        return self.store.events(uid, after)

    def history(self) -> tuple[tuple[Workload[Any], ...], tuple[EventRecord, ...]]:
        return self.workloads(), self.events()

    def pods(self, uid: str) -> tuple[Pod, ...]:
        """All pods of a workload that are kept, those of earlier attempts too."""
        return self.store.pods(uid)

    def find(self, name: str, team: str | None = None) -> Workload[Any]:
        """The unfinished or else newest workload of that name; a uid, or the unique beginning of one, serves as well.

        Raises:
            NotFound: Nothing of that name; near names are told.
            Conflict: No team is given, and unfinished runs of several teams have the name.
        """
        same = [run for run in self.unfinished() if run.spec.name == name] if team is None else []
        if len(same) > 1:
            names = ", ".join(f"{run.spec.team}/{name}" for run in same)
            raise Conflict(f"{len(same)} unfinished runs are named {name!r}; say which one: {names}.")
        found = self.store.named(name, team)
        if found is None:
            raise unknown(name, self.store.names())
        return found

    def get(self, uid: str) -> Workload[Any]:
        return self.store.get(uid)

    def unfinished(self, team: str | None = None) -> tuple[Workload[Any], ...]:
        active = self.store.active()[0]
        return tuple(run for run in active if team in (None, run.spec.team) and not run.status.phase.is_final)

    def select(self, selection: Selection, *, limit: int | None = None) -> tuple[Workload[Any], ...]:
        return self.store.select(selection, limit)

    def page(self, listing: "Listing") -> tuple[Workload[Any], ...]:
        """The workloads of a page, newest first."""
        return self.store.page(listing)

    def num_kept(self) -> int:
        """Count the workloads that are kept."""
        return self.store.num_kept()

    def num_unfinished(self) -> "Mapping[Phase, int]":
        """Count the workloads that are not over, by phase."""
        return self.store.num_unfinished()

    def names(self) -> tuple[str, ...]:
        return self.store.names()

    def finished_names(self, team: str) -> frozenset[str]:
        """Those of all teams, which share this machine's names."""
        return self.store.finished_names()

    def logs(
        self,
        uid: str,
        query: LogQuery = EVERYTHING,
        *,
        follow: bool = False,
        stop: Callable[[], bool] | None = None,
        watermark: Watermark | None = None,
    ) -> Iterator[LogLine]:
        """Output of all ranks and attempts in order of time; following ends when the workload is final and drained."""
        from fairlead.policy.kinds.table import leaf  # here and not above: what only lists runs reads no output

        def over() -> bool:
            return (stop is not None and stop()) or self.store.get(uid).status.phase.is_final

        return read_logs(
            lambda: self._pod_dirs(uid),
            query,
            max_bytes=leaf(self.store.get(uid)).spec.logs.max_bytes,
            follow=follow,
            over=over,
            watermark=watermark,
        )

    def series(self, uid: str) -> "Mapping[str, tuple[Point, ...]]":
        return self.store.series(uid)

    def dropped_output(self, workload: Workload) -> tuple[Dropped, ...]:
        return dropped_output(self._pod_dirs(workload.uid), workload.spec.logs.max_bytes)

    def wait(self, timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        # Against the counter of the last wait: what changed while the caller looked and decided is not missed.
        while (counter := self.store.change_counter()) == self._seen and time.monotonic() < end:
            time.sleep(min(LOOK_S, max(0.0, end - time.monotonic())))
        self._seen = counter

    def where(self, workload: AnyWorkload) -> str:
        """Nothing: there is one machine."""
        return ""

    def named(self, *workloads: AnyWorkload) -> str:
        return " ".join(workload.spec.name for workload in workloads)

    @property
    def account(self) -> str:
        return self.node().name

    def costs(self, by: "Grouping", *, since: float, until: float, daily: bool = False) -> "Statement[Payer]":
        """The bill of this machine within a window, and who pays which part; of each day by itself if ``daily``."""
        return self.store.cost(by, since=since, until=until, now=time.time(), daily=daily)

    def holders(self) -> "dict[str, Holder]":
        """Runs that are charged, by uid, also those that were deleted since."""
        return self.store.holders()

    def busy_spans(self, *, since: float, until: float) -> list[tuple[str, int, int]]:
        """Nodes with beginnings and ends, in milliseconds, of what runs held of them within a window."""
        return self.store.busy_spans(since, until, time.time())

    def prices(self) -> "tuple[Price, ...]":
        """All prices that were ever set, by time."""
        return self.store.prices()

    def set_price(self, price: "Price") -> None:
        """Keep the price of this machine from a time on.

        Raises:
            NotFound: It has another name.
        """
        if price.node != self.node().name:
            raise NotFound(f"There is no pool named {price.node!r} here; the only one is {self.node().name!r}.")
        self.store.set_price(price)

    def cost_of(self, workload: Workload) -> int | None:
        return self.store.cost_of(workload.uid, time.time())

    def goodput_of(self, workload: Workload) -> "Goodput":
        from fairlead.ledger.goodput import goodput  # here and not above: what only lists runs needs nothing of it

        now = time.time()
        until = workload.status.finished_at
        held = self.store.held_by(workload.uid, now)
        return goodput(held, created_at=workload.created_at, until=now if until is None else until)

    def own_checkpoints(self, workload: Workload) -> OwnCheckpoints | None:
        from fairlead.runtime.checkpoint.manifest import MANIFEST
        from fairlead.runtime.checkpoint.store import STEP_NAME

        if workload.spec.checkpoint.to is not None:
            return None
        place, steps, num_bytes = self.home.run(workload.uid) / "checkpoints", [], 0
        for directory, _, files in os.walk(place):
            found = STEP_NAME.fullmatch(os.path.basename(directory))
            if found is not None and MANIFEST in files:
                steps.append(int(found[1]))
            for file in files:
                with contextlib.suppress(OSError):  # a checkpoint that makes way for a newer one just now
                    num_bytes += os.lstat(os.path.join(directory, file)).st_size
        return OwnCheckpoints(place=str(place), steps=tuple(sorted(steps)), num_bytes=num_bytes)

    def kept_at(self, workload: AnyWorkload) -> str:
        return str(self.home.run(workload.uid))

    def unattended(self) -> str | None:
        """Nothing: whoever asks for work starts a supervisor."""
        return None

    def trouble(self) -> str | None:
        """That nothing can be recorded because the state directory has no room or may not be written."""
        found = self._found_trouble()
        return None if found is None else str(found)

    def supervisor_alive(self) -> bool:
        """Return whether a supervisor holds its lock."""
        return is_locked(self.home.lock)

    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor; None when none runs."""
        if not self.supervisor_alive():
            return None
        text = self.home.lock.read_text()
        return int(text) if text.isdigit() else None

    def supervisor_answers(self, timeout_s: float) -> bool:
        """Return whether the supervisor that holds the lock answers within so many seconds."""
        return self.ask_supervisor(timeout_s) is not None

    def ask_supervisor(self, timeout_s: float) -> bytes | None:
        """The counts of the supervisor that holds the lock, as JSON; None when it does not answer in time."""
        import socket
        import tempfile

        with (
            tempfile.TemporaryDirectory(prefix="fairlead-") as place,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking,
        ):
            asking.bind(os.path.join(place, "answer"))
            until = time.monotonic() + timeout_s
            while time.monotonic() < until:
                try:
                    asking.settimeout(max(LOOK_S, until - time.monotonic()))
                    asking.sendto(b"?", os.fspath(self.home.socket))
                    return asking.recv(MOST_ANSWER)
                except TimeoutError:
                    return None
                except OSError:  # it is just starting or just ending, and has no socket
                    time.sleep(LOOK_S)
        return None

    def nudge(self) -> None:
        """Wake the supervisor, or start one when there is work and none runs. Returns at once."""
        if not self.supervisor_alive():
            found = self._found_trouble()
            # One that meets a full disk waits for room; any other trouble it could only end on.
            if (found is None or isinstance(found, NoRoom)) and (self.store.has_work() or self.home.has_triggers):
                # Here and not above, as below: what only lists runs starts nothing and wakes nobody.
                from fairlead.cluster.local.supervision import start_supervisor

                start_supervisor(self.home)
            return
        import socket

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
            wake.setblocking(False)
            try:
                wake.sendto(b"", os.fspath(self.home.socket))
            except OSError:  # it is just starting or just ending, and looks at the database either way
                return

    def _found_trouble(self) -> ClusterError | None:
        now = time.monotonic()
        if self._tried_at is None or now - self._tried_at >= TRY_S:
            self._tried_at = now
            self._trouble = trouble(self.home)
        return self._trouble

    def _pod_dirs(self, uid: str) -> tuple[tuple[int, Path], ...]:
        return tuple((pod.attempt, self.home.pod(uid, pod.uid)) for pod in self.store.pods(uid))

    def _code(self) -> "CodeStore":
        # Here and not above: what only lists runs need not load it.
        from fairlead.cluster.local.code.keeping import CodeStore

        return CodeStore(self.home)

    def _keep_environment(self, uid: str, environ: Mapping[str, str] | None) -> None:
        try:
            self.home.run(uid).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.home.environment(uid), dict(os.environ if environ is None else environ))
        except OSError as error:
            raise explained(self.home.path, error) from error

    def _inherit_environment(self, uid: str, parent: str) -> None:
        """Keep for a child what is kept for its parent: the same file, since neither is ever written in place."""
        linked = self.home.environment(uid).with_suffix(".link")
        try:
            self.home.run(uid).mkdir(mode=0o700, parents=True, exist_ok=True)
            linked.unlink(missing_ok=True)
            os.link(self.home.environment(parent), linked)
            linked.replace(self.home.environment(uid))
            # Where both were one file already, that left both names.
            linked.unlink(missing_ok=True)
        except OSError:  # a file system without links, or that gives a file only so many
            environ = read_json(self.home.environment(parent))
            if environ is not None:  # otherwise whoever starts its pod says so: ours is another one
                self._keep_environment(uid, environ)

    def _remove_files(self, uid: str) -> None:
        """Remove what goes with a run before that is recorded: all its files; its checkpoints while it runs."""
        is_over = self.store.get(uid).status.phase.is_final and all(pod.phase.is_final for pod in self.store.pods(uid))
        own = self.home.run(uid)
        if is_over:
            self._code().settle(uid)
        shutil.rmtree(own if is_over else own / "checkpoints", ignore_errors=True)
