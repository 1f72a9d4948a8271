"""Finds commands whose exit code is not that of the program in them, so that a crash would count as a success. Pure."""

import re

ADVICE = "begin it with `set -eo pipefail`, or a crash there counts as a success"
# Programs whose failure matters; of `echo` or `ls` in a pipe nothing is said.
_PROGRAM = re.compile(
    r"(?:^|[\s/;&|(])(?:python[\d.]*|torchrun|accelerate|deepspeed|mpirun|mpiexec|bash|sh|make|uv|poetry|conda|julia|node|java"
    r"|Rscript|\./[\w./-]+)(?=\s)"
)
# Commands that succeed whatever was before them.
_ALWAYS = frozenset({":", "date", "echo", "printf", "true"})


def hidden_exit_code(command: str) -> str | None:
    """Return a sentence on what hides the exit code of a program in a command; None if nothing does.

    Quoted text and comments are left out; functions and scripts of the user are not looked into.
    """
    plain = re.sub(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*\"""", "Q", command, flags=re.DOTALL)
    plain = re.sub(r"(^|\s)#[^\n]*", r"\1", plain).replace("\\\n", " ")
    if re.search(r"\bset\s+-\w*o\s+pipefail\b", plain) is None:
        piped = re.search(r"(?<![|>])\|&?(?![|&])\s*(\w[\w.-]*)?", plain)
        if piped is not None and _PROGRAM.search(plain, 0, piped.start()):
            return f"run: the exit code of a pipe is that of its last command, `{piped[1] or 'the last'}`; {ADVICE}"
    lines = [line for line in re.split(r"[;\n]+", plain) if line.strip()]
    last = lines[-1].split() if lines else []
    is_hidden = bool(last) and last[0] in _ALWAYS and any(_PROGRAM.search(line + " ") for line in lines[:-1])
    if is_hidden and re.search(r"\bset\s+-\w*e", plain) is None:
        return f"run: the exit code is that of its last command, `{last[0]}`; {ADVICE}"
    return None
