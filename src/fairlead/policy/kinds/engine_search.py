"""Takes the values that an engine proposes for the trials of a sweep, and reports why it proposes none."""

import math
from collections.abc import Collection, Mapping

from fairlead.specs.search_space import Parameter, Value, parse_value
from fairlead.specs.sweep import Sweep
from fairlead.specs.sweep_engines import TITLES
from fairlead.state.engine_searches import EngineSearch, Proposal
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Phase


def new_proposals(search: EngineSearch | None, known: Collection[str], room: int) -> tuple[Proposal, ...]:
    """Return the proposals that no trial was submitted for, oldest first and at most ``room`` of them."""
    if search is None:
        return ()
    seen = set(known)
    return tuple(proposal for proposal in search.proposals if proposal.name not in seen)[: max(0, room)]


def read_values(space: tuple[Parameter, ...], values: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of a proposal as the parameters have them."""
    return {
        parameter.name: _read_value(parameter, values[parameter.name])
        for parameter in space
        if parameter.name in values
    }


def _read_value(parameter: Parameter, text: str) -> Value:
    if parameter.choices:
        return next((value for value in parameter.choices if parameter.text_of(value) == text), parse_value(text))
    try:
        number = float(text)
    except ValueError:
        return text
    # Some algorithms write whole numbers with a point.
    return int(number) if parameter.is_whole and math.isfinite(number) else number


def search_end(spec: Sweep, search: EngineSearch | None, num_active: int, done: str) -> tuple[Phase, Reason] | None:
    """Return how a sweep ends because its engine proposes no more; None while it may, or while trials run.

    Args:
        done: How many trials are over, as a clause.
    """
    if spec.engine is None or search is None or not search.is_over or search.proposals or num_active:
        return None
    title = TITLES[spec.engine]
    if search.has_failed:
        message = f"{title} gave the search up: {search.message}; {done}"
        shown = f"`kubectl describe experiments,suggestions -n {spec.team}` shows more"
        remedy = f"{shown}; `fairlead resume {spec.name}` tries again."
        return Phase.FAILED, Reason(code=Code.START_FAILED, message=message, remedy=remedy)
    return Phase.SUCCEEDED, Reason(code=Code.COMPLETED, message=f"{title} proposes no more: {search.message}; {done}")


def say_search(spec: Sweep, search: EngineSearch | None, num_active: int) -> str:
    """Say what a sweep waits for at its engine, as a clause that follows another; empty where trials run."""
    if spec.engine is None or num_active:
        return ""
    why = f": {search.message}" if search is not None and search.message else ""
    return f"; waits for values that {TITLES[spec.engine]} proposes{why}"
