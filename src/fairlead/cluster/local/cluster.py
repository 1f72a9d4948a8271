"""The local cluster behind the port, as the loop and the clients see it. Only the supervisor also runs an agent."""

import contextlib
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fairlead.cluster.client import CheckPrograms, OwnCheckpoints, Prepared
from fairlead.cluster.local.disk_errors import explained
from fairlead.cluster.local.home import LEFTOVERS, Home
from fairlead.cluster.local.last_good import InForce, in_force, is_news
from fairlead.cluster.local.logs import dropped_output, read_logs
from fairlead.cluster.local.policy_file import read_rules
from fairlead.cluster.local.room import release_reserve, write_problem
from fairlead.cluster.local.space import used_bytes
from fairlead.cluster.local.store import LocalStore
from fairlead.cluster.local.supervision import start_supervisor
from fairlead.cluster.local.team_file import read_teams
from fairlead.cluster.local.visible_gpus import VisibleGpus, refusal, value_of, visible
from fairlead.cluster.names import unknown
from fairlead.cluster.origins import is_run_name, refuse_empty
from fairlead.cluster.output import EVERYTHING, Dropped, LogQuery, Watermark
from fairlead.cluster.port import MOST_COMPLETED, EventRecord, LogLine, Spec
from fairlead.cluster.selection import RunSelection
from fairlead.deferred import deferred
from fairlead.errors import ClusterError, Conflict, InvalidSpec, NoRoom, NotAllowed, NotFound
from fairlead.ledger.goodput import goodput
from fairlead.ledger.usage import share_of
from fairlead.policy.kinds.table import leaf, runs_of
from fairlead.runtime import shell_limits
from fairlead.runtime.podfiles import is_locked, read_json, write_json
from fairlead.specs.constraints import PATH, quote
from fairlead.specs.model_reference import read_reference
from fairlead.specs.training import Training
from fairlead.specs.workload import Kind
from fairlead.state.access_keys import with_uses
from fairlead.state.plan import Change, Plan, child_uid
from fairlead.state.scheduling_policy import DEFAULT, SchedulingPolicy
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
    from fairlead.cluster import preflight, prometheus
    from fairlead.cluster.kept_code import KeptCode
    from fairlead.cluster.ledger_tables import CostGrouping, Payer, Price
    from fairlead.cluster.listing import Listing
    from fairlead.cluster.local import access_keys as key_file
    from fairlead.cluster.local import (
        dataset_files,
        debt_file,
        other_users,
        pod_spec,
        retention,
        secret_store,
        utilization_meter,
    )
    from fairlead.cluster.local import endpoints as local_endpoints
    from fairlead.cluster.local import machine as local_machine
    from fairlead.cluster.local import models as local_models
    from fairlead.cluster.local.code import keeping as code_keeping
    from fairlead.cluster.local.code.keeping import CodeStore
    from fairlead.cluster.local.other_users import OtherUsers
    from fairlead.cluster.local.packages import builds as package_builds
    from fairlead.cluster.local.packages import requests as package_requests
    from fairlead.cluster.local.packages.builds import EnvironmentBuilds
    from fairlead.cluster.local.utilization_meter import UtilizationMeter
    from fairlead.cluster.prometheus import PrometheusReader
    from fairlead.gateway import demand as gateway_demand
    from fairlead.ledger.bills import Statement
    from fairlead.ledger.goodput import Goodput
    from fairlead.ledger.usage import Holder
    from fairlead.policy.kinds import code_updates
    from fairlead.policy.kinds.retention import Retention
    from fairlead.policy.queue import budgets as budget_accounts
    from fairlead.policy.serving import routes as endpoint_routes
    from fairlead.runtime.checkpoint import manifest as checkpoint_manifest
    from fairlead.runtime.checkpoint import store as checkpoint_store
    from fairlead.specs import serving as serving_specs
    from fairlead.specs.dataset import Dataset
    from fairlead.specs.endpoint_engines import EndpointEngine
    from fairlead.specs.federation import Federation
    from fairlead.specs.serving import Serving
    from fairlead.specs.sweep_engines import SweepEngine
    from fairlead.specs.team import Team
    from fairlead.specs.workload import WorkloadSpec
    from fairlead.specs.workspace import Workspace
    from fairlead.state.access_keys import AccessKey
    from fairlead.state.demand import Demand
    from fairlead.state.measurements import Measurement
    from fairlead.state.models import ModelVersion
    from fairlead.state.plan import Change, Plan
    from fairlead.state.series import Point
    from fairlead.state.site_clients import ClientReport
    from fairlead.state.site_rollouts import SiteReport
else:
    key_file = deferred("fairlead.cluster.local.access_keys")
    code_keeping = deferred("fairlead.cluster.local.code.keeping")
    dataset_files = deferred("fairlead.cluster.local.dataset_files")
    secret_store = deferred("fairlead.cluster.local.secret_store")
    debt_file = deferred("fairlead.cluster.local.debt_file")
    local_endpoints = deferred("fairlead.cluster.local.endpoints")
    local_machine = deferred("fairlead.cluster.local.machine")
    local_models = deferred("fairlead.cluster.local.models")
    other_users = deferred("fairlead.cluster.local.other_users")
    package_builds = deferred("fairlead.cluster.local.packages.builds")
    package_requests = deferred("fairlead.cluster.local.packages.requests")
    pod_spec = deferred("fairlead.cluster.local.pod_spec")
    retention = deferred("fairlead.cluster.local.retention")
    utilization_meter = deferred("fairlead.cluster.local.utilization_meter")
    preflight = deferred("fairlead.cluster.preflight")
    prometheus = deferred("fairlead.cluster.prometheus")
    gateway_demand = deferred("fairlead.gateway.demand")
    code_updates = deferred("fairlead.policy.kinds.code_updates")
    budget_accounts = deferred("fairlead.policy.queue.budgets")
    endpoint_routes = deferred("fairlead.policy.serving.routes")
    checkpoint_manifest = deferred("fairlead.runtime.checkpoint.manifest")
    checkpoint_store = deferred("fairlead.runtime.checkpoint.store")
    serving_specs = deferred("fairlead.specs.serving")

# Interval at which a waiting process polls the database for changes; one poll costs microseconds.
LOOK_S = 0.02
# Interval of write tests of the state directory; a test writes a little and costs tens of microseconds.
TRY_S = 2.0
# How often a change by a command is tried while the supervisor changes the same run.
MOST_TRIES = 20
# Limit on the bytes of a supervisor's answer; its counts take a few thousand.
MOST_ANSWER = 65_536


class LocalCluster:
    """This machine as a cluster. An instance belongs to one thread.

    Args:
        is_loops: It belongs to the control loop, which takes two snapshots a second: they include what matters only to
            pending runs while there are any. Other callers get everything.
    """

    has_containers = False

    def __init__(self, home: Home, *, is_loops: bool = False) -> None:
        self.home = home
        self._is_loops = is_loops
        try:
            self.store = LocalStore(home)
        except NoRoom:
            # Reading and deleting need a little space, too.
            if not release_reserve(home):
                raise
            self.store = LocalStore(home)
        self._trouble: ClusterError | None = None
        self._tried_at: float | None = None
        self._prometheus: PrometheusReader | None = None
        self._node: Node | None = None
        self._other_users: OtherUsers | None = None
        self._unreadable: Mapping[str, str] = {}
        self._sites: Mapping[str, Mapping[str, SiteReport | ClientReport]] = {}
        self._teams_read: tuple[tuple[int, int], InForce[tuple[Team, ...]]] | None = None
        self._seen = self.store.change_counter()
        self._meter: UtilizationMeter | None = None
        self._builds: EnvironmentBuilds | None = None

    @classmethod
    def open(cls, path: Path | None = None) -> "LocalCluster":
        """Open the cluster whose state is in ``path``, FAIRLEAD_HOME or the user's state directory."""
        return cls(Home.open(path))

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()
        if self._builds is not None:
            self._builds.close()
        if self._other_users is not None:
            self._other_users.close()
        self.store.close()

    def observed(self, unreadable: Mapping[str, str]) -> None:
        """Take the runs that could not be observed, by uid: the next snapshot has them."""
        self._unreadable = unreadable

    def visited(self, sites: "Mapping[str, Mapping[str, SiteReport | ClientReport]]") -> None:
        """Take the reports of sites in other clusters, by uid and name: the next snapshot has them."""
        self._sites = sites

    def measure(self, num_live: int, now: float) -> None:
        """Measure how busy runs keep what they hold, if that is due; called by the loop only.

        Args:
            num_live: Number of live pods; there is nothing to measure before the first.
        """
        if self._meter is None:
            if num_live == 0:
                return

            self._meter = utilization_meter.UtilizationMeter(self.home, self.store)
        if self._meter.is_due(now):
            active, pods, _ = self.store.active()
            self._meter.measure(filter(is_leaf, active), pods, now)

    def _with_idleness(self, runs: tuple[Workload, ...]) -> tuple[Workload, ...]:
        """Return the runs with their measured idleness."""
        if self._meter is None:
            return runs
        measured = [(run, self._meter.idle_of(run), self._meter.gpu_active_at(run)) for run in runs]
        return tuple(
            run if idle is None and active_at is None else replace(run, idle=idle, gpu_active_at=active_at)
            for run, idle, active_at in measured
        )

    def _with_preparations(self, runs: tuple[Workload, ...]) -> tuple[Workload, ...]:
        """Return the runs with what their environments still need; the loop has these made."""
        if not self._is_loops or (self._builds is None and not any(run.spec.environment for run in runs)):
            return runs
        if self._builds is None:
            self._builds = package_builds.EnvironmentBuilds(self.home)
        return self._builds.prepared(runs)

    @property
    def machine(self) -> "LocalCluster":
        return self

    @property
    def published_costs(self) -> None:
        return None

    def another(self) -> "LocalCluster":
        return LocalCluster(self.home)

    def nodes(self) -> tuple[Node, ...]:
        return (self._priced_node(),)

    def cordon(self, node: str, reason: str) -> None:
        self._refuse_cordon(node)

    def uncordon(self, node: str) -> None:
        self._refuse_cordon(node)

    def _refuse_cordon(self, node: str) -> None:
        name = self.node().name
        if node != name:
            raise NotFound(f"There is no node {quote(node)}; this machine is the node {name}.")
        raise NotAllowed(
            f"{name} is the only node of this machine's cluster, so that without it nothing would run: "
            "`fairlead suspend --all` pauses its runs instead."
        )

    def node(self) -> Node:
        """Return this machine with the GPUs that are visible."""
        machine = self._machine()
        if not machine.gpus:
            return machine
        gpus = visible(machine.gpus, self._visible_gpus(os.environ)[0])
        return machine if gpus == machine.gpus else replace(machine, gpus=gpus)

    def _machine(self) -> Node:
        """Return this machine with all of its GPUs, cached, since its hardware does not change during a process."""
        if self._node is None:
            self._node = local_machine.node()
        return self._node

    def _visible_gpus(self, environ: Mapping[str, str]) -> tuple[str | None, Conflict | None]:
        """Return what is visible to a submission with an environment, and why it is refused if it needs GPUs."""
        known = VisibleGpus(self.home.visible_gpus).read()
        value = known if self._is_loops else value_of(environ, known)
        if value == known or not self._has_gpu_work():
            return value, None
        return known, refusal(value, known, self.home.path)

    def _has_gpu_work(self) -> bool:
        active, _, _ = self.store.active()
        return any(run.resources.gpu is not None for workload in active for run in runs_of(workload.spec))

    def _adopt_visible_gpus(self, spec: "WorkloadSpec", environ: Mapping[str, str] | None) -> None:
        """Have the runs of this directory use the GPUs of a submission's shell.

        Raises:
            Conflict: Other runs with GPUs use others.
        """
        if not self._machine().gpus or not any(run.resources.gpu is not None for run in runs_of(spec)):
            return
        value, conflict = self._visible_gpus(os.environ if environ is None else environ)
        if conflict is not None:
            raise conflict
        VisibleGpus(self.home.visible_gpus).write(value)

    def share_of(self, grant: Grant) -> int:
        """Return the share of this machine that a pod pays for."""
        return share_of(grant, self.node())

    def _priced_node(self) -> Node:
        """Return this machine with its current price; 0 if none is set, since it costs nothing more."""
        node = self.node()
        rate = self.store.rate_at(node.name, time.time())
        return node if rate is None else replace(node, price_per_hour=rate / 1_000_000)

    def snapshot(self) -> Snapshot:
        active, pods, ended = self.store.active()
        runs = self._with_preparations(self._with_idleness(tuple(filter(is_leaf, active))))
        parents = tuple(run for run in active if not is_leaf(run)) if len(runs) < len(active) else ()
        waits = any(run.status.phase in (Phase.PENDING, Phase.RESTARTING) for run in runs)
        teams = self.teams()
        node = self._priced_node()
        if node.gpus and (waits or not self._is_loops):
            self._other_users = self._other_users or other_users.OtherUsers()
            pods = (*pods, *self._other_users.held(node, pods))
        seen = Snapshot(
            nodes=(node,),
            workloads=runs,
            pods=pods,
            spending=self._spending(runs, teams),
            parents=parents,
            ended=ended,
            unreadable=self._unreadable,
        )
        if seen.spending is not None:
            seen = replace(seen, teams=teams)
        seen = replace(seen, demand=self._demand(seen), measurements=self._measurements(seen))
        seen = replace(seen, sites=self._reports(parents))
        # Completed runs, teams and rules matter only to pending runs, and to those that may share GPUs.
        if self._is_loops and not waits and not any(run.spec.resources.colocate for run in runs):
            return seen
        return replace(
            seen,
            teams=teams,
            completed=self.store.completed(MOST_COMPLETED),
            rules=self.rules(),
            node_health=self.store.node_histories(),
            debts={} if self._is_loops else self._debts(),
        )

    def _reports(
        self, parents: "tuple[AnyWorkload, ...]"
    ) -> "Mapping[str, Mapping[str, SiteReport | ClientReport | None]]":
        """Return the reports of sites in other clusters; None for those that were not visited yet."""
        sites: dict[str, list[str]] = {}
        for parent in parents:
            if parent.spec.kind == Kind.SERVING:
                sites[parent.uid] = list(cast("Serving", parent.spec).sites)
            elif parent.spec.kind == Kind.FEDERATION:
                sites[parent.uid] = cast("Federation", parent.spec).elsewhere
        return {uid: {**dict.fromkeys(names), **self._sites.get(uid, {})} for uid, names in sites.items() if names}

    def _debts(self) -> Mapping[str, float]:
        """Return the debts of teams as the supervisor wrote them last."""
        return debt_file.read_debts(self.home.debts).counted()

    def _demand(self, seen: Snapshot) -> "Mapping[str, Demand]":
        """Read the gateway's demand for existing endpoints, by uid."""
        if not seen.parents or not any(parent.spec.kind == Kind.SERVING for parent in seen.parents):
            return {}

        names = endpoint_routes.public_names(seen)
        demand = local_endpoints.demand_here(self.home, names.values())
        return {uid: demand[name] for uid, name in names.items() if name in demand}

    def _measurements(self, seen: Snapshot) -> "Mapping[str, Measurement]":
        """Return the answers to the queries by which endpoints scale; only the loop sends them."""
        if not self._is_loops or not any(parent.spec.kind == Kind.SERVING for parent in seen.parents):
            return {}
        if self._prometheus is None:
            self._prometheus = prometheus.PrometheusReader()
        return self._prometheus.look(seen, time.time())

    def teams(self) -> "tuple[Team, ...]":
        """Return the teams of the file, or of its last good version while it has a mistake."""
        return self._teams().value

    def datasets(self, team: str | None = None) -> "tuple[Dataset, ...]":
        """Return the data sets of a team and those that others share with it, or all."""
        stored = dataset_files.stored_datasets(self.home.datasets)
        return tuple(dataset for dataset in stored if team is None or dataset.is_for(team))

    def store_dataset(self, dataset: "Dataset", before: "Dataset | None") -> None:
        """Store a data set, in place of the one of its team and name."""
        dataset_files.store_dataset(self.home.datasets, dataset)

    def remove_dataset(self, dataset: "Dataset") -> None:
        """Remove a data set; its objects stay where they are."""
        dataset_files.remove_dataset(self.home.datasets, dataset)

    def _teams(self) -> "InForce[tuple[Team, ...]]":
        """Return the teams in force; the file is read again after a change."""
        try:
            status = self.home.teams.stat()
            version = status.st_mtime_ns, status.st_size
        except OSError:
            version = 0, -1
        if self._teams_read is None or self._teams_read[0] != version:
            teams: InForce[tuple[Team, ...]] = in_force(
                self.home,
                self.home.teams,
                read_teams,
                (),
                what="no team is described, as before there was the file",
                is_loop=self._is_loops,
            )
            self._teams_read = version, teams
        return self._teams_read[1]

    def file_problems(self) -> list[str]:
        """Return the mistakes in files that an administrator writes, each with what stays in force meanwhile."""
        # What the loop has read is good, and reading specs takes a command longer than all else.
        files: list[InForce[Any]] = []
        if is_news(self.home, self.home.teams):
            files.append(self._teams())
        if is_news(self.home, self.home.policy):
            files.append(self._rules())
        return [file.problem for file in files if file.problem is not None]

    def rules(self) -> SchedulingPolicy:
        """Return the policy of the file, or of its last good version while it has a mistake."""
        return self._rules().value

    def _rules(self) -> "InForce[SchedulingPolicy]":
        what = "the policy `default` holds"
        return in_force(self.home, self.home.policy, read_rules, DEFAULT, what=what, is_loop=self._is_loops)

    def _spending(self, workloads: tuple[Workload, ...], teams: "tuple[Team, ...]") -> Spending | None:
        """Return spending if a run or a budget has a limit; None without a limit or a price."""
        bounded = [run.uid for run in workloads if run.spec.max_cost is not None]
        has_budgets = any(team.has_budgets for team in teams)
        # A forecast may be for a run with a limit that is not submitted yet.
        if self._is_loops and not (bounded or has_budgets):
            return None
        now = time.time()
        if self.store.rate_at(self.node().name, now) is None:
            return None
        spent = self.store.spent_this_month(now) if has_budgets else Spending()
        return replace(spent, by_run={uid: self.store.cost_of(uid, now) or 0 for uid in bounded})

    def tell_budgets(self) -> None:
        """Notify the unfinished runs of each budget once a month when 50%, 80% and 100% of it is spent."""
        self._tell_budgets([team for team in self.teams() if team.has_budgets])

    def _tell_budgets(self, teams: "list[Team]") -> None:
        if not teams:
            return

        now = time.time()
        spent = self.store.spent_this_month(now)
        for account in budget_accounts.accounts_of(teams):
            notice = budget_accounts.reached_notice(account, spent)
            if notice is not None:
                self.store.tell_budget(account, *notice, now)

    def apply(self, plan: "Plan") -> tuple[bool, ...]:
        now = time.time()
        forgotten = False
        applied: dict[int, bool] = {}
        no_room: NoRoom | None = None
        # Forgotten workloads free space for the other changes.
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
        """Create the files of children before a change submits or resumes them; return the uids of new ones.

        They inherit the environment and the code that their parent was submitted or resumed with.
        """
        if not change.submit and not change.children:
            return ()
        parent, new = change.workload_uid, list[str]()
        specs = {child_uid(parent, order.name): order.spec for order in change.submit}
        resumed = {child.uid for child in change.children if child.intent is Intent.RUN}
        specs |= {
            run.uid: run.spec for run in self.store.workloads_by_uid(sorted(resumed)) if run.status.phase.is_final
        }
        for uid, spec in specs.items():
            if not self.store.has(uid):
                new.append(uid)
            elif uid not in resumed:
                continue
            self._inherit_environment(uid, parent)
            try:
                for run in runs_of(spec):
                    self._code().inherit(uid, parent, run, now)
                    if run.environment is not None:
                        package_requests.inherit_request(run, self.home, uid, parent)
            except OSError as error:
                raise explained(self.home.path, error) from error
        return tuple(new)

    def _remove_unknown(self, uid: str) -> None:
        """Remove the files of a child that was not submitted in the end."""
        if not self.store.has(uid):
            self._remove(uid)

    def _move_away(self, uid: str) -> None:
        """Mark the files of a workload for removal before it is forgotten, so that a crash in between leaves a mark."""
        # Files that cannot be moved do not keep it from being forgotten; they are removed in place.
        with suppress(OSError):
            self.home.run(uid).rename(self.home.leftovers(uid))

    def _remove(self, uid: str) -> None:
        self._code().forget(uid)
        for left in (self.home.leftovers(uid), self.home.run(uid)):
            shutil.rmtree(left, ignore_errors=True)

    def forget(self, workloads: Sequence[AnyWorkload]) -> tuple[bool, ...]:
        """Delete finished workloads that have not changed since."""
        over = [run for run in workloads if run.status.phase.is_final]
        changes = (Change(workload_uid=run.uid, version=run.version, forget=True) for run in over)
        done = dict(zip((run.uid for run in over), self.apply(Plan(changes=tuple(changes))), strict=True))
        return tuple(done.get(run.uid, False) for run in workloads)

    def sweep(self) -> None:
        """Remove the files of forgotten workloads whose removal was interrupted."""
        runs = self.home.runs
        for left in sorted(runs.glob(f"*{LEFTOVERS}")) if runs.exists() else ():
            uid = left.name.removesuffix(LEFTOVERS)
            if not self.store.has(uid):
                self._remove(uid)

    def space_of(self, workload: AnyWorkload) -> int | None:
        return used_bytes(self.home.run(workload.uid))

    def keeps(self) -> "Retention":
        return retention.read_keep(self.home.keep)

    def in_its_team(self, spec: Spec) -> Spec:
        """Return the spec unchanged: any team may be named here."""
        return spec

    def prepare(
        self, spec: Training, directory: Path | None, *, probing: CheckPrograms = CheckPrograms.ANY
    ) -> Prepared:
        """Return the spec with an absolute working directory, which is used in place.

        Raises:
            InvalidSpec: The directory does not exist, or the command cannot start in it.
        """
        needs_secrets = spec.secrets or any(source.credentials for source in spec.data.values())
        if needs_secrets and (problem := secret_store.secret_problem(self.home.secrets, spec)) is not None:
            raise InvalidSpec((f"{spec.name}: {problem}.",))
        base = Path.home() if directory is None else directory.absolute()
        if spec.kind == Kind.WORKSPACE:
            workspace = self._with_home(cast("Workspace", spec), base)
            is_at_home = workspace.workdir == workspace.home.path
            if is_at_home and not Path(workspace.home.path or "").exists():
                # Its first start makes it.
                spec = self._with_packages(workspace, base, probing)
                if (problem := preflight.command_problem(spec, Path.home(), os.environ, probing)) is not None:
                    raise InvalidSpec((f"{spec.name}: {problem}.",))
                return Prepared(spec=spec)
            spec = self._with_packages(workspace, base, probing) if is_at_home else workspace
        workdir = Path(os.path.normpath(base if spec.workdir is None else base / Path(spec.workdir).expanduser()))
        if (problem := preflight.workdir_problem(workdir)) is not None:
            raise InvalidSpec((f"{spec.name}: workdir: {problem}. Correct `workdir`, or make the directory first.",))
        if PATH.problem(str(workdir)) is not None:
            problem = f"the path {quote(str(workdir))} is not one line of UTF-8 text, as a spec needs"
            raise InvalidSpec((f"{spec.name}: workdir: {problem}. Rename the directory.",))
        spec = self._with_packages(spec, workdir, probing)
        if (problem := preflight.command_problem(spec, workdir, os.environ, probing)) is not None:
            raise InvalidSpec((f"{spec.name}: run: {problem}.",))
        if (problem := preflight.place_problem(spec, workdir, os.environ, probing)) is not None:
            raise InvalidSpec((f"{spec.name}: checkpoint.to: {problem}.",))
        spec = self._with_model(replace(spec, workdir=str(workdir)), base)
        problem = self._code().problem(spec)
        notes = () if problem is None else (f"snapshot: the code is not kept, and edits reach the run: {problem}",)
        return Prepared(spec=spec if directory is None else self._with_origin(spec, workdir), notes=notes)

    def _with_packages(self, spec: Training, directory: Path, probing: CheckPrograms) -> Training:
        """Return the spec with the file of its environment, and the hash of what that asks for.

        Args:
            directory: Directory of the file; of a workspace that opens its home, that of the spec.
        """
        environment = spec.environment
        if environment is None:
            return spec

        environment = package_requests.with_file(spec, directory).environment
        assert environment is not None
        if spec.kind == Kind.WORKSPACE and environment.file is not None:
            environment = replace(environment, file=str(directory / Path(environment.file).expanduser()))
        spec = replace(spec, environment=environment)
        if probing is CheckPrograms.ANY:
            request = package_requests.read_request(replace(spec, workdir=str(directory)), self.home, os.environ)
            spec = replace(spec, environment=replace(environment, digest=request["digest"]))
        return spec

    def _with_home(self, spec: "Workspace", base: Path) -> "Workspace":
        """Return a workspace with the path of its home, which it opens if it names no other directory."""
        for key, value in (("size", spec.home.size_bytes), ("class", spec.home.storage_class)):
            if value is not None:
                raise Conflict(
                    f"{spec.name}: home.{key}: it is of a claim on Kubernetes, and the home here is a directory. "
                    f"Remove `{key}`, or name a cluster with `--context`."
                )
        own = self.home.workspace(spec.team, spec.name)
        path = str(own) if spec.home.path is None else os.path.normpath(base / Path(spec.home.path).expanduser())
        return replace(spec, home=replace(spec.home, path=path), workdir=path if spec.workdir is None else spec.workdir)

    def _with_model(self, spec: Training, base: Path) -> Training:
        """Return the spec with the path of its model, if it is a replica with one."""
        if not getattr(spec, "model_path", ""):
            return spec

        assert isinstance(spec, serving_specs.Replica)
        if spec.signed_by is not None and "://" in spec.model_path:
            return spec  # its replica reads it
        try:
            return replace(spec, model_path=str(local_models.path_of(self, spec.model_path, spec.team, base)))
        except (NotFound, Conflict) as error:
            raise type(error)(f"{spec.service}: model: {error}") from error

    def _with_origin(self, spec: Training, workdir: Path) -> Training:
        """Return the spec with ``checkpoint.from`` resolved to a place, which must hold a checkpoint."""
        origin = spec.checkpoint.origin
        if origin is None:
            return spec

        if read_reference(origin) is not None:
            return replace(spec, checkpoint=replace(spec.checkpoint, origin=self._place_of_model(spec)))
        run = self.find(origin, spec.team) if is_run_name(origin) else None
        if run is not None:
            place = pod_spec.checkpoint_place(self.home, run)
        else:
            place = origin if "://" in origin else os.path.normpath(workdir / Path(origin).expanduser())
        refuse_empty(spec, place, run)
        return replace(spec, checkpoint=replace(spec.checkpoint, origin=place))

    def _place_of_model(self, spec: Training) -> str:
        origin = spec.checkpoint.origin or ""
        try:
            model = local_models.resolve(self, origin, spec.team)
        except (NotFound, Conflict) as error:
            raise type(error)(f"{spec.name}: checkpoint.from: {error}") from error
        if model.place is None:
            raise Conflict(
                f"{spec.name}: checkpoint.from: {model.description} is a {model.content.value}, not a checkpoint. "
                "Push a run's checkpoint, or read the model in the program."
            )
        return str(model.place)

    def models(self, name: str | None = None) -> "tuple[ModelVersion, ...]":
        """Return the versions of models pushed here, of one name or of all, by name and number."""
        return self.store.models(name)

    def add_model(self, version: "ModelVersion") -> "tuple[ModelVersion, bool]":
        """Store a new version, whose content already exists, or update the same one that is there."""
        return self.store.add_model(version)

    def remove_model(self, version: "ModelVersion") -> None:
        """Remove a version of a model; its content is removed together with unreferenced outputs.

        Raises:
            Conflict: The version has a stage.
        """
        self.store.remove_model(version.name, version.version)

    def promote_model(self, version: "ModelVersion", stage: str) -> "ModelVersion":
        """Give a version a stage, and take it from any other version of that name."""
        return self.store.promote_model(version.name, version.version, stage)

    def launch(
        self, spec: Spec, *, directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Workload[Spec]:
        workload = self._revised(spec, environ) or self.submit(spec, environ=environ)
        self.nudge()
        return workload

    def _revised(self, spec: Spec, environ: Mapping[str, str] | None) -> Workload[Spec] | None:
        """Replace the spec of an existing endpoint of that name; return None without one."""
        if spec.kind != Kind.SERVING:
            return None
        endpoint = self.store.named(spec.name, spec.team)
        if endpoint is None or endpoint.status.phase.is_final:
            return None
        revised = self.revised(endpoint, spec)
        if revised is None:
            return None
        # Also for the same code: files other than sources, such as a table, may have changed.
        new_spec = self._keep_code(endpoint.uid, spec)
        if endpoint.spec == revised:
            return endpoint
        self._keep_environment(endpoint.uid, environ)
        return self.store.revise(endpoint.uid, new_spec, time.time())

    def revised(self, workload: AnyWorkload, spec: Spec, *, directory: Path | None = None) -> Spec | None:
        """Return the spec that ``launch`` gives an existing endpoint; None for any other workload."""
        if spec.kind != Kind.SERVING or type(workload.spec) is not type(spec):
            return None
        serving = cast("Serving", spec)
        if serving.code and self._code().keeps(workload.uid, serving.code):
            return spec
        return cast("Spec", replace(serving, code=self._code().name_now(serving.replica())))

    def edited_code(
        self, workload: AnyWorkload, spec: "WorkloadSpec", directory: Path | None
    ) -> tuple[str, ...] | None:
        """Return the sources of an endpoint's code that differ from those in the directory of a spec."""
        before, serving = cast("Serving", workload.spec), cast("Serving", spec)
        return self._code().edited_sources(workload.uid, before.code, serving.replica())

    def endpoint_url(self, workload: AnyWorkload) -> str | None:
        """Return the URL of an endpoint; None before there is a gateway, and once the endpoint is over."""
        url = local_endpoints.gateway_url(self.home)
        name = endpoint_routes.public_names(self.snapshot()).get(workload.uid)
        return None if url is None or name is None else f"{url}/{name}/"

    def has_gateway(self) -> bool:
        """Return True: a gateway starts with the first endpoint."""
        return True

    def engine_problem(self, engine: "EndpointEngine | SweepEngine") -> str | None:
        """Return the reason that applies to all engines: they need Kubernetes."""
        return (
            f"{engine} is a controller of Kubernetes, and the local cluster has none. Remove `engine` to run it "
            "here, or name a cluster that has it with `--context`"
        )

    def access_keys(self) -> "tuple[AccessKey, ...]":
        """Return the access keys of all teams."""
        uses = gateway_demand.read_key_uses(self.home.serving / "demand.json")
        return with_uses(key_file.read_keys(self.home.access_keys), uses)

    def add_access_key(self, key: "AccessKey") -> None:
        """Add a key.

        Raises:
            Conflict: The team already has a key of that name.
        """
        key_file.add_key(self.home.access_keys, key)

    def remove_access_key(self, team: str, name: str) -> None:
        """Delete a key.

        Raises:
            NotFound: The team has no key of that name.
        """
        key_file.remove_key(self.home.access_keys, team, name)

    def change(self, workload: Workload[Spec], spec: Spec, *, directory: Path | None = None) -> Workload[Spec]:
        return self.update(workload.uid, spec, version=workload.version)

    def has_files_of(self, workload: Workload, directory: Path) -> bool:
        """Return True: the run uses the directory itself."""
        return True

    def submit(self, spec: Spec, *, environ: Mapping[str, str] | None = None) -> Workload[Spec]:
        """Store a new workload, Pending; ``environ`` is the environment its program inherits, by default ours.

        Raises:
            NameTaken: An unfinished workload of that team has the name.
            NotAllowed: Its team has as many workloads as it may have.
        """
        team = next((team for team in self.teams() if team.name == spec.team), None)
        # Eleven hex digits: unique among millions, and short enough to read aloud.
        uid = uuid.uuid4().hex[:11]
        self._adopt_visible_gpus(spec, environ)
        try:
            # Files first: a supervisor may start the run as soon as its row exists.
            self._keep_environment(uid, environ)
            self._keep_packages(uid, spec, environ)
            most = math.inf if team is None else team.max_objects
            return self.store.submit(uid, self._keep_code(uid, spec), time.time(), max_objects=most)
        except BaseException:
            shutil.rmtree(self.home.run(uid), ignore_errors=True)
            raise

    def _keep_code(self, uid: str, spec: Spec) -> Spec:
        """Store the current code of a spec, or the code that an endpoint names. Return the spec with it."""
        is_endpoint = spec.kind == Kind.SERVING
        if is_endpoint and (had := getattr(spec, "code", "")) and self._code().keep_again(uid, had):
            return spec

        # The runs of a pipeline mostly share one directory.
        runs = {(run.workdir, run.snapshot): run for run in runs_of(spec)}
        for run in runs.values():
            self._code().keep(uid, run, time.time())
        if not is_endpoint:
            return spec
        return cast("Spec", replace(cast("Serving", spec), code=self._code().newest(uid)))

    def code(self, uid: str) -> "KeptCode":
        """Return the stored code of a workload and the environment it ran with."""
        return self._code().shown(uid)

    def edited(self, uid: str) -> tuple[str, ...]:
        """Return the sources of a run that differ in its directory from the newest code that was kept for it."""
        return self._code().edited_sources(uid, self._code().newest(uid), self.store.get(uid).spec) or ()

    def restart_with_edits(self, uid: str, edited: tuple[str, ...]) -> bool:
        """Keep the current code of a run, and restart the run with it; return whether it restarts."""
        run = self.store.get(uid)
        if run.status.phase.is_final:
            if run.status.phase is not Phase.FAILED:
                return False
            self.set_intent(uid, Intent.RUN)
            return True
        self._code().keep(uid, run.spec, time.time())
        code = self._code().newest(uid)
        for _ in range(MOST_TRIES):  # the supervisor may change the run meanwhile
            run = self.store.get(uid)
            live = tuple(pod for pod in self.store.pods(uid) if not pod.phase.is_final)
            change = code_updates.restart(run, live, edited, code, time.time())
            if change is None:
                return False
            if all(self.apply(Plan(changes=(change,)))):
                return True
        return False

    def set_intent(self, uid: str, intent: Intent, *, environ: Mapping[str, str] | None = None) -> Workload[Any]:
        """Record the user's intent for a workload; a resumed one inherits the environment given now.

        A finished one also resumes with the current code.
        """
        run = self.store.get(uid)
        if intent is Intent.RUN and run.status.phase.is_final:
            self._adopt_visible_gpus(run.spec, environ)
            self._keep_environment(uid, environ)
            if is_leaf(run):  # results of a pipeline's steps depend on the packages of its submission
                self._keep_packages(uid, run.spec, environ)
            self._keep_code(uid, run.spec)
        if intent is not Intent.RUN and isinstance(self._found_trouble(), NoRoom):
            # A full disk must not prevent ending what fills it: neither the record of the intent nor what follows from
            # it.
            release_reserve(self.home)
            if intent is Intent.DELETE:
                self._remove_files(uid)
        return self.store.set_intent(uid, intent)

    def update(self, uid: str, spec: Spec, *, version: int) -> Workload[Spec]:
        def programs(spec: "WorkloadSpec") -> list[tuple[object, ...]]:
            return [(run.run, run.setup, run.workdir, run.snapshot) for run in runs_of(spec)]

        before = self.store.get(uid).spec
        if [run.environment for run in runs_of(before)] != [run.environment for run in runs_of(spec)]:
            self._keep_packages(uid, spec, None)
        updated = self.store.update(uid, spec, version, time.time())
        if programs(before) != programs(spec):
            self._keep_code(uid, spec)
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
        """Return all stored pods of a workload, those of earlier attempts included."""
        return self.store.pods(uid)

    def find(self, name: str, team: str | None = None) -> Workload[Any]:
        """Return the unfinished or else newest workload of a name; a uid, or its unique prefix, serves as well.

        Raises:
            NotFound: No workload has that name; the message lists similar names.
            Conflict: No team is given, and unfinished runs of several teams have the name.
        """
        same = [run for run in self.unfinished() if run.spec.name == name] if team is None else []
        if len(same) > 1:
            names = ", ".join(f"{run.spec.team}/{name}" for run in same)
            raise Conflict(f"{len(same)} unfinished runs are named {name!r}; say which one: {names}.")
        workload = self.store.named(name, team)
        if workload is None:
            raise unknown(name, self.store.names())
        return workload

    def get(self, uid: str) -> Workload[Any]:
        return self.store.get(uid)

    def unfinished(self, team: str | None = None) -> tuple[Workload[Any], ...]:
        active = self.store.active()[0]
        return tuple(run for run in active if team in (None, run.spec.team) and not run.status.phase.is_final)

    def select(self, selection: RunSelection, *, limit: int | None = None) -> tuple[Workload[Any], ...]:
        return self.store.select(selection, limit)

    def page(self, listing: "Listing") -> tuple[Workload[Any], ...]:
        """Return the workloads of a page, newest first."""
        return self.store.page(listing)

    def num_kept(self) -> int:
        """Count the stored workloads."""
        return self.store.num_kept()

    def num_unfinished(self) -> "Mapping[Phase, int]":
        """Count the unfinished workloads by phase."""
        return self.store.num_unfinished()

    def names(self) -> tuple[str, ...]:
        return self.store.names()

    def finished_names(self, team: str) -> frozenset[str]:
        """Return the finished names of all teams, which share this machine's names."""
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
        """Yield the output of all ranks and attempts by time; following ends once the workload is final and read."""

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
        # Compared with the counter of the last wait, so that changes while the caller observed and decided are not
        # missed.
        while (counter := self.store.change_counter()) == self._seen and time.monotonic() < end:
            time.sleep(min(LOOK_S, max(0.0, end - time.monotonic())))
        self._seen = counter

    def where(self, workload: AnyWorkload) -> str:
        """Return an empty text: there is one machine."""
        return ""

    def named(self, *workloads: AnyWorkload) -> str:
        return " ".join(workload.spec.name for workload in workloads)

    @property
    def account(self) -> str:
        return self.node().name

    def costs(self, by: "CostGrouping", *, since: float, until: float, daily: bool = False) -> "Statement[Payer]":
        """Return the bill of this machine within a window, divided among payers; for each day if ``daily``.

        Nothing is billed before the first run: a price from the past tells nothing about who used the machine by then.
        """
        now, first = time.time(), self.store.first_known()
        since = max(since, now if first is None else first)
        return self.store.cost(by, since=since, until=max(since, until), now=now, daily=daily)

    def holders(self) -> "dict[str, Holder]":
        """Return charged runs by uid, deleted ones included."""
        return self.store.holders()

    def busy_spans(self, *, since: float, until: float) -> list[tuple[str, int, int]]:
        """Return nodes with the beginning and end, in milliseconds, of what runs held of them within a window."""
        return self.store.busy_spans(since, until, time.time())

    def prices(self) -> "tuple[Price, ...]":
        """Return all prices ever set, by time."""
        return self.store.prices()

    def set_price(self, price: "Price") -> None:
        """Store the price of this machine from a time on.

        Raises:
            NotFound: The machine has another name.
        """
        if price.node != self.node().name:
            raise NotFound(f"There is no pool named {price.node!r} here; the only one is {self.node().name!r}.")
        self.store.set_price(price)

    def cost_of(self, workload: Workload) -> int | None:
        return self.store.cost_of(workload.uid, time.time())

    def goodput_of(self, workload: Workload) -> "Goodput":
        now = time.time()
        until = workload.status.finished_at
        held = self.store.held_by(workload.uid, now)
        return goodput(held, created_at=workload.created_at, until=now if until is None else until)

    def own_checkpoints(self, workload: Workload) -> OwnCheckpoints | None:
        if workload.spec.checkpoint.to is not None:
            return None
        place, steps, num_bytes = self.home.run(workload.uid) / "checkpoints", [], 0
        for directory, _, files in os.walk(place):
            match = checkpoint_store.STEP_NAME.fullmatch(os.path.basename(directory))
            if match is not None and checkpoint_manifest.MANIFEST in files:
                steps.append(int(match[1]))
            for file in files:
                with contextlib.suppress(OSError):  # a checkpoint that is just being replaced by a newer one
                    num_bytes += os.lstat(os.path.join(directory, file)).st_size
        return OwnCheckpoints(place=str(place), steps=tuple(sorted(steps)), num_bytes=num_bytes)

    def kept_at(self, workload: AnyWorkload) -> str:
        return str(self.home.run(workload.uid))

    def unattended(self) -> str | None:
        """Return a warning if the supervisor's process is stopped by a signal, or a file of the administrator has a
        mistake; clients start a supervisor where none runs."""
        warnings = self.file_problems()
        pid = self.supervisor_pid()
        if pid is not None and _is_stopped(pid):
            warnings.append(
                f"The supervisor, process {pid}, is stopped by a signal: ranks continue, but nothing starts, restarts "
                f"or is recorded. Continue it with `kill -CONT {pid}`."
            )
        return "\n".join(warnings) or None

    def trouble(self) -> str | None:
        """Return the reason why nothing can be recorded: the state directory is full or not writable; or None."""
        problem = self._found_trouble()
        return None if problem is None else str(problem)

    def supervisor_alive(self) -> bool:
        """Return whether a supervisor holds its lock."""
        return is_locked(self.home.lock)

    def supervisor_pid(self) -> int | None:
        """Return the process id of the supervisor; None when none runs."""
        if not self.supervisor_alive():
            return None
        text = self.home.lock.read_text()
        return int(text) if text.isdigit() else None

    def supervisor_answers(self, timeout_s: float) -> bool:
        """Return whether the supervisor that holds the lock answers within so many seconds."""
        return self.ask_supervisor(timeout_s) is not None

    def ask_supervisor(self, timeout_s: float) -> bytes | None:
        """Return the counts of the supervisor that holds the lock, as JSON; None when it does not answer in time."""
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
                except OSError:  # it is starting or ending, and has no socket
                    time.sleep(LOOK_S)
        return None

    def nudge(self) -> None:
        """Wake the supervisor, or start one when there is work and none runs. Returns at once."""
        if not self.supervisor_alive():
            problem = self._found_trouble()
            # A supervisor waits out a full disk; on any other trouble it could only exit.
            if (problem is None or isinstance(problem, NoRoom)) and (self.store.has_work() or self.home.has_triggers):
                start_supervisor(self.home)
            return
        import socket

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
            wake.setblocking(False)
            try:
                wake.sendto(b"", os.fspath(self.home.socket))
            except OSError:  # it is starting or ending, and reads the database either way
                return

    def _found_trouble(self) -> ClusterError | None:
        now = time.monotonic()
        if self._tried_at is None or now - self._tried_at >= TRY_S:
            self._tried_at = now
            self._trouble = write_problem(self.home)
        return self._trouble

    def _pod_dirs(self, uid: str) -> tuple[tuple[int, Path], ...]:
        return tuple((pod.attempt, self.home.pod(uid, pod.uid)) for pod in self.store.pods(uid))

    def _code(self) -> "CodeStore":
        return code_keeping.CodeStore(self.home)

    def _keep_environment(self, uid: str, environ: Mapping[str, str] | None) -> None:
        try:
            self.home.run(uid).mkdir(mode=0o700, parents=True, exist_ok=True)
            write_json(self.home.environment(uid), dict(shell_limits.environment() if environ is None else environ))
        except OSError as error:
            raise explained(self.home.path, error) from error

    def _keep_packages(self, uid: str, spec: Spec, environ: Mapping[str, str] | None) -> None:
        """Keep what the environments of a workload's runs ask for now."""
        runs = [run for run in runs_of(spec) if run.environment is not None]
        if not runs:
            return

        try:
            for run in runs:
                package_requests.keep_request(
                    run, self.home, uid, shell_limits.environment() if environ is None else environ
                )
        except OSError as error:
            raise explained(self.home.path, error) from error

    def _inherit_environment(self, uid: str, parent: str) -> None:
        """Link a child's environment to its parent's file, which is safe since neither is ever written in place."""
        linked = self.home.environment(uid).with_suffix(".link")
        try:
            self.home.run(uid).mkdir(mode=0o700, parents=True, exist_ok=True)
            linked.unlink(missing_ok=True)
            os.link(self.home.environment(parent), linked)
            linked.replace(self.home.environment(uid))
            # If both were one file already, the replacement left both names.
            linked.unlink(missing_ok=True)
        except OSError:  # a file system without links, or with too many links to the file
            environ = read_json(self.home.environment(parent))
            if environ is not None:  # otherwise the agent reports it; the environment of this process is another one
                self._keep_environment(uid, environ)

    def _remove_files(self, uid: str) -> None:
        """Remove a run's files before its deletion is recorded: all of them; only its checkpoints while it runs."""
        is_over = self.store.get(uid).status.phase.is_final and all(pod.phase.is_final for pod in self.store.pods(uid))
        own = self.home.run(uid)
        if is_over:
            self._code().forget(uid)
        shutil.rmtree(own if is_over else own / "checkpoints", ignore_errors=True)


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped by a signal or a debugger; see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
