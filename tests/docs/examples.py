"""The fenced examples of a Markdown page, and how each kind is carried out.

yaml is validated, json is read, csv is read as a trace, python is run, console is run and its output compared, bash is
for a cluster and run by tests/kubernetes/test_quickstart.py, lua is Argo CD's and run by test_gitops.py there, text is
what a person reads. A first line `# NAME` keeps
csv, yaml and python as a file for the examples after it; such python is only compiled.
`<!-- before: CODE -->` just ahead of a python example is run before it, for what a reader has already.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fairlead.specs.formats.reading import parse
from fairlead.traces.reading import read_trace

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180.0
MARK = "\x1e"
KINDS = ("yaml", "json", "csv", "python", "console", "bash", "lua", "text")
_FENCE = re.compile(
    r"(?:<!-- before:\n(?P<before>.*?)-->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
_FILE = re.compile(r"# ([\w./-]+\.\w+)\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One fenced block and where it is."""

    page: str
    line: int
    kind: str
    body: str
    before: str = ""

    @property
    def file(self) -> str | None:
        """The name under which later examples find it."""
        named = _FILE.match(self.body)
        return named[1] if named is not None else None


def examples_of(page: Path) -> list[Example]:
    """The fenced blocks of a page, in their order."""
    text = page.read_text()
    return [
        Example(
            page=str(page.relative_to(ROOT)),
            line=text.count("\n", 0, found.start("kind")) + 1,
            kind=found["kind"],
            body=found["body"],
            before=found["before"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


def carry_out(example: Example, directory: Path) -> None:
    """Do what the example says, in the directory of its page. Raises AssertionError when it does not hold."""
    where = f"{example.page}:{example.line}"
    assert example.kind in KINDS, f"{where}: a block of kind {example.kind!r}, which nothing checks"
    if example.file is not None and example.kind in ("csv", "yaml", "python"):
        path = directory / example.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.body)
    if example.kind == "yaml":
        parse(example.body, source=where, default_name="example")
    elif example.kind == "csv":
        assert example.file is not None, f"{where}: a table without a `# NAME`"
        read_trace(directory / example.file)
    elif example.kind == "json":
        for line in example.body.splitlines():
            json.loads(line)
    elif example.kind == "python":
        compile(example.body, where, "exec")
        if example.file is None:
            _run_python(example, directory, where)
    elif example.kind == "console":
        _run_console(example.body, directory, where)


def _run_python(example: Example, directory: Path, where: str) -> None:
    argv = [sys.executable, "-c", example.before + example.body]
    ended = subprocess.run(argv, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ended.returncode == 0, f"{where}: {ended.stderr}"


def _run_console(body: str, directory: Path, where: str) -> None:
    """Runs the commands after `$ ` in one shell; what stands below each must come in that order, `...` for anything."""
    steps: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            steps.append((line[2:], []))
        elif line.strip():
            assert steps, f"{where}: output before any command"
            steps[-1][1].append(line)
    # Each command finds $? as the one before has left it.
    script = "code=0\n" + "".join(f"printf '{MARK}'; (exit $code); {command}\ncode=$?\n" for command, _ in steps)
    script += f"printf '{MARK}%d' $code\n"
    ended = subprocess.run(
        ["bash", "-c", script], cwd=directory, env={**os.environ, "COLUMNS": "120"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    said = ended.stdout.split(MARK)[1:]
    assert len(said) == len(steps) + 1, f"{where}: {ended.stdout}"
    for (command, wanted), output in zip(steps, said, strict=False):
        missing = first_missing(wanted, output)
        assert missing is None, f"{where}: `{command}` does not say {missing!r}; it says:\n{output}"
    if steps[-1][0] != "echo $?":
        assert said[-1] == "0", f"{where}: the last command ended with {said[-1]}:\n{said[-2]}"


def first_missing(wanted: list[str], output: str) -> str | None:
    """The first wanted line that does not come in its turn; None when all do."""
    rest = iter(output.splitlines())
    for line in wanted:
        if line.strip() == "...":
            continue
        # Columns move with what else is in a table, so that runs of blanks stand for any run of blanks.
        words = (re.escape(word).replace(r"\.\.\.", ".*") for word in line.split())
        pattern = re.compile(r"\s*" + r"\s+".join(words) + r"\s*")
        if not any(pattern.fullmatch(each) for each in rest):
            return line
    return None
