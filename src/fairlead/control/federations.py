"""Refuses a federation that cannot work, before any of its runs is submitted.

See decision 237.
"""

import os
import shutil
from pathlib import Path

from fairlead.errors import Conflict
from fairlead.runtime.errors import Misuse
from fairlead.runtime.federation.wrapped_copy import components_of
from fairlead.specs.federation import Federation

PROGRAMS = ("flwr", "flower-superlink", "flower-supernode")
STRATEGIES = "flwr.serverapp"
LONGEST_FILE = 1 << 20


def refuse_federation(spec: Federation, directory: Path | None, *, has_containers: bool) -> None:
    """Refuse a federation on a cluster with containers, without its app, or without Flower.

    Args:
        directory: Directory of the spec file, the base of a relative ``workdir``.

    Raises:
        Conflict: It cannot work; the message says why, and what to do.
    """
    if has_containers:
        raise Conflict(
            f"{spec.name}: a Federation runs on one machine so far, with its sites as processes there, not on several "
            "clusters. Give `--cluster local`."
        )
    if spec.app is None:
        return
    app = Path(directory or Path.cwd(), spec.workdir or "", spec.app).expanduser()
    if not app.is_dir():
        raise Conflict(f"{spec.name}: app: {app} is no directory; give that of a Flower app, as `flwr new` makes it.")
    try:
        components = components_of(app)
    except Misuse as error:
        raise Conflict(f"{spec.name}: {error}.") from error
    if (problem := _server_problem(app, components["serverapp"])) is not None:
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
    sources = [path for path in app.rglob("*.py") if path.stat().st_size <= LONGEST_FILE]
    if any(STRATEGIES in path.read_text(encoding="utf-8", errors="replace") for path in sources):
        return None
    return (
        f"nothing in {app} imports {STRATEGIES}, whose `Strategy.start` is where rounds, sites and deadlines are set; "
        "apps of Flower before 1.21, with `server_fn`, have to move to it, or be run by `server` and `client`"
    )
