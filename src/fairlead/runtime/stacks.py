"""Takes the stacks of a pod's ranks when its run hangs, and reads from them where each rank is.

Before its program started, each Python process of a rank has registered to write its stacks into the rank's file on a
signal (hook/fairlead_stackdump.py). Only a process that catches the signal and has the file open is sent it. If py-spy
or gdb is on the rank's PATH, it shows the native calls as well. The program is only inspected, never changed. The
functions that parse text are pure.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time

from fairlead.runtime import collectives, nccl_ras, processes
from fairlead.runtime.hook.fairlead_stackdump import SIGNAL, VARIABLE, is_registered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Frame = tuple[str, str, int]  # function, file, line; line 0 if unknown

MOST_PROCESSES = 16  # of each rank, including its data loaders' workers
MOST_BYTES = 64 * 1024  # of the output of one rank's Python processes
MOST_NATIVE_BYTES = 32 * 1024  # of the tools' output for all ranks of a pod
ANSWER_S = 1.0  # for one process to write its stacks
QUIET_S = 0.1  # without another line, after which the stacks are complete
MOST_LIBRARY_BYTES = 50_000_000  # of a library whose symbols gdb reads
RAS_S = 3.0  # for NCCL's RAS service, which asks all nodes
TOOL_S = 5.0  # for py-spy or gdb, which read the symbols of large libraries
_LOOK_S = 0.02
_HOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hook")
_SHELLS = ("sh", "bash", "dash", "zsh", "busybox")


def file_of(pod_dir: str, rank: int) -> str:
    """Return the file into which the processes of a rank write their stacks."""
    return os.path.join(pod_dir, f"rank-{rank}.stacks")


def prepare(env: Mapping[str, str], pod_dir: str, rank: int) -> dict[str, str]:
    """Return the rank's environment with the hook, and create its empty file; unchanged if the hook cannot be used."""
    if not os.path.isdir("/proc/self/fd") or os.pathsep in _HOOK:
        return dict(env)
    path = os.path.realpath(file_of(pod_dir, rank))
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        collectives.prepare(path)
    except OSError:  # a full disk: the rank runs without the hook
        return dict(env)
    before = env.get("PYTHONPATH")
    return {**env, VARIABLE: path, "PYTHONPATH": _HOOK + (os.pathsep + before if before else "")}


def forget(pod_dir: str, rank: int) -> None:
    """Remove what ``prepare`` has created for a rank, and what its processes have written."""
    path = file_of(pod_dir, rank)
    collectives.forget(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class Taken:
    """The stacks of one rank: the lines for the log and the frames of its main thread."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.lines: list[str] = []
        self.frames: list[Frame] = []
        """Frames of the main thread, innermost first; empty if unknown."""
        self.collectives: list[collectives.Row] = []
        """Process groups of torch.distributed of each process, those with a pending collective first, if known."""
        self.places: dict[int, dict[str, str | None]] = {}
        """The position of the main thread of each Python process, by pid."""


def take(
    pids: Mapping[int, int],
    env: Callable[[int], Mapping[str, str]],
    files: Callable[[int], str],
    keep: Callable[[int, list[str]], None],
    wait: Callable[[float], None],
    until: float,
) -> list[Taken]:
    """Take the stacks of living ranks and pass them on as they arrive.

    Args:
        pids: The rank of each process that the shim started, by pid.
        env: Returns the environment of a rank, for its PATH.
        files: Returns the file of a rank.
        keep: Called with a rank and its lines for the log.
        wait: Processes other events for some seconds.
        until: Time of the monotonic clock after which no answer is awaited.
    """
    taken = {rank: Taken(rank) for rank in sorted(pids.values())}
    waking = {rank for rank in taken if collectives.ask(os.path.realpath(files(rank)))}
    woken = time.monotonic()
    own = {rank: [pid, *processes.descendants(pid)] for pid, rank in pids.items()}
    python_pids = {
        rank: [pid for pid in own[rank] if is_registered(pid, os.path.realpath(files(rank)))][:MOST_PROCESSES]
        for rank in taken
    }
    for place in range(max((len(rank_pids) for rank_pids in python_pids.values()), default=0)):
        now = {rank: rank_pids[place] for rank, rank_pids in python_pids.items() if len(rank_pids) > place}
        for rank, text in _ask(now, files, wait, until).items():
            pid = now[rank]
            if not text:
                keep(rank, [f"fairlead: process {pid} ({_command(pid)}) did not give its Python stacks"])
                continue
            frames = main_frames(text)
            taken[rank].places[pid] = whereabouts(frames)
            if not taken[rank].frames:
                taken[rank].frames = frames
            heading = f"fairlead: Python stacks of process {pid} ({_command(pid)}), innermost call first:"
            keep(rank, [heading, *text.splitlines()])
    _take_native(taken, own, python_pids, env, keep, wait, until)
    for rank in taken:
        within_s = min(RAS_S, until - time.monotonic() - ANSWER_S)
        status = nccl_ras.ask(env(rank), own[rank], within_s)
        if status:
            keep(rank, ["fairlead: NCCL's RAS service reports of the whole gang:", *status])
            break
    changed_at = woken
    while waking:
        for rank in sorted(waking):
            rows = collectives.answers(os.path.realpath(files(rank)), taken[rank].places)
            if rows != taken[rank].collectives:
                taken[rank].collectives, changed_at = rows, time.monotonic()
        at = time.monotonic()
        # Several processes of a rank may answer, one after another.
        is_quiet = at - changed_at >= QUIET_S and all(taken[rank].collectives for rank in waking)
        if is_quiet or at >= min(until, woken + ANSWER_S):
            break
        wait(_LOOK_S)
    for rank in sorted(waking):
        keep(rank, [collectives.line(row) for row in taken[rank].collectives])
    return list(taken.values())


def _ask(
    pids: Mapping[int, int], files: Callable[[int], str], wait: Callable[[float], None], until: float
) -> dict[int, str]:
    """Signal one process of each rank, all at the same moment; return "" for one that does not answer."""
    starts = {rank: _size(files(rank)) for rank in pids}
    for pid in pids.values():
        processes.kill([pid], SIGNAL)
    begun = time.monotonic()
    sizes, changed = dict(starts), dict.fromkeys(pids, begun)
    while True:
        wait(_LOOK_S)
        now = time.monotonic()
        for rank in pids:
            size = _size(files(rank))
            if size != sizes[rank]:
                sizes[rank], changed[rank] = size, now
        done = all(sizes[rank] > starts[rank] and now - changed[rank] >= QUIET_S for rank in pids)
        if done or now >= until or now - max(begun, *changed.values()) >= ANSWER_S:
            return {rank: _read(files(rank), starts[rank], MOST_BYTES) for rank in pids}


def _take_native(
    taken: Mapping[int, Taken],
    own: Mapping[int, Sequence[int]],
    python_pids: Mapping[int, Sequence[int]],
    env: Callable[[int], Mapping[str, str]],
    keep: Callable[[int, list[str]], None],
    wait: Callable[[float], None],
    until: float,
) -> None:
    import subprocess
    import tempfile

    running: dict[int, tuple[Any, Any, str, int]] = {}
    for rank in taken:
        pid = python_pids[rank][0] if python_pids[rank] else _program(own[rank])
        argv = _tool(pid, env(rank))
        if argv is None:
            if not taken[rank].frames:
                why = "it is not a Python program that Fairlead can ask, and neither py-spy nor gdb is on its PATH"
                keep(rank, [f"fairlead: no stacks of process {pid} ({_command(pid)}): {why}"])
            continue
        out = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the tool has ended)
        try:
            tool = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            out.close()
            keep(rank, [f"fairlead: {argv[0]} cannot be started: {error.strerror}"])
            continue
        running[rank] = (tool, out, os.path.basename(argv[0]), pid)
    end = min(until, time.monotonic() + TOOL_S)
    while any(_is_running(tool.pid) for tool, _, _, _ in running.values()) and time.monotonic() < end:
        wait(_LOOK_S)
    share = MOST_NATIVE_BYTES // max(1, len(running))
    for rank, (tool, out, name, pid) in running.items():
        is_late = _is_running(tool.pid)
        if is_late:
            processes.kill([tool.pid])
        tool.wait()
        out.seek(0)
        text = out.read(share).decode("utf-8", "replace")
        out.close()
        frames = native_frames(text)
        if frames:
            keep(rank, [f"fairlead: stacks of process {pid} ({_command(pid)}) by {name}:", *_without_noise(text)])
            if not taken[rank].frames:
                taken[rank].frames = frames
            continue
        why = f"it took more than {TOOL_S:g} s" if is_late else _last_line(text)
        keep(rank, [f"fairlead: {name} could not show the stacks of process {pid} ({_command(pid)}): {why}"])


def _tool(pid: int, env: Mapping[str, str]) -> list[str] | None:
    """Return the command that shows the stacks of a process; None if there is no tool."""
    path = env.get("PATH", os.defpath)
    spy = shutil.which("py-spy", path=path)
    if spy is not None and "python" in os.path.basename(_executable(pid)):
        return [spy, "dump", "--native", "--pid", str(pid)]
    gdb = shutil.which("gdb", path=path)
    if gdb is None:
        return None
    quick = ("-iex", "set debuginfod enabled off", "-iex", "set auto-solib-add off")
    commands = ("-ex", f"sharedlibrary {_small_libraries(pid)}", "-ex", "thread apply all -ascending bt 40")
    return [gdb, "-nx", "-batch", *quick, "-p", str(pid), *commands]


def _small_libraries(pid: int) -> str:
    """Return a gdb pattern of a process's libraries without the largest: CUDA's take gdb 10 s or more."""
    paths = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:
        paths = {line[line.index("/") :].rstrip("\n") for line in file if ".so" in line and "/" in line}
    small = sorted(path for path in paths if 0 < _size(path) <= MOST_LIBRARY_BYTES)
    return "\\|".join(re.sub(r"([.*\[\]^$\\])", r"\\\1", path) for path in small) or "."


def _program(pids: Sequence[int]) -> int:
    """Return the process of a rank that is the program: the first that is not a shell."""
    return next((pid for pid in pids if os.path.basename(_executable(pid)) not in _SHELLS), pids[0])


def _executable(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(400).decode("utf-8", "replace").split("\0")
    except OSError:
        return "gone"
    return " ".join(words).strip()[:120]


def _is_running(pid: int) -> bool:
    """Return whether a child still runs; it may already have been reaped by a wait for all children."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _read(path: str, start: int, most: int) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def _without_noise(text: str) -> list[str]:
    """Return gdb's output about a process, without its output about itself."""
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith(("Thread ", "Process "))), 0)
    return [line for line in lines[first:] if line.strip()]


def _last_line(text: str) -> str:
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-fA-F]+")
_PYTHON = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_SPY = re.compile(r"    (\S.*) \((.*?)(?::(\d+))?\)$")
_GDB = re.compile(r"#\d+ +(?:0x[0-9a-f]+ in )?(.+?) \(.*?\)(?: at (.*):(\d+)| from (.*))?$")


def main_frames(text: str) -> list[Frame]:
    """Return the main thread's frames of faulthandler's output, innermost first: the last thread, as the oldest."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
            continue
        match = _PYTHON.match(line)
        if match:
            frames.append((match[3], match[1], int(match[2])))
    return frames


def native_frames(text: str) -> list[Frame]:
    """Return the first thread's frames of gdb's or py-spy's output, innermost first; empty if there are none."""
    frames: list[Frame] = []
    for line in text.splitlines():
        if frames and line.startswith("Thread "):
            break
        match = _GDB.match(line)
        if match:
            frames.append((match[1], match[2] or match[4] or "", int(match[3] or 0)))
            continue
        match = _SPY.match(line)
        if match:
            frames.append((match[1], match[2], int(match[3] or 0)))
    return frames


_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python3?[\d.]*/|^<frozen|^torch/|/fairlead/runtime/")
_COLLECTIVE = re.compile(r"(?:^|/)torch/(?:distributed/|nn/parallel/distributed\.py|cuda/(?:__init__|streams)\.py)")
_BACKWARD = re.compile(r"(?:^|/)torch/autograd/")
_AGREEMENT = re.compile(r"/fairlead/runtime/(?:channels|agreement)\.py$")
_WRAPPERS = ("wrapper", "inner", "decorate_context")


def whereabouts(frames: Sequence[Frame]) -> dict[str, str | None]:
    """Return the position of a rank from its frames, which are innermost first.

    Returns:
        ``place``: the innermost call of the program's own code, as in "load_batch (train.py:42)"; None if unknown.
        ``waits_in``: the call that waits for other ranks, as in "all_reduce"; None if it waits in no such call.
    """
    if not frames:
        return {"place": None, "waits_in": None}
    ours = [at for at, (_, file, line) in enumerate(frames) if line and not _LIBRARY.search(file)]
    # py-spy shows the interpreter's C frames as well as Python's.
    own = next((at for at in ours if frames[at][1].endswith(".py")), ours[0] if ours else None)
    inner = frames if own is None else frames[:own]
    return {"place": _say(frames[0] if own is None else frames[own]), "waits_in": _waits_in(inner)}


def _waits_in(inner: Sequence[Frame]) -> str | None:
    """Return the outermost call of PyTorch or Fairlead, below the program's own, that waits for other ranks."""
    if any(_AGREEMENT.search(file) for _, file, _ in inner):
        outer = next((name for name, file, _ in reversed(inner) if file.endswith("/fairlead/runtime/session.py")), "")
        return f"run.{outer.rpartition('.')[2]}" if outer else "Fairlead's agreement of the ranks"
    calls = [name.rpartition(".")[2] for name, file, _ in inner if _COLLECTIVE.search(file)]
    named = [name for name in calls if not name.startswith("_") and name not in _WRAPPERS]
    if calls:
        return named[-1] if named else calls[-1]
    return "backward" if any(_BACKWARD.search(file) for _, file, _ in inner) else None


def _say(frame: Frame) -> str:
    name, file, line = frame
    short = os.path.basename(file)
    if not short:
        return name
    return f"{name} ({short}:{line})" if line else f"{name} ({short})"
