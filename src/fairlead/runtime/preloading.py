"""Finds the modules that a script imports first, so that a launcher can import them earlier. Runs no code.

A module is preloaded only if importing it earlier makes no difference: all statements that the script executes before
are known to affect neither the module nor the process.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Known to leave a single thread, no open file and no state that differs between a process and its fork.
_PRELOADED = ("numpy", "torch")
# Creating any optimizer, and the first save, import the last of them, which takes as long as torch itself.
_OPTIMIZER = "torch._dynamo"
_SESSION = ("torch.distributed", "torch.distributed.checkpoint", _OPTIMIZER)
# Fairlead's own server imports these before any predictor.
SERVER = "fairlead.runtime.serving"
_SERVER_IMPORTS = ("aiohttp.web", "numpy", "prometheus_client")


class Preload(NamedTuple):
    """Modules to import before forking.

    Attributes:
        modules: Full names in the order of import; empty if nothing is preloaded.
        why: The reason if it is empty.
        first: The directory that a fresh interpreter puts first in sys.path for this program.
        is_bare: Nothing is preloaded, but an interpreter that has only started can become the program.
    """

    modules: tuple[str, ...]
    why: str
    first: str
    is_bare: bool = False


def find_preload(script: str | None, module: str | None, workdir: str, predictor: str = "") -> Preload:
    """Find the modules to preload for a script, as given on its command line, or for the module of -m.

    Args:
        predictor: ``module:Class`` that Fairlead's own server is to serve.
    """
    if module == SERVER:
        return _find_server_preload(predictor, workdir)
    if script is not None:
        path = os.path.realpath(os.path.join(workdir, script))
        files, first = [path], os.path.dirname(path)
    else:
        files, first = _files_of(str(module), workdir), os.path.realpath(workdir)
    modules: list[str] = []
    why = f"no file of the module {module} is in {workdir}"
    for index, path in enumerate(files):
        if not os.path.isfile(path):  # reading a pipe or a terminal would block, and would consume the program's input
            return Preload((), f"{path} is no file", first)
        try:
            status = os.stat(path)
            leading, why, names_optimizer = _read(path, (status.st_mtime_ns, status.st_size, status.st_ino))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            return Preload((), f"{path} cannot be read as Python: {error}", first)
        names = list(leading)
        if "torch" in {name.partition(".")[0] for name in (*modules, *names)} and names_optimizer:
            names.append(_OPTIMIZER)
        modules += [name for name in names if name not in modules]
        if why and index + 1 < len(files):
            return Preload((), f"{why} in {path} comes first", first, is_bare=True)
    if not modules:
        return Preload((), why or "it imports nothing that is worth preloading", first, is_bare=True)
    shadow = shadowed(first, [*_PRELOADED, *sorted(_stdlib())])
    if shadow is not None:
        return Preload((), f"{shadow} may stand in for the module of its name", first)
    return Preload(tuple(modules), "", first)


def _find_server_preload(predictor: str, workdir: str) -> Preload:
    """Find the server's imports, followed by the first imports of the predictor's module."""
    first, modules = os.path.realpath(workdir), list(_SERVER_IMPORTS)
    for path in _files_of(predictor.partition(":")[0], workdir):
        try:
            with open(path, "rb") as file:
                names, why = _leading(ast.parse(file.read(), path).body)
        except (OSError, SyntaxError, ValueError, RecursionError):
            break  # the server will report it
        modules += [name for name in names if name not in modules and name != "fairlead"]
        if why:
            break
    tops = {name.partition(".")[0] for name in modules}
    shadow = shadowed(first, [*sorted(tops), *_PRELOADED, *sorted(_stdlib())])
    if shadow is not None:
        return Preload((), f"{shadow} may stand in for the module of its name", first)
    return Preload(tuple(modules), "", first)


@functools.lru_cache(maxsize=64)
def _read(path: str, _version: tuple[int, ...]) -> tuple[tuple[str, ...], str, bool]:
    """Return a file's first imports, the position after them, and whether it names optimizers; cached by version."""
    with open(path, "rb") as file:
        tree = ast.parse(file.read(), path)
    names, why = leading_imports(tree.body)
    return tuple(names), why, _names_optimizer(tree)


def leading_imports(body: Sequence[ast.stmt]) -> tuple[list[str], str]:
    """Return the preloadable modules imported before any other effect, and the line of that effect; "" if none."""
    modules, why = _leading(body)
    if "fairlead" in modules:
        modules.remove("fairlead")
        # Fairlead saves torch's state through these; without torch it never imports them.
        if any(name.partition(".")[0] == "torch" for name in modules):
            modules.extend(name for name in _SESSION if name not in modules)
    return modules, why


def _leading(body: Sequence[ast.stmt]) -> tuple[list[str], str]:
    modules: list[str] = []
    for statement in body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [str(statement.module)]
        elif _does_nothing(statement):
            continue
        else:
            return modules, f"line {statement.lineno}"
        for name in names:
            top = name.partition(".")[0]
            if top in _PRELOADED:
                modules.append(name)
            elif top == "fairlead":
                modules.extend(["fairlead"] if "fairlead" not in modules else [])
            elif top not in _HARMLESS and top not in _stdlib():
                return modules, f"line {statement.lineno}"
    return modules, ""


def shadowed(directory: str, names: Iterable[str]) -> str | None:
    """Return the entry of the directory that an import of one of the names would find there, or None."""
    wanted = set(names)
    try:
        entries = sorted(os.listdir(directory))
    except OSError:
        return None
    for entry in entries:
        stem, dot, suffix = entry.partition(".")
        if stem not in wanted:
            continue
        is_package = not dot and os.path.isfile(os.path.join(directory, entry, "__init__.py"))
        if is_package or suffix in ("py", "pyc") or suffix.endswith("so"):
            return os.path.join(directory, entry)
    return None


def _names_optimizer(tree: ast.Module) -> bool:
    """Return whether the file names torch.optim anywhere."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "optim":
            return True
        if isinstance(node, ast.Import) and any(alias.name.startswith("torch.optim") for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and not node.level:
            module = str(node.module)
            if module.startswith("torch.optim") or (module == "torch" and any(a.name == "optim" for a in node.names)):
                return True
    return False


def _files_of(module: str, workdir: str) -> list[str]:
    """Return the files that run for `-m module`, in order: those of its packages and its own."""
    *packages, last = module.split(".")
    files, directory = [], workdir
    for package in packages:
        directory = os.path.join(directory, package)
        files.append(os.path.join(directory, "__init__.py"))
    own = os.path.join(directory, last)
    if os.path.isdir(own):
        files += [os.path.join(own, "__init__.py"), os.path.join(own, "__main__.py")]
    else:
        files.append(own + ".py")
    return [os.path.realpath(path) for path in files if os.path.isfile(path)]


def _does_nothing(statement: ast.stmt) -> bool:
    """Return whether the statement is a docstring, a constant, or a plain function."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign):
        return isinstance(statement.value, ast.Constant) and all(isinstance(t, ast.Name) for t in statement.targets)
    if isinstance(statement, ast.FunctionDef):
        arguments = statement.args
        defaults = [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]
        return not statement.decorator_list and all(isinstance(default, ast.Constant) for default in defaults)
    return isinstance(statement, ast.Pass)


def _stdlib() -> frozenset[str]:
    # Python 3.9 has no such list; the modules loaded so far err on the side of not forking.
    return frozenset(getattr(sys, "stdlib_module_names", ())) or frozenset(sys.modules) | _COMMON


_HARMLESS = frozenset(("typing_extensions", "tqdm", "yaml", "einops", "packaging"))
_COMMON = frozenset(("argparse", "copy", "datetime", "glob", "logging", "math", "pickle", "random", "shutil", "uuid"))
