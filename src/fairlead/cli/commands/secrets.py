"""``fairlead secrets``: secrets of this machine, which specs name by `secrets`."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from fairlead.cli.show import as_json, describe_time, json_option, message, table
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.secret_store import SecretStore
from fairlead.errors import FairleadError, InvalidArgument
from fairlead.text.quantities import plural

if TYPE_CHECKING:
    from fairlead.cluster.local.secret_store import SecretStore

MOST_READ = (1 << 20) + 1


class SecretName(click.ParamType[str]):
    """A secret's name."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            names = SecretStore(Home.at().secrets).names()
        except FairleadError:  # no completions; the command itself reports the error
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group()
def secrets() -> None:
    """Set, list and remove secrets of this machine, which specs name by `secrets` and by `credentials` of data.

    Values are in files of the state directory that only you can read, and are never printed. In pods the same names are
    those of Secrets of the namespace, which `kubectl create secret generic` makes.
    """


@secrets.command("set")
@click.argument("name", type=SecretName())
@click.argument("variable", metavar="[VARIABLE]...", nargs=-1)
@click.option(
    "--from-file", "files", metavar="[KEY=]PATH", multiple=True, help="An entry with the content of a file; repeatable."
)
@click.option(
    "--from-env",
    "environ",
    metavar="VARIABLE",
    multiple=True,
    help="An entry with the value of a variable; repeatable.",
)
@json_option
def set_(name: str, variable: tuple[str, ...], files: tuple[str, ...], environ: tuple[str, ...], json_: bool) -> None:
    """Set the secret NAME to these entries, in place of any that it had.

    The value of each VARIABLE is typed without being shown, or is standard input where that is no terminal. Values are
    never arguments, which other users of the machine and the shell's history would have.
    """
    store = _store()
    entries: dict[str, bytes] = {}
    store.path(name)  # refuses the name before values are typed
    for word in variable:
        if "=" in word:
            own = word.partition("=")[0]
            raise InvalidArgument(
                f"Values are never arguments: this one is in the shell's history and was visible to every user of the "
                f"machine, so have it replaced. Give `fairlead secrets set {name} {own}`, and type it."
            )
    for option in files:
        key, equals, path = option.partition("=")
        path = path if equals else key
        _add(entries, key if equals else Path(path).name, _content(path))
    for exported in environ:
        if exported not in os.environ:
            raise InvalidArgument(f"--from-env {exported}: the variable is not set in this shell.")
        _add(entries, exported, os.environb[os.fsencode(exported)])
    typed = [*variable]
    if not typed and not entries:
        raise InvalidArgument(
            f"Name a variable, such as `fairlead secrets set {name} API_KEY`, or give `--from-file KEY=PATH` or "
            "`--from-env VARIABLE`."
        )
    if len(typed) > 1 and not sys.stdin.isatty():
        raise InvalidArgument("Standard input is the value of one VARIABLE; give others by `--from-file`.")
    for key in typed:
        _add(entries, key, _typed(key))
    store.write(name, entries)
    if json_:
        print(as_json({"name": name, "entries": sorted(entries)}))
    else:
        message(f"The secret {name} has {', '.join(sorted(entries))}. Specs take it by `secrets: [{name}]`.")


@secrets.command("list")
@json_option
def list_(json_: bool) -> None:
    """List the secrets of this machine and their entries, without values."""
    stored = _store().stored()
    if json_:
        print(as_json([{"name": one.name, "entries": one.entries, "set_at": one.set_at} for one in stored]))
    elif stored:
        rows = [(one.name, ", ".join(one.entries), describe_time(one.set_at)) for one in stored]
        print(table([("NAME", "ENTRIES", "SET"), *rows]))
    else:
        message("There are no secrets; `fairlead secrets set NAME VARIABLE` makes one.")


@secrets.command("rm")
@click.argument("name", metavar="NAME...", nargs=-1, required=True, type=SecretName())
@json_option
def rm(name: tuple[str, ...], json_: bool) -> None:
    """Remove the secrets NAME. Started runs keep their variables; runs that wait for one fail when they start."""
    store = _store()
    for secret in name:
        store.remove(secret)
    if json_:
        print(as_json({"removed": list(name)}))
        return
    message(f"{plural(len(name), 'secret')} removed.")


def _store() -> "SecretStore":
    return SecretStore(Home.open().secrets)


def _add(entries: dict[str, Any], key: str, value: bytes) -> None:
    if key in entries:
        raise InvalidArgument(f"{key} is there twice; give it once.")
    entries[key] = value


def _content(path: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(MOST_READ)
    except OSError as error:
        raise InvalidArgument(f"--from-file {path} cannot be read: {error.strerror or error}.") from error


def _typed(variable: str) -> bytes:
    if not sys.stdin.isatty():
        value = sys.stdin.buffer.read(MOST_READ)
        return value[:-2] if value.endswith(b"\r\n") else value.removesuffix(b"\n")
    value = click.prompt(f"Value of {variable} (not shown)", hide_input=True, default="", show_default=False, err=True)
    return str(value).encode("utf-8", "surrogateescape")
