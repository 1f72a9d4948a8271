"""``fairlead run``: submit, then follow."""

import shlex
from dataclasses import replace
from pathlib import Path

import click

from fairlead.api import in_directory, read, submit
from fairlead.cli.follow import follow
from fairlead.cli.show import as_json, message, run_json
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.control.admission import IGNORABLE, check
from fairlead.specs.training import Training


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("files", nargs=-1, type=click.Path())
@click.option("--name", help="Name of the run instead of the file's.")
@click.option("--env", multiple=True, metavar="KEY=VALUE", help="A variable for the program; may be repeated.")
@click.option("--ignore", multiple=True, type=click.Choice(IGNORABLE), help="Run without honouring this field here.")
@click.option("-d", "--detach", is_flag=True, help="Submit and return.")
@click.option("--json", "json_", is_flag=True, help="Print the submitted runs as JSON; goes with --detach.")
def run(
    files: tuple[str, ...], name: str | None, env: tuple[str, ...], ignore: tuple[str, ...], detach: bool, json_: bool
) -> int:
    """Submit the runs of FILES and follow them; or a command: `fairlead run -- python train.py`."""
    if json_ and not detach:
        raise click.UsageError("--json prints what was submitted and goes with --detach.")
    specs = specs_of(files, name, env)
    cluster = LocalCluster.open()
    # All of them are admitted before any is submitted, so that a mistake in one leaves none half done.
    admitted = [check(spec, (cluster.node(),), ignore=frozenset(ignore)) for spec in specs]
    workloads = []
    for wanted in admitted:
        workload = submit(cluster, wanted.spec)
        workloads.append(workload)
        if not json_:
            renamed = "" if workload.spec.name == wanted.spec.name else f" (a finished run is {wanted.spec.name})"
            message(f"Submitted {workload.spec.name}{renamed}.")
    if json_:
        print(as_json([run_json(workload) for workload in workloads]))
    if detach:
        return 0
    return max(follow(cluster, workload.uid) for workload in workloads)


def specs_of(files: tuple[str, ...], name: str | None, env: tuple[str, ...]) -> list[Training]:
    """Every training run that the arguments name; files are those that end like a spec, anything else is a command."""
    if not files:
        raise click.UsageError("give a spec file, or a command after `--`.")
    if all(file.endswith((".yaml", ".yml", ".json")) for file in files):
        specs = [in_directory(spec, Path(file).parent) for file in files for spec in read(file)]
    else:
        from fairlead.specs.reading import name_from

        script = next((word for word in files[1:] if not word.startswith("-")), files[0])
        command = Training(name=name_from(Path(script).stem) or "run", run=shlex.join(files))
        specs = [in_directory(command, Path.cwd())]
    if name is not None:
        if len(specs) != 1:
            raise click.UsageError(f"--name names one run; these are {len(specs)}.")
        specs = [_renamed(specs[0], name)]
    return [replace(spec, env={**spec.env, **_variables(env)}) for spec in specs]


def _renamed(spec: Training, name: str) -> Training:
    try:
        return replace(spec, name=name)
    except ValueError as error:
        raise click.UsageError(f"--name: {error}") from error


def _variables(env: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for item in env:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise click.UsageError(f"--env {item!r}: give KEY=VALUE.")
        found[key] = value
    return found
