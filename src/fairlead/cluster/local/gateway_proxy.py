"""Finds by which program requests get to replicas of this machine: a word in a file of the state directory."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError
from fairlead.runtime.podfiles import read_json
from fairlead.specs.constraints import quote

PYTHON, HAPROXY = "python", "haproxy"
PROXIES = (PYTHON, HAPROXY)


def chosen(home: Home) -> str:
    """Read what is chosen; the gateway's own door where nothing is.

    Raises:
        ClusterError: It is none of those that there are.
    """
    try:
        word = home.gateway_proxy.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return PYTHON
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"{home.gateway_proxy} cannot be read: {error}.") from error
    if word not in PROXIES:
        raise ClusterError(f"{home.gateway_proxy} says {quote(word)}; give one of {', '.join(PROXIES)}.")
    return word


def choose(home: Home, proxy: str) -> None:
    """Keep a choice; whoever looks after endpoints follows it.

    Raises:
        ClusterError: Its program is not here.
    """
    if proxy == HAPROXY:
        haproxy_program()
    draft = home.gateway_proxy.with_name(f".{home.gateway_proxy.name}.{os.getpid()}")
    draft.write_text(f"{proxy}\n", encoding="utf-8")
    draft.replace(home.gateway_proxy)


def haproxy_program() -> Path:
    """Find haproxy.

    Raises:
        ClusterError: It is not here, or cannot be used here.
    """
    if sys.platform != "linux":
        raise ClusterError("haproxy is used on Linux only; the gateway passes requests on by itself here.")
    # Debian has it where users do not look.
    found = shutil.which("haproxy", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise ClusterError(
            "haproxy is not installed: `apt-get install haproxy` brings it, from version 2.6 on; "
            "or `fairlead gateway --proxy python` does without."
        )
    return Path(found)


def told(home: Home) -> dict[str, Any] | None:
    """Read what the gateway says of haproxy: whether it works, and which endpoints it does not pass on. None without.

    That of a gateway that is gone says nothing.
    """
    found, demand = read_json(home.serving / "proxy.json"), read_json(home.serving / "demand.json")
    if found is None or demand is None or found.get("pid") != demand.get("pid"):
        return None
    return found
