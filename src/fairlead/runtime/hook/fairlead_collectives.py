"""Tells in which collective of torch.distributed a rank waits, when fairlead/runtime/stacks.py asks.

A rank that waits in native code runs no Python of its main thread, so a thread answers. It starts when one rank of
several imports torch.distributed, sleeps in opening a FIFO, and reads PyTorch's flight recorder, which is on by default
(https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html). This must parse in any Python.
"""

import os
import sys

_MODULE = "torch.distributed.distributed_c10d"
_MOST_GROUPS = 8
_MOST_TEXT = 60


def fifo_of(path):
    """Return the FIFO that wakes the processes of the rank with a file of stacks."""
    return path + ".ask"


def answer_of(path, pid):
    """Return the file into which a process of the rank writes its answer."""
    return "%s.%s.json" % (path, pid)  # noqa: UP031 (older than format)


def prepare(path):
    """Answer from when this process imports torch.distributed on, if it is one rank of several.

    Args:
        path: The rank's file of stacks.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1" or not os.path.exists(fifo_of(path)):
        return
    if _MODULE in sys.modules:
        _start(path)
    elif not any(isinstance(finder, _Imports) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Imports(path))


class _Imports(object):  # noqa: UP004 (older Pythons)
    """Notices the import of torch.distributed, and finds nothing itself."""

    def __init__(self, path):
        self.path = path

    def find_spec(self, name, path=None, target=None):
        if name == _MODULE:
            sys.meta_path.remove(self)
            _start(self.path)


def _start(path):
    import _thread  # unlike threading's, its threads are not counted among the program's

    _thread.start_new_thread(_serve, (path,))


def _serve(path):
    import json

    while True:
        try:
            with open(fifo_of(path), "rb") as fifo:
                fifo.read()  # until the one who asks has closed it
        except (IOError, OSError):  # noqa: UP024 (the pod has ended)
            return
        try:
            groups = _groups()
            if not groups:
                continue
            answer = answer_of(path, os.getpid())
            with open(answer + ".new", "w") as file:
                json.dump(groups, file)
            os.rename(answer + ".new", answer)
        except Exception as error:  # noqa: BLE001 (the program goes on; the shim says that this rank gave no answer)
            os.environ["FAIRLEAD_COLLECTIVES_REFUSED"] = repr(error)


def _groups():
    """Return [name, entered, pending, operation, rank] of each process group, those with a pending collective first.

    `entered` is the number of the last collective that this rank has entered, 0 for none; `pending` that of the first
    which has not ended, None for none; `rank` that of this process. A group of which the recorder has forgotten
    everything is left out.
    """
    module = sys.modules.get(_MODULE)
    if module is None or not module.is_initialized():
        return []
    entered, pending, names = {}, {}, {}
    is_complete = True
    for recorded in _recordings():
        entries = recorded.get("entries") or ()
        is_complete = is_complete and (not entries or entries[0].get("record_id") == 0)
        for entry in entries:
            if entry.get("is_p2p"):
                continue
            name, number = str(entry["process_group"][0]), int(entry["collective_seq_id"])
            names[name] = _title(*entry["process_group"][:2])
            entered[name] = max(entered.get(name, 0), number)
            is_pending = not entry.get("retired") and entry.get("state") != "completed"
            if is_pending and (name not in pending or number < pending[name][0]):
                pending[name] = (number, _operation(entry))
    for group, name in module._world.pg_names.items():
        if name not in names and is_complete:
            names[name] = _title(name, getattr(group, "group_desc", ""))
    rank = module.get_rank()
    rows = [
        (names[name], entered.get(name, 0)) + pending.get(name, (None, None)) + (rank,)  # noqa: RUF005
        for name in names
    ]
    return sorted(rows, key=lambda row: row[2] is None)[:_MOST_GROUPS]


def _recordings():
    """Return what the recorder of each backend has, as far as this PyTorch has one."""
    import json

    native = sys.modules["torch._C._distributed_c10d"]
    dump = getattr(native, "_dump_fr_trace_json", None)
    if dump is None:
        older = getattr(native, "_dump_nccl_trace_json", None)
        return [] if older is None else [json.loads(older())]
    try:
        return [json.loads(dump(backend=backend)) for backend in ("nccl", "gloo")]
    except TypeError:  # one recorder for all backends
        return [json.loads(dump())]


def _title(name, description):
    is_named = description and description != "undefined"
    return str(description if is_named else "group %s" % name)[:_MOST_TEXT]  # noqa: UP031


def _operation(entry):
    name = str(entry.get("profiling_name") or "").rpartition(":")[2]
    shapes = [str(shape).replace(" ", "") for shape in entry.get("input_sizes") or ()]
    kinds = sorted(set(map(str, entry.get("input_dtypes") or ())))
    more = " and %d more" % (len(shapes) - 1) if len(shapes) > 1 else ""  # noqa: UP031
    return ("%s of %s%s %s" % (name, shapes[0], more, " or ".join(kinds)) if shapes else name)[:_MOST_TEXT]  # noqa: UP031
