"""Variables of a file for programs on this machine, as if the shell had exported them: they are in no spec.

A line is ``NAME=VALUE``, as in the files of Docker and dotenv: blank lines and those that begin with ``#`` are
skipped, ``export`` may stand before a name, and quotes around a whole value are removed. Nothing is expanded.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import click

MOST_BYTES = 1_048_576

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")


def read_env_files(paths: Iterable[Path]) -> dict[str, str]:
    """Return the variables of the files; a later one replaces an earlier one.

    Raises:
        click.UsageError: A file cannot be read, or has another line; its values are not in the message.
    """
    variables: dict[str, str] = {}
    for path in paths:
        try:
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
            text = content.decode()
        except OSError as error:
            raise click.UsageError(f"--env-file {path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise click.UsageError(f"--env-file {path} is not UTF-8 text.") from error
        if len(content) > MOST_BYTES or "\0" in text:
            raise click.UsageError(f"--env-file {path} is no file of variables: give lines NAME=VALUE, up to 1 MiB.")
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            match = _LINE.fullmatch(stripped)
            if match is None:
                raise click.UsageError(f"--env-file {path}:{number}: give NAME=VALUE, such as `API_KEY=abc`.")
            variables[match[1]] = _unquoted(match[2].strip())
    return variables


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
    return value[1:-1] if is_quoted else value
