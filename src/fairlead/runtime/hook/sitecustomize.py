# The launcher's way into an interpreter that was started as `python script.py`: see fairlead/runtime/forking.py.
# It must parse in any Python, and must never return in the launcher itself, as the script would run there.
import os
import sys


def _serve():
    here = os.path.dirname(os.path.abspath(__file__))
    launcher = os.path.join(os.path.dirname(here), "launcher.py")
    try:
        if sys.version_info < (3, 9):  # noqa: UP036 (the interpreter is the run's, not ours)
            raise RuntimeError("Python before 3.9 cannot be forked")
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != here]
        sys.path_importer_cache.pop(here, None)
        with open(launcher, "rb") as file:
            code = compile(file.read(), launcher, "exec")
        namespace = {"__name__": "fairlead_launcher", "__file__": launcher}
        exec(code, namespace)
        serve = namespace["serve_warm"]
    except BaseException as error:  # noqa: BLE001 (whatever it is, the script must not run here)
        state = os.environ["FAIRLEAD_LAUNCHER"]
        os.environ["FAIRLEAD_LAUNCHER_REFUSED"] = repr(error)
        del os.environ["PYTHONPATH"]  # or we would be here again
        argv = state.split("\n")[:2]
        os.execv(argv[0], argv)
        os._exit(1)
    serve()


_serve()
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402,F401 (the one that we stand before; without it this raises what site expects)
