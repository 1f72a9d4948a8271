"""Makes the copy of a Flower app whose two components are wrapped; the app itself is never written to."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from fairlead.runtime.errors import Misuse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead.runtime.federation.settings import FederationSettings

WRAPPER = "fairlead_flower_app"
COMPONENTS = {"serverapp": "fairlead_server_app:server_app", "clientapp": "fairlead_client_app:client_app"}


def components_of(app: Path) -> dict[str, str]:
    """Return the references of an app's components, by name.

    Raises:
        Misuse: The directory has no ``pyproject.toml`` of a Flower app.
    """
    import tomllib

    path = app / "pyproject.toml"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        components = content["tool"]["flwr"]["app"]["components"]
        return {name: str(components[name]) for name in COMPONENTS}
    except FileNotFoundError as error:
        raise Misuse(f"app: {path} does not exist; give the directory of a Flower app, made by `flwr new`") from error
    except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise Misuse(
            f"app: {path} names no `serverapp` and `clientapp` under [tool.flwr.app.components], as Flower 1.42 reads "
            f"them ({type(error).__name__}: {error})"
        ) from error


def make_wrapped_copy(app: Path, copy: Path, settings: FederationSettings) -> None:
    """Copy an app, with its components wrapped by ``flower_app.py``.

    Raises:
        Misuse: It is no Flower app.
    """
    import tomllib

    inner = components_of(app)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(app, copy, ignore=shutil.ignore_patterns("__pycache__", ".git", ".venv", "*.fab"))
    text = (copy / "pyproject.toml").read_text(encoding="utf-8")
    for name, wrapper in COMPONENTS.items():
        text = re.sub(rf"(?m)^(\s*{name}\s*=\s*)(['\"]).*?\2", rf'\g<1>"{wrapper}"', text)
    if tomllib.loads(text)["tool"]["flwr"]["app"]["components"] != COMPONENTS | _others(app):
        raise Misuse(f'app: the components of {app / "pyproject.toml"} are not written as `serverapp = "module:app"`')
    (copy / "pyproject.toml").write_text(text, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name("flower_app.py"), copy / f"{WRAPPER}.py")
    content = {"sites": settings.sites, "rounds": settings.rounds, "min_sites": settings.min_sites,
            "deadline_s": settings.deadline_s, "sample": settings.sample,
            "aggregate": settings.aggregate, "privacy": settings.privacy}  # fmt: skip
    head = f"import json\n\nfrom {WRAPPER} import load_component, wrap_client, wrap_server\n\n"
    (copy / "fairlead_server_app.py").write_text(
        f"{head}server_app = wrap_server(load_component({inner['serverapp']!r}), json.loads({json.dumps(content)!r}))\n"
    )
    (copy / "fairlead_client_app.py").write_text(
        f"{head}client_app = wrap_client(load_component({inner['clientapp']!r}))\n"
    )


def _others(app: Path) -> dict[str, str]:
    import tomllib

    components = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"][
        "components"
    ]
    return {name: value for name, value in components.items() if name not in COMPONENTS}
