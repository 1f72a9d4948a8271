"""The Python and the packages of a run, from which its environment is made. See decision 227."""

import re
from collections.abc import Iterable
from typing import Annotated

from fairlead.frozen import dataclass
from fairlead.specs.constraints import PATH, Text, enforce, quote
from fairlead.specs.field_types import TEXT, ListField
from fairlead.specs.key import Key, broken

AUTO = "auto"
PACKAGES_MOST = 256
PACKAGE = Text(max_length=1_024)
FILES = "requirements.txt, pyproject.toml, uv.lock or pylock.toml"
NOT_MADE_IN_PODS = (
    "its image is built by `fairlead run`, which replaces the key by it; submit the run with that, or name an `image` "
    "that has the packages, and leave `environment` out"
)
OF_CONDA = (
    "names an environment of conda, which is not made here; write its packages of PyPI into requirements.txt, or "
    "activate it before `fairlead run` and leave `environment` out"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEnvironment:
    """The packages of a run, in a file or listed, and its Python.

    Attributes:
        file: ``auto`` until submission, for the file that the working directory has; None for ``packages``.
        digest: Hash of what it asked for at submission, from which cached results of steps depend. Not a key.
        lock: For pods, the lock of what it asked for. Not a key.
        image: For pods, the image that has exactly that, by digest; empty until it is pushed. Not a key.
    """

    file: Annotated[
        str | None,
        Key(
            "file",
            rule=PATH,
            example="requirements.txt",
            also="requirements path from lock lockfile pip pyproject auto",
            alone=True,
        ),
        "requirements.txt, pyproject.toml, uv.lock or pylock.toml in `workdir`; `auto` takes the one that is there.",
    ] = None
    packages: Annotated[
        tuple[str, ...],
        Key(
            "packages",
            ListField(item=TEXT, most=PACKAGES_MOST, rule=PACKAGE),
            example='["numpy>=2", "torch"]',
            also="dependencies pip requirements package libraries",
        ),
        "The packages, as in requirements.txt, in place of `file`.",
    ] = ()
    python: Annotated[
        str | None,
        Key(
            "python",
            rule=Text(
                max_length=16,
                pattern=r"3\.[0-9]{1,2}(?:\.[0-9]{1,2})?",
                what='a version of Python; give one such as "3.12"',
            ),
            example='"3.12"',
            also="python_version version interpreter py",
        ),
        "Version of Python; that of the shell that submits when left out.",
    ] = None
    digest: str = ""
    lock: str = ""
    image: str = ""

    def __post_init__(self) -> None:
        enforce(self._problems())

    def _problems(self) -> Iterable[tuple[str, str]]:
        yield from broken(self)
        for package in self.packages:
            if (problem := PACKAGE.problem(package)) is not None:
                yield "packages", problem
        if self.file is None:
            if not self.packages and self.python is None:
                yield "file", f"missing; name {FILES}, give `auto`, or list `packages`"
            return
        if self.packages:
            yield "packages", "the packages are either in a `file` or listed, not both; remove one"
        name = self.file.rpartition("/")[2]
        if name in ("environment.yml", "environment.yaml", "pixi.toml", "pixi.lock", "conda-lock.yml"):
            yield "file", f"{quote(self.file)} {OF_CONDA}"
        elif self.file != AUTO and form_of(self.file) is None:
            yield "file", f"{quote(self.file)} is none of the files that are read; name {FILES}, or give `auto`"


def form_of(file: str) -> str | None:
    """Return the form of a file by its name: requirements, pyproject, uv.lock or pylock; None for any other."""
    name = file.rpartition("/")[2]
    if name in ("pyproject.toml", "uv.lock"):
        return name.removesuffix(".toml")
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", name) is not None:
        return "pylock"
    return "requirements" if name.endswith((".txt", ".in")) else None
