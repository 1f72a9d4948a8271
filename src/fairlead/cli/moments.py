"""The parameter type of points in time."""

import time

import click

from fairlead.cluster.output import parse_moment


class Moment(click.ParamType[float]):
    """A point in time, as a Unix time."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return parse_moment(str(value), time.time())
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
