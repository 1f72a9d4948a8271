"""``fairlead validate``: report every problem of every file."""

from typing import TYPE_CHECKING

import click

from fairlead.cli.show import as_json, message
from fairlead.cli.specfiles import files_type, load, refuse_twice
from fairlead.deferred import deferred
from fairlead.errors import InvalidSpec
from fairlead.specs import Spec
from fairlead.text.quantities import plural

if TYPE_CHECKING:
    from fairlead.specs.formats import rendering
else:
    rendering = deferred("fairlead.specs.formats.rendering")


@click.command()
@click.argument("files", nargs=-1, required=True, type=files_type)
@click.option("--show", is_flag=True, help="Print the specs in the Kubernetes form.")
@click.option("--json", "json_", is_flag=True, help="A JSON object: files, specs and problems.")
def validate(files: tuple[str, ...], show: bool, json_: bool) -> int:
    """Check FILES and report every problem; a FILE of `-` is standard input. Exit code 2 if there are problems."""
    if show and json_:
        raise click.UsageError("--json prints the specs as well: give one of them.")
    refuse_twice(files)
    problems: list[str] = []
    specs: list[Spec] = []
    for file in files:
        try:
            specs += load(file)
        except InvalidSpec as error:
            problems += error.problems
    if json_:
        print(as_json({"files": files, "specs": [rendering.render(spec) for spec in specs], "problems": problems}))
    else:
        if show:
            print("---\n".join(rendering.to_yaml(spec) for spec in specs), end="")
        for problem in problems:
            message(problem)
        if not problems:
            verb = "is" if len(specs) == 1 else "are"
            message(f"{plural(len(specs), 'spec')} in {plural(len(files), 'file')} {verb} valid.")
    return 2 if problems else 0
