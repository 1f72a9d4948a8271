"""``fairlead init``: write a commented spec file and program to start from."""

import shlex
from pathlib import Path

import click

from fairlead.cli.show import as_json, json_option, message
from fairlead.errors import Conflict

TEMPLATES = Path(__file__).parents[1] / "templates"
_TRAIN = ("train.yaml", "train.py")
FILES = {
    "training": _TRAIN,
    "torchrun": _TRAIN,
    "lightning": _TRAIN,
    "huggingface": _TRAIN,
    "sweep": ("sweep.yaml", "train.py"),
    "pipeline": ("pipeline.yaml", "steps.py"),
    "serving": ("serve.yaml", "predictor.py"),
}
"""The names of the spec file and the program of each template."""


@click.command()
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--template",
    type=click.Choice(tuple(FILES)),
    default="training",
    show_default=True,
    help="One rank, several ranks as under torchrun, a framework's Trainer, a search, steps, or an endpoint.",
)
@json_option
def init(directory: Path, template: str, json_: bool) -> None:
    """Write a spec file and a program to start from into DIRECTORY, by default the current one.

    Nothing is overwritten: exit code 6 if one of the files exists.
    """
    spec, program = FILES[template]
    texts = {
        directory / spec: (TEMPLATES / f"{template}.yaml").read_text(),
        directory / program: (TEMPLATES / f"{template}.py").read_text(),
    }
    for path in texts:
        if path.is_symlink() or path.exists():
            raise _taken(path)
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        try:
            with open(path, "x") as file:
                file.write(text)
        except FileExistsError as error:  # just written by another process
            raise _taken(path) from error
    following = f"fairlead run {shlex.quote(str(directory / spec))}"
    if json_:
        print(as_json({"template": template, "files": [str(path) for path in texts], "next": following}))
        return
    for path in texts:
        message(f"Wrote {path}.")
    message(f"Next: `{following}`; `fairlead plan {shlex.quote(str(directory / spec))}` shows first what it would do.")


def _taken(path: Path) -> Conflict:
    return Conflict(
        f"{path} is there already, and nothing is overwritten. Give another DIRECTORY, or move the file away."
    )
