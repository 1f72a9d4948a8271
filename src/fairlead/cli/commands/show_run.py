"""``fairlead show``: the spec, code and software of a run, and differences between two runs."""

import json
from pathlib import Path
from typing import Any

import click

from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, describe_time, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.kept_code import KeptCode, file_differences, package_differences
from fairlead.cluster.written_code import write_code
from fairlead.control.pipelines.submission import shown_spec
from fairlead.errors import Conflict
from fairlead.specs.formats.rendering import render, render_short, to_yaml
from fairlead.specs.formats.secret_values import conceal
from fairlead.specs.workload import WorkloadSpec
from fairlead.text.lists import listed
from fairlead.text.quantities import describe_memory, plural

MOST_NAMED = 5


@click.command()
@click.argument("name", type=RunName())
@click.option("--code", "code_", is_flag=True, help="Also list every stored file and the differences from the commit.")
@click.option("--diff", "other", type=RunName(), metavar="OTHER", help="Show how OTHER differs from NAME.")
@click.option(
    "--export", type=click.Path(path_type=Path), metavar="DIR", help="Write the stored files into a new directory DIR."
)
@click.option("--environment", is_flag=True, help="Show the lock of its `environment`, which is a pylock.toml.")
@json_option
@cluster_options
def show(
    target: Target, name: str, code_: bool, other: str | None, export: Path | None, environment: bool, json_: bool
) -> None:
    """Show the spec of NAME, and the recorded code and packages that it ran with."""
    if other is not None and (code_ or export is not None):
        raise click.UsageError("--diff shows two runs, --code and --export one: give one of them.")
    cluster = target.open()
    run = find(cluster, name)
    code, spec = cluster.code(run.uid), shown_spec(run.spec)
    if other is not None:
        second = find(cluster, other)
        differences = _differences((spec, code), (shown_spec(second.spec), cluster.code(second.uid)))
        print(as_json(differences) if json_ else _say_differences(differences, run.spec.name, second.spec.name))
        return
    if environment:
        if code.lock is None:
            raise Conflict(f"{run.spec.name} has no lock: it has no `environment`, or that is not complete yet.")
        print(as_json({"lock": code.lock}) if json_ else code.lock.rstrip())
        return
    if export is not None:
        number = write_code(code, export)
        message(f"Wrote {plural(number, 'file')} of {run.spec.name} to {export}.")
    if json_:
        print(as_json({"name": run.spec.name, "uid": run.uid, "spec": conceal(render(spec)), "code": code.as_data()}))
        return
    print(to_yaml(spec, form="short", shows_secrets=False))
    print("\n".join([*_say_code(code), *_say_environment(code), *(_say_files(code) if code_ else [])]))


def _say_code(code: KeptCode) -> list[str]:
    if code.files is None:
        lines = [f"code: not kept: {code.why}"]
    else:
        size = describe_memory(sum(file.size for file in code.files))
        since = "" if code.at is None else f", as of {describe_time(code.at)}"
        lines = [f"code: {plural(len(code.files), 'file')}, {size}{since}"]
    if code.workdir is not None:
        lines.append(f"workdir: {code.workdir}")
    if code.edited:
        lines.append(f"edited since: {listed(code.edited, MOST_NAMED)}")
    if code.left_out:
        lines.append(f"not copied: {listed(code.left_out, MOST_NAMED)}")
    if code.git is not None:
        state = "with changes" if code.git["dirty"] else "clean"
        lines.append(f"commit: {code.git['commit'] or 'none yet'} ({code.git['branch'] or 'no branch'}, {state})")
    return lines


def _say_environment(code: KeptCode) -> list[str]:
    if code.environment is None:
        return ["environment: not known"]
    lines = []
    for name, title in (("image", "image"), ("host", "host"), ("platform", "platform"), ("gpu_driver", "GPU driver")):
        if code.environment.get(name):
            lines.append(f"{title}: {code.environment[name]}")
    if code.environment.get("gpus"):
        lines.append(f"GPUs: {', '.join(code.environment['gpus'])}")
    python = code.environment.get("python")
    if python:
        number = plural(len(python["packages"]), "package")
        lines.append(f"python: {python['version']}, {python['executable']}, {number}")
    return lines


def _say_files(code: KeptCode) -> list[str]:
    lines = [""]
    lines += [f"{file.digest[:12]}  {file.size:>9}  {file.path}" for file in code.files or ()]
    python = (code.environment or {}).get("python")
    if python:
        lines += ["", *(f"{name}=={version}" for name, version in python["packages"].items())]
    if code.diff:
        lines += ["", code.diff.rstrip("\n")]
    return lines


def _differences(old: tuple[WorkloadSpec, KeptCode], new: tuple[WorkloadSpec, KeptCode]) -> dict[str, Any]:
    (before, first), (after, second) = old, new
    rendered = [render_short(spec) for spec in (before, after)]
    keys = [key for key in {**rendered[0], **rendered[1]} if rendered[0].get(key) != rendered[1].get(key)]
    commits = [None if code.git is None else code.git["commit"] for code in (first, second)]
    unknown = [spec.name for spec, code in (old, new) if code.files is None]
    hidden = [conceal(fields, every=True) for fields in rendered]
    return {
        "spec": {key: [fields.get(key) for fields in hidden] for key in keys},
        "commit": commits if commits[0] != commits[1] else None,
        "packages": package_differences(first, second),
        "files": None if unknown else list(file_differences(first, second)),
        "why": None if not unknown else f"the files of {' and '.join(unknown)} are not kept",
    }


def _say_differences(differences: dict[str, Any], first: str, second: str) -> str:
    lines = [f"{key}: {_or_none(old)} -> {_or_none(new)}" for key, (old, new) in differences["spec"].items()]
    if differences["commit"] is not None:
        lines.append(f"commit: {_or_none(differences['commit'][0])} -> {_or_none(differences['commit'][1])}")
    lines += [f"package {package}" for package in differences["packages"]]
    lines += differences["files"] if differences["files"] is not None else [f"files: {differences['why']}"]
    return "\n".join(lines) or f"{first} and {second} do not differ."


def _or_none(value: Any) -> str:
    if value is None:
        return "not given"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
