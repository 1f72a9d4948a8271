"""Options that an installation and its operator share."""

import click

from fairlead.specs.overlay_allowance import OverlayAllowance, read_allowance
from fairlead.state.scheduling_policy import POLICIES


def _read(_context: click.Context, _parameter: click.Parameter, words: tuple[str, ...]) -> OverlayAllowance:
    try:
        return read_allowance(words)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


allow_option = click.option(
    "--allow-overlay",
    "allowed",
    multiple=True,
    callback=_read,
    metavar="WHAT",
    help="Let `kubernetes:` of specs have this: root, capability=NAME or priority-class=NAME; can be repeated.",
)
policy_option = click.option(
    "--policy",
    type=click.Choice(tuple(POLICIES)),
    default="default",
    show_default=True,
    help="Scheduling policy for pending runs; `fairlead simulate` compares them.",
)
show_names_option = click.option(
    "--show-names", is_flag=True, help="Let reasons name runs of other teams, as TEAM/NAME, to members of a team."
)
