"""The option for what ``kubernetes:`` of specs may do in an installation."""

import click

from fairlead.specs.overlay_allowance import OverlayAllowance, read_allowance


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
