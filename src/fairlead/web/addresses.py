"""Routes addresses of the page to views."""

import re
from collections.abc import Callable
from urllib.parse import parse_qsl, urlsplit

from fairlead.web.view import Answer, BadQuery, Missing, Question
from fairlead.web.views.cluster import cluster
from fairlead.web.views.cost import cost
from fairlead.web.views.fleets import fleets
from fairlead.web.views.queue import queue
from fairlead.web.views.runs import runs
from fairlead.web.views.simulations import simulation, simulations
from fairlead.web.views.teams import teams
from fairlead.web.views.workload import workload


def _simulations(question: Question) -> Answer:
    return simulations(question)


def _simulation(question: Question, name: str) -> Answer:
    return simulation(question, name)


VIEWS: dict[str, Callable[[Question], Answer]] = {
    "/": runs,
    "/queue": queue,
    "/cluster": cluster,
    "/fleets": fleets,
    "/teams": teams,
    "/cost": cost,
    "/simulations": _simulations,
}
"""Views by address, in the order of the menu."""

MENU = (
    ("/", "Runs", "r"),
    ("/queue", "Queue", "q"),
    ("/cluster", "Cluster", "c"),
    ("/fleets", "Fleets", "f"),
    ("/teams", "Teams", "t"),
    ("/cost", "Cost", "m"),
    ("/simulations", "Simulations", "s"),
)
"""Address, name and the key that goes there after ``g``."""

MOST_ADDRESS = 2_000
_RUN = re.compile(r"/runs/([0-9a-zA-Z][0-9a-zA-Z.-]{0,200})")
_SIMULATION = re.compile(r"/simulations/([0-9a-f-]{1,40})")


def split(address: str) -> tuple[str, dict[str, str]]:
    """Split an address into path and query.

    Raises:
        BadRequest: It is not an address of this page.
    """
    if len(address) > MOST_ADDRESS:
        raise BadQuery(f"The address has {len(address)} characters; at most {MOST_ADDRESS} are read.")
    try:
        parts = urlsplit(address)
        query = dict(parse_qsl(parts.query, max_num_fields=20))
    except ValueError:
        raise BadQuery("The address cannot be read.") from None
    if parts.scheme or parts.netloc:
        raise BadQuery("The address is one of another page.")
    return parts.path, query


def answer(path: str, question: Question) -> Answer:
    """Return the content of the view at an address.

    Raises:
        BadRequest: The query has a value that does not exist.
        Missing: No view is at the path.
    """
    view = VIEWS.get(path)
    if view is not None:
        return view(question)
    if match := _RUN.fullmatch(path):
        return workload(question, match[1])
    if match := _SIMULATION.fullmatch(path):
        return _simulation(question, match[1])
    raise Missing("There is no such page. The menu above has all of them.")
