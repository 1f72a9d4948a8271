"""Refuses a federation that cannot work, and chooses what is left to it, before any of its runs is submitted.

See decision 237.
"""

import ast
import os
import shutil
from pathlib import Path

from fairlead.errors import Conflict
from fairlead.policy.kinds.federated_rounds import resolved
from fairlead.policy.kinds.privacy import epsilon_spent, noise_plan
from fairlead.runtime.errors import Misuse
from fairlead.runtime.federation.flower_app import TRAINING
from fairlead.runtime.federation.wrapped_copy import components_of
from fairlead.specs.aggregation import STRATEGY_CLASSES
from fairlead.specs.federation import Federation

PROGRAMS = ("flwr", "flower-superlink", "flower-supernode")
STRATEGIES = "flwr.serverapp"
LONGEST_FILE = 1 << 20


def admit_federation(
    spec: Federation, directory: Path | None, *, has_containers: bool
) -> tuple[Federation, tuple[str, ...]]:
    """Return a federation with what ``auto`` chooses, and notes on that.

    Args:
        directory: Directory of the spec file, the base of a relative ``workdir``.

    Raises:
        Conflict: It cannot work; the message says why, and what to do.
    """
    _refuse(spec, directory, has_containers=has_containers)
    return resolved(spec)


def _refuse(spec: Federation, directory: Path | None, *, has_containers: bool) -> None:
    """Refuse a federation on a cluster with containers, without its app, or without Flower."""
    if has_containers:
        raise Conflict(
            f"{spec.name}: a Federation runs on one machine so far, with its sites as processes there, not on several "
            "clusters. Give `--cluster local`."
        )
    if spec.app is None:
        return
    plan = noise_plan(spec)
    if plan is not None and spec.privacy is not None and plan.rounds == 0:
        spent = epsilon_spent(1, spec.privacy.delta, plan.noise, plan.probability)
        raise Conflict(
            f"{spec.name}: privacy: one round with noise {plan.noise:.4g} spends epsilon {spent:.4g} of "
            f"{spec.privacy.epsilon:g}. Leave `noise` out, or raise `epsilon`."
        )
    app = Path(directory or Path.cwd(), spec.workdir or "", spec.app).expanduser()
    if not app.is_dir():
        raise Conflict(f"{spec.name}: app: {app} is no directory; give that of a Flower app, as `flwr new` makes it.")
    try:
        components = components_of(app)
    except Misuse as error:
        raise Conflict(f"{spec.name}: {error}.") from error
    problem = _server_problem(app, components["serverapp"])
    if problem is None and spec.aggregate is not None:
        problem = _strategy_problem(app, TRAINING, spec.aggregate.strategy_class, "aggregate")
    if problem is None and spec.privacy is not None:
        problem = _strategy_problem(app, ("aggregate_train",), "the accountant of its noise", "privacy")
    if problem is not None:
        raise Conflict(f"{spec.name}: app: {problem}.")
    path = spec.env.get("PATH", os.environ.get("PATH"))
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        raise Conflict(
            f"{spec.name}: app: {missing[0]} is not on PATH, so Flower is not installed where the app would run. "
            "`pip install 'flwr>=1.42'` in the environment of the app and activate it, or "
            "`pip install 'fairlead[federated]'`."
        )


def _server_problem(app: Path, reference: str) -> str | None:
    """Return why the rounds of an app could not be set and seen; None if its server uses the strategies of Flower."""
    module = reference.partition(":")[0]
    file = app / f"{module.replace('.', '/')}.py"
    if not file.exists():
        return f"`serverapp` is {reference}, and there is no {file}; correct [tool.flwr.app.components]"
    if any(STRATEGIES in source for source in _sources(app)):
        return None
    return (
        f"nothing in {app} imports {STRATEGIES}, whose `Strategy.start` is where rounds, sites and deadlines are set; "
        "apps of Flower before 1.21, with `server_fn`, have to move to it, or be run by `server` and `client`"
    )


def _strategy_problem(app: Path, methods: tuple[str, ...], other: str, key: str) -> str | None:
    """Return why an app trains in another way than a key wants; None if it makes a strategy of Flower's own too.

    The wrapper refuses the same when it sees the strategy itself; an app may make one that is not written as a class.
    """
    own: dict[str, list[str]] = {}
    called = set()
    for source in _sources(app):
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return None  # Python says so, with the line, when the app runs
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
                own[node.name] = [name for name in defined if name in methods]
            elif isinstance(node, ast.Call):
                called.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    changed = sorted(name for name in called if own.get(name))
    if not changed or called & STRATEGY_CLASSES:
        return None
    return (
        f"its strategy {changed[0]} has its own {' and '.join(own[changed[0]])}, which {other} would not do; leave "
        f"`{key}` out"
    )


def _sources(app: Path) -> list[str]:
    paths = [path for path in sorted(app.rglob("*.py")) if path.stat().st_size <= LONGEST_FILE]
    return [path.read_text(encoding="utf-8", errors="replace") for path in paths]
