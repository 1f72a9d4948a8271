"""Measures the costs and savings of a sweep: `python -m benchmarks.tuning [starts | history | ray | asha]`.

starts: from the command to the first line of the first trial's program, in a state directory that nothing has run in
and no supervisor looks after; bar 0.5 s.
history: from the end of a trial to the start of the next one's program, with 1,000 trials in store; bar 50 ms. Beside
it Optuna's bookkeeping alone, with SQLite, where it can be installed in an environment of its own.
ray: both of Ray Tune, whose sampler is told 1,000 results, where it can be installed in an environment of its own.
All three say what a bare interpreter takes to start at that time, since others may use the machine.
asha: processor time of training until ASHA has the best loss of a random search whose trials run to their ends; bar a
quarter of what that takes. The trials train small models in this process, a step at a time, four at once; those that
keep checkpoints pause at a rung and go on later. Median of seeds; give OMP_NUM_THREADS=1. Their values are drawn at
random, so that pruning alone is measured, unless `--sampler` names another.
"""

import argparse
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks import peers
from benchmarks.bytecode import keep_compiled
from benchmarks.small_models import Letters, Model, Spirals
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.records import dump
from fairlead.policy.kinds.parents import submit
from fairlead.policy.kinds.record import Family
from fairlead.policy.kinds.sweep import SweepDetail, judge, trials_of
from fairlead.policy.search.pruning import has_early_rung, num_rungs, rung_steps, with_rungs
from fairlead.policy.search.sampling import suggest
from fairlead.policy.search.trials import TrialRecord
from fairlead.specs.formats.reading import parse
from fairlead.specs.sweep import Sampler, Sweep, map_runs, trial_run, values_of
from fairlead.state.plan import Change, Plan, child_uid
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Intent, Phase, Progress, Status, Workload
from fairlead.state.transitions import Child, transition
from tests.home import end_everything

DONE = Reason(code=Code.COMPLETED, message="done")
TRIALS_IN_STORE = 1_000
MORE_TRIALS = 12
RAY_TRIALS = 5
STEPS = 81
# How the trials of a search are stopped: the rule, whether they keep checkpoints, and whether they tell their length.
WAYS = {
    "stopped, tell no length": ("asha", False, None),
    "stopped, tell their length": ("asha", False, STEPS),
    "paused, tell no length": ("asha", True, None),
    "paused, tell their length": ("asha", True, STEPS),
    "paused at step 21 alone, one in eight": ("{after: 21, factor: 8}", True, STEPS),
    "paused from step 3 on, one in three": ("{after: 3, factor: 3}", True, STEPS),
}
RANDOM_TRIALS = 40
SEEDS = 20
PROGRAM = 'import sys, time\nprint("step=1 loss=1", flush=True)\nopen(sys.argv[1], "a").write(f"{time.time()}\\n")\n'
FILE = """
kind: Sweep
name: rates
parameters: {{{parameters}}}
objective: loss
trials: {trials}
parallel: {parallel}
sampler: {sampler}
{prune}
trial:
  run: {python} train.py {file}
  metrics: name=value
  resources: {{cpu: 0.1}}
  snapshot: false
"""


def main() -> None:
    """Measure what is chosen, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="starts, history, ray, asha; all when left out")
    parser.add_argument(
        "--sampler", choices=[each.value for each in Sampler], default="random", help="of asha's trials"
    )
    given = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {"starts": _starts, "history": _history, "ray": _ray}
    parts["asha"] = partial(_asha, given.sampler)
    chosen = given.parts or list(parts)
    if unknown := [name for name in chosen if name not in parts]:
        parser.error(f"{', '.join(unknown)}: give any of {', '.join(parts)}")
    keep_compiled()
    for name in chosen:
        parts[name]()


def _text(
    directory: Path, *, trials: int, parallel: int, sampler: str, prune: str = "", parameters: str = Spirals.PARAMETERS
) -> str:
    return FILE.format(
        trials=trials, parallel=parallel, sampler=sampler, prune=prune, parameters=parameters, python=sys.executable,
        file=directory / "times",
    )  # fmt: skip


def _read(text: str) -> Sweep:
    (spec,) = parse(text)
    assert isinstance(spec, Sweep)
    return spec


def _cpu_s(pid: int) -> float:
    """Processor seconds of a process, and of those that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def _bare_ms() -> tuple[float, float]:
    """How long a bare interpreter takes to start and end now, and its processor time; medians."""
    walls, cpus = [], []
    for _ in range(9):
        began, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls.append(1e3 * (time.monotonic() - began))
        cpus.append(1e3 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return statistics.median(walls), statistics.median(cpus)


def _starts() -> None:
    took_s, cpus_s, bare_ms = [], [], _bare_ms()
    for number in range(6):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            directory, home = Path(name), Path(name) / "home"
            (directory / "train.py").write_text(PROGRAM)
            (directory / "sweep.yaml").write_text(_text(directory, trials=1, parallel=1, sampler="tpe"))
            # The very first run of all makes the directory, before it starts the supervisor (decision 77).
            LocalCluster.open(home).close()
            environ = {**os.environ, "FAIRLEAD_HOME": str(home)}
            began = time.time()
            argv = [sys.executable, "-m", "fairlead.cli.start", "run", "-d", "sweep.yaml"]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(argv, cwd=directory, env=environ, check=True, capture_output=True)
            first = _times(directory, 1)[0]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            own_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            supervisor_s = _cpu_s(LocalCluster.open(home).supervisor_pid() or os.getpid())
            if number:  # the first one may have to compile
                took_s.append(first - began)
                cpus_s.append((own_s, supervisor_s))
            end_everything(home)
    own_s, supervisor_s = (statistics.median(each) for each in zip(*cpus_s, strict=True))
    print(
        f"first trial trains {statistics.median(took_s):.2f} s after the command (least {min(took_s):.2f}); processor: "
        f"{own_s:.2f} s the command, {supervisor_s:.2f} s the supervisor; bare interpreter {bare_ms[0]:.0f} ms, "
        f"{bare_ms[1]:.0f} ms of it processor"
    )


def _times(directory: Path, number: int) -> list[float]:
    """When programs began, once so many have."""
    path, deadline = directory / "times", time.monotonic() + 120
    while not path.exists() or len(path.read_text().splitlines()) < number:
        assert time.monotonic() < deadline, "trials do not start"
        time.sleep(0.01)
    return [float(line) for line in path.read_text().splitlines()]


def _history() -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory, home = Path(name), Path(name) / "home"
        (directory / "train.py").write_text(PROGRAM)
        cluster = LocalCluster.open(home)
        spec = _read(_text(directory, trials=TRIALS_IN_STORE + MORE_TRIALS, parallel=1, sampler="tpe"))
        own = cluster.prepare(spec.trial, directory).spec
        spec = map_runs(spec, lambda _: own)
        sweep = cluster.submit(spec)
        _fill(cluster, sweep)
        records = _records(cluster, sweep)
        began = time.thread_time()
        values = suggest(spec, TRIALS_IN_STORE, records)
        print(f"TPE's next values after {TRIALS_IN_STORE} trials: {(time.thread_time() - began) * 1e3:.0f} ms {values}")
        bare_ms = _bare_ms()
        cluster.nudge()
        _times(directory, 1)
        supervisor = cluster.supervisor_pid()
        assert supervisor is not None
        before_s = _cpu_s(supervisor)
        starts = _times(directory, MORE_TRIALS)
        each_ms = 1e3 * (_cpu_s(supervisor) - before_s) / (MORE_TRIALS - 1)
        trials = [cluster.get(child_uid(sweep.uid, str(TRIALS_IN_STORE + n))) for n in range(MORE_TRIALS - 1)]
        pods = [cluster.pods(trial.uid)[0] for trial in trials]
        gaps_ms = [
            1e3 * (start - max(exit_.at for exit_ in pod.exits)) for start, pod in zip(starts[1:], pods, strict=True)
        ]
        print(
            f"next trial after one ends, {TRIALS_IN_STORE} in store: {statistics.median(gaps_ms):.0f} ms "
            f"(least {min(gaps_ms):.0f}), its interpreter's start included; the supervisor's processor time for each "
            f"trial {each_ms:.0f} ms; bare interpreter {bare_ms[0]:.0f} ms, {bare_ms[1]:.0f} ms of it processor"
        )
        cluster.close()
        end_everything(home)
        place = directory / "optuna"
        place.mkdir()
        found = peers.run("optuna", "optuna_next.py", str(TRIALS_IN_STORE), place=place, env=dict(os.environ))
        if isinstance(found, str):
            print(found)
        else:
            wall_ms, cpu_ms = found[0].split()
            print(
                f"Optuna, telling a result and asking for the next values, {TRIALS_IN_STORE} in SQLite: {wall_ms} ms, "
                f"{cpu_ms} ms of it processor; no program is started in that"
            )


def _ray() -> None:
    bare_ms = _bare_ms()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        given = (repr(time.time()), str(TRIALS_IN_STORE), str(RAY_TRIALS))
        found = peers.run("ray-tune", "ray_tune.py", *given, place=Path(name), env=dict(os.environ))
    if isinstance(found, str):
        print(found)
        return
    first_s, next_ms = found[0].split()[-2:]
    print(
        f"Ray Tune with {TRIALS_IN_STORE} results known: first trial trains {first_s} s after the command, the next "
        f"{next_ms} ms after one ends; bare interpreter {bare_ms[0]:.0f} ms"
    )


def _records(cluster: LocalCluster, sweep: Workload[Sweep]) -> list[TrialRecord]:
    children = {child.spec.name.rpartition("-")[2]: child for child in cluster.children(sweep.uid)}
    return trials_of(sweep, Family(children=children))


def _fill(cluster: LocalCluster, sweep: Workload[Sweep]) -> None:
    """Put trials that succeeded into the store, as a sweep would have."""
    at = time.time()
    plain = replace(sweep.spec, sampler=Sampler.RANDOM)
    orders = tuple(
        submit(sweep, str(number), trial_run(plain, suggest(plain, number, []))) for number in range(TRIALS_IN_STORE)
    )
    detail = SweepDetail(submitted=TRIALS_IN_STORE, over=TRIALS_IN_STORE)
    status = Status(phase=Phase.RUNNING, reason=DONE, since=at, started_at=at, detail=detail)
    change = Change(workload_uid=sweep.uid, version=sweep.version, status=status, submit=orders)
    assert cluster.apply(Plan(changes=(change,))) == (True,)
    over = Status(phase=Phase.SUCCEEDED, reason=DONE, since=at, started_at=at, finished_at=at)
    ends = tuple(
        Change(workload_uid=child.uid, version=child.version, status=over, intent=Intent.STOP)
        for child in cluster.children(sweep.uid)
    )
    assert all(cluster.apply(Plan(changes=ends)))
    for number, child in enumerate(cluster.children(sweep.uid)):
        progress = Progress(step=1, loss=1.0 + math.sin(number), updated_at=at)
        cluster.store._db.execute("UPDATE workloads SET progress = ? WHERE uid = ?", (dump(progress), child.uid))


@dataclass(slots=True)
class _Search:
    """A sweep whose trials train in this process, a step each in turn."""

    spec: Sweep
    model: type[Spirals | Letters]
    seed: int
    total: int | None = None

    def run(self, target: float | None) -> tuple[float, float]:
        """The best loss and the processor seconds: to the end, or to a target."""
        sweep: Workload[Sweep] = Workload(
            uid="sweep", spec=self.spec, intent=Intent.RUN, version=1, created_at=0.0,
            status=Status(phase=Phase.PENDING, reason=DONE, since=0.0),
        )  # fmt: skip
        children: dict[str, Workload] = {}
        models: dict[str, Model] = {}
        rungs = self._rungs()
        best, spent_s, is_due = math.inf, 0.0, True
        while True:
            # Between rungs nothing is to be decided.
            change = judge(sweep, Family(children=children), 0.0) if is_due else None
            is_due = change is not None
            if change is not None:
                known = [Child(uid=child.uid, name=child.spec.name, intent=child.intent) for child in children.values()]
                effect = transition(sweep, change, 0.0, children=known)
                assert effect is not None
                assert effect.after is not None
                sweep = effect.after
                for order in effect.submitted:
                    run = replace(self.spec.trial, name=order.spec.name)
                    assert hasattr(order.spec, "env")
                    run = replace(run, env=order.spec.env)
                    status = Status(phase=Phase.RUNNING, reason=DONE, since=0.0)
                    children[order.name] = Workload(
                        uid=order.name, spec=run, intent=Intent.RUN, status=status, version=1, created_at=0.0
                    )
                    models[order.name] = self.model(values_of(run), self.seed)
                for wish in effect.requested:
                    if wish.intent is Intent.STOP:
                        self._set(children, wish.uid, Phase.STOPPED)
                    else:
                        self._set(children, wish.uid, Phase.RUNNING)
                if sweep.status.phase.is_final:
                    return best, spent_s
            for name, child in list(children.items()):
                if child.status.phase is not Phase.RUNNING:
                    continue
                step = 1 + (child.progress.step or 0 if child.progress is not None else 0)
                began = time.process_time()
                loss = models[name].step()
                spent_s += time.process_time() - began
                saved = step if self.spec.trial.checkpoint.is_periodic else None
                told = Progress(step=step, loss=loss, total_steps=self.total, checkpoint_step=saved)
                children[name] = replace(child, progress=told)
                is_due = is_due or step in rungs or step >= STEPS
                if step >= STEPS:
                    best = min(best, loss)
                    self._set(children, name, Phase.SUCCEEDED)
            if target is not None and best <= target:
                return best, spent_s

    def _rungs(self) -> set[int]:
        """The steps at which something is decided: rungs, and all on the way to an early one."""
        given = self.spec.pruning
        if given is None:
            return set()
        is_early = self.spec.has_pauses and has_early_rung(given, STEPS)
        prune = with_rungs(given, STEPS, is_early=is_early)
        assert prune is not None
        rungs = {rung_steps(prune, rung) for rung in range(num_rungs(prune, STEPS))}
        return rungs | set(range(1, rung_steps(prune, 0))) if is_early else rungs

    @staticmethod
    def _set(children: dict[str, Workload], name: str, phase: Phase) -> None:
        status, intent = Status(phase=phase, reason=DONE, since=0.0), Intent.STOP if phase.is_final else Intent.RUN
        children[name] = replace(children[name], status=status, intent=intent)


def _asha(sampler: str) -> None:
    for model in (Spirals, Letters):
        _asha_of(model, sampler)


def _asha_of(model: type[Spirals | Letters], sampler: str) -> None:
    shares: dict[str, list[float]] = {way: [] for way in WAYS}
    text = partial(_text, Path(), parallel=4, parameters=model.PARAMETERS)
    for seed in range(SEEDS):
        whole = replace(_read(text(trials=RANDOM_TRIALS, sampler="random")), seed=seed)
        best, whole_s = _Search(spec=whole, model=model, seed=seed).run(None)
        for way, (prune, saves, total) in WAYS.items():
            # As many trials as it takes, the first of them those of the random search.
            own = text(trials=8 * RANDOM_TRIALS, sampler=sampler, prune=f"prune: {prune}")
            spec = replace(_read(f"{own}  checkpoint: {{every: 1 steps}}" if saves else own), seed=seed)
            reached, took_s = _Search(spec=spec, model=model, seed=seed, total=total).run(best)
            shares[way].append(took_s / whole_s if reached <= best else math.inf)
    for way, found in shares.items():
        told = ", ".join(f"{share:.2f}" for share in sorted(found))
        print(
            f"{model.__name__.lower()}: asha, its values by {sampler}, comes to random search's best loss in "
            f"{statistics.median(found):.3f} of its core seconds, with {sum(map(math.isfinite, found))} seeds of "
            f"{SEEDS}; trials are {way} ({told})",
            flush=True,
        )


if __name__ == "__main__":
    main()
