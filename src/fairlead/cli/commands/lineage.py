"""``fairlead lineage``: show the origin of an output of a pipeline."""

from collections.abc import Iterator

import click

from fairlead.cli.show import as_json, describe_time, json_option
from fairlead.control.opening import open_local
from fairlead.control.pipelines.artefacts import Artefacts
from fairlead.control.pipelines.lineage import Lineage, find, lineage_of
from fairlead.control.pipelines.submission import store_of
from fairlead.text.lists import listed

MOST_FILES = 5


@click.command()
@click.argument("artefact")
@json_option
def lineage(artefact: str, json_: bool) -> None:
    """Show the code, data and runs from which an output of a pipeline was created.

    ARTEFACT is RUN/STEP.OUTPUT, such as `churn/train.model`, the path of an output, or the beginning of its hash.
    """
    cluster = open_local()
    tree = lineage_of(cluster, find(cluster, artefact))
    if json_:
        print(as_json(tree.as_data()))
        return
    print("\n".join(_lines(tree, "", set())))
    print(f"{Artefacts(store_of(cluster.home)).path(tree.digest)}")


def _lines(artefact: Lineage, indent: str, shown_tasks: set[tuple[str, str, float]]) -> Iterator[str]:
    """Yield lines about an artefact and its origins, each task once."""
    origin = artefact.origin
    if origin is None:
        yield f"{indent}{artefact.name} {artefact.digest[:12]}: nothing is known of it"
        return
    made = f"{origin.task} of {origin.pipeline}, run {origin.result.run}, {describe_time(origin.result.at)}"
    is_told = (origin.task, origin.result.run, origin.result.at) in shown_tasks
    yield f"{indent}{artefact.name} {artefact.digest[:12]}: made by {made}{', as above' if is_told else ''}"
    if is_told:
        return
    shown_tasks.add((origin.task, origin.result.run, origin.result.at))
    command = origin.result.parts.get("command", "").strip().replace("\n", "; ")
    yield f"{indent}  command  {command}"
    if artefact.code:
        files = [f"{path} {digest[:8]}" for path, digest in artefact.code.items()]
        yield f"{indent}  code     {listed(files, MOST_FILES)}"
    for path, digest in artefact.inputs.items():
        yield f"{indent}  input    {path} {digest[:12]}"
    for source in artefact.read:
        yield from _lines(source, indent + "  ", shown_tasks)
