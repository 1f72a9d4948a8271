"""Options for the retention of finished runs."""

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import click

from fairlead.policy.kinds.retention import KEEP_ALL, Retention
from fairlead.specs.constraints import BrokenRules
from fairlead.specs.quantities import parse_duration

Command = TypeVar("Command", bound=Callable[..., Any])
FOREVER = "forever"


class Duration(click.ParamType[float]):
    """A retention period in the format of spec files, as seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if value == FOREVER:
            return math.inf
        try:
            return Retention(for_s=parse_duration(str(value))).for_s or 0.0
        except BrokenRules:
            self.fail(f"{value!r} is out of bounds: give 0s to 3650d, such as 30d.", param, ctx)
        except ValueError as error:
            self.fail(f"{value!r} {error}; such as 30d.", param, ctx)


def keep_options(last: str, default: Retention = KEEP_ALL) -> Callable[[Command], Command]:
    """Add ``--keep`` and an option for a count; the function gets ``keeps: Retention``.

    Args:
        last: Name of the option for the count.
        default: The retention without either option.
    """

    def add(command: Command) -> Command:
        @wraps(command)
        def with_keeps(keep: float | None, last: int | None, **parameters: Any) -> Any:
            return command(keeps=_retention(keep, last, default), **parameters)

        decorated: Any = with_keeps
        decorated = click.option(
            last,
            "last",
            type=click.IntRange(min=0, max=1_000_000),
            help="Number of the newest runs to keep for each name in a team.",
        )(decorated)
        decorated = click.option(
            "--keep",
            type=Duration(),
            metavar="DURATION",
            help=f"Keep runs that ended less than this ago, as in 30d; `{FOREVER}` keeps all.",
        )(decorated)
        result: Command = decorated
        return result

    return add


def _retention(keep: float | None, last: int | None, default: Retention) -> Retention:
    if keep is None and last is None:
        return default
    if keep == math.inf:
        if last is not None:
            raise click.UsageError(f"`--keep {FOREVER}` keeps all runs: leave out the number of those to keep.")
        return KEEP_ALL
    return Retention(for_s=keep, last=last)
