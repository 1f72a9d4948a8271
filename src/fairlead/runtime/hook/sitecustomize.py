"""Prepares an interpreter before its program runs: as a launcher, or so that its stacks can be requested.

With FAIRLEAD_LAUNCHER it becomes the launcher (see fairlead/runtime/forking.py); otherwise its stacks can be requested
if the run hangs (fairlead/runtime/stacks.py). This file must parse in any Python, and must never return in the launcher
itself, because the script would run there.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _leave():
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
    sys.path_importer_cache.pop(_here, None)


def _serve():
    launcher = os.path.join(os.path.dirname(_here), "launcher.py")
    try:
        if sys.version_info < (3, 9):  # noqa: UP036 (the interpreter is the run's, not ours)
            raise RuntimeError("Python before 3.9 cannot be forked")
        _leave()
        with open(launcher, "rb") as file:
            code = compile(file.read(), launcher, "exec")
        namespace = {"__name__": "fairlead_launcher", "__file__": launcher}
        exec(code, namespace)
        serve = namespace["serve_warm"]
    except BaseException as error:  # noqa: BLE001 (whatever it is, the script must not run here)
        state = os.environ["FAIRLEAD_LAUNCHER"]
        os.environ["FAIRLEAD_LAUNCHER_REFUSED"] = repr(error)
        del os.environ["PYTHONPATH"]  # otherwise this hook would run again
        argv = state.split("\n")[:2]
        os.execv(argv[0], argv)
        os._exit(1)
    serve()


def _register():
    try:
        from fairlead_stackdump import register

        register()
    except Exception as error:  # noqa: BLE001 (the program runs all the same; its shim says that it gave no stack)
        os.environ["FAIRLEAD_STACKS_REFUSED"] = repr(error)
    for name in ("fairlead_stackdump", "fairlead_collectives"):
        sys.modules.pop(name, None)
    _leave()


if "FAIRLEAD_LAUNCHER" in os.environ:
    _serve()
else:
    _register()
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402,F401 (the one that this file hides; if there is none, this raises what site expects)
