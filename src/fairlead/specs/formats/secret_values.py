"""Hides values of environment variables where specs are shown; what is stored and sent is never changed.

Differences and events hide every value of ``env``, as they reach more people than the spec does. Elsewhere those are
hidden whose name or form is one of credentials.
"""

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "(hidden)"
ENV = "env"

_NAME = re.compile(
    r"token|secret|passw|passphrase|pwd|credential|api_?key|access_?key|private_?key|signing_?key|(^|_)key(_|$)|"
    r"(^|_)auth(_|$)|(^|_)dsn$|webhook|connection_string|(^|_)pat$",
    re.IGNORECASE,
)
_PASSWORD_IN_URL = re.compile(r"://[^/\s@]*:[^/\s@]+@")


def is_variable(key: str) -> bool:
    """Return whether a dotted key is one of a variable, such as ``env.HOME`` or ``trial.env.HOME``."""
    return ENV in key.split(".")[:-1]


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable of this name and value usually holds credentials."""
    return _NAME.search(name) is not None or _PASSWORD_IN_URL.search(value) is not None


def shown_value(key: str, value: str) -> str:
    """Return the value of a dotted key as it is shown."""
    return HIDDEN if is_variable(key) and looks_secret(key.rpartition(".")[2], value) else value


def conceal(rendered: Any, *, every: bool = False) -> Any:
    """Return a rendered spec, or a part of it, with values of variables hidden that look like credentials, or all."""
    if isinstance(rendered, Mapping):
        return {
            key: _variables(value, every) if key == ENV else conceal(value, every=every)
            for key, value in rendered.items()
        }
    if isinstance(rendered, list | tuple):
        return [conceal(item, every=every) for item in rendered]
    return rendered


def _variables(env: Any, every: bool) -> Any:
    if isinstance(env, Mapping):
        return {name: _value(name, value, every) for name, value in env.items()}
    if isinstance(env, list | tuple):  # of a container
        return [
            {**item, "value": _value(item.get("name"), item["value"], every)}
            if isinstance(item, Mapping) and "value" in item
            else item
            for item in env
        ]
    return env


def _value(name: Any, value: Any, every: bool) -> Any:
    return HIDDEN if every or looks_secret(str(name), str(value)) else value
