"""Reads and stores the choice of the proxy between the gateway and the replicas of this machine."""

import os
import sys
from pathlib import Path
from typing import Any

from fairlead.cluster.local.home import Home
from fairlead.errors import ClusterError
from fairlead.gateway.proxying.programs import HAPROXY, PROXIES, PYTHON, find_haproxy
from fairlead.runtime.podfiles import read_json
from fairlead.specs.constraints import quote


def chosen(home: Home) -> str:
    """Return the chosen proxy; the gateway itself by default.

    Raises:
        ClusterError: The file names an unknown proxy, or cannot be read.
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
    """Store the choice of a proxy; the supervisor applies it.

    Raises:
        ClusterError: The program of the proxy is not installed.
    """
    if proxy == HAPROXY:
        haproxy_program()
    draft = home.gateway_proxy.with_name(f".{home.gateway_proxy.name}.{os.getpid()}")
    draft.write_text(f"{proxy}\n", encoding="utf-8")
    draft.replace(home.gateway_proxy)


def haproxy_program() -> Path:
    """Return the path of haproxy.

    Raises:
        ClusterError: It is not installed, or not supported on this system.
    """
    if sys.platform != "linux":
        raise ClusterError("haproxy is used on Linux only; the gateway passes requests on by itself here.")
    program = find_haproxy()
    if program is None:
        raise ClusterError(
            "haproxy is not installed: `apt-get install haproxy` brings it, from version 2.6 on; "
            "or `fairlead gateway --proxy python` does without."
        )
    return program


def read_report(home: Home) -> dict[str, Any] | None:
    """Return the gateway's report on haproxy: its health and the endpoints it does not serve; None without a report.

    A report of a gateway that no longer runs is ignored.
    """
    report, demand = read_json(home.serving / "proxy.json"), read_json(home.serving / "demand.json")
    if report is None or demand is None or report.get("pid") != demand.get("pid"):
        return None
    return report
