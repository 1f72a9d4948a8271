"""The type of options that name a file for a plot."""

from pathlib import Path

import click


class SvgFile(click.ParamType[Path]):
    """A file whose name ends with ``.svg``: plots have no other format, and a file is what its name says."""

    name = "path"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(value))
        if path.suffix.lower() != ".svg":
            right = path.with_suffix(".svg") if path.name else "plot.svg"
            self.fail(f"'{path}' does not end with .svg, and plots are SVG; give `{right}`.", param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no directory '{path.parent}'; create it first.", param, ctx)
        return path
