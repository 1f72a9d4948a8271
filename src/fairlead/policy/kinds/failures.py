"""Diagnoses the failure of a gang: the user's program, the infrastructure, or a hang; and the first failed rank."""

import re
import signal as signals
from dataclasses import replace
from enum import StrEnum

from fairlead.frozen import dataclass
from fairlead.policy.kinds import preflights
from fairlead.policy.kinds.slow_starts import LIMIT_S, overdue
from fairlead.policy.placement.placement import why_never
from fairlead.specs.quantities import format_duration, format_size
from fairlead.specs.training import DECADE_S, Training
from fairlead.state.reasons import Code, Reason
from fairlead.state.snapshot import Node, Phase, Pod, PodPhase, Progress, RankExit, Workload
from fairlead.text.quantities import describe_duration, describe_memory
from fairlead.untrusted_json import parse_object

# When one rank is killed, its peers fail within moments, and one wait may report them together. Within this window a
# kill explains an error; an error never explains a kill, because a failed pod's other ranks get 0.5 s before SIGKILL.
MOST_SAID_BYTES = 64 << 10
SAME_MOMENT_S = 0.2
MIB = 1024**2
# The message with which `run.progress` ends a program.
_BAD_LOSS = re.compile(r"LossNotFinite: (the loss is not finite at step \d+: [-a-z]+)")
# The message of ranks that could not continue in place.
_NOT_REFORMED = re.compile(r"ReformFailed: (.+)")
# A line of the shim, `runtime/shim.py`.
_OWN_SIGNAL = "fairlead: a process of its own group sent SIGTERM to all of it"
# Messages of programs, and of torch itself, that torchrun has not started them.
_MISSED = re.compile(
    r"KeyError: '((LOCAL_)?(RANK|WORLD_SIZE)|(GROUP|NODE)_RANK|MASTER_(ADDR|PORT))'"
    r"|environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set"
    r"|in mpi_discovery$"  # where DeepSpeed looks if they are missing; that MPI is missing too does not help
)
# As a cluster says it of a pod for which its node lacked something that placement does not see, such as a device.
NO_PLACE = "kube-scheduler found no place for it"
SERVING = '{"fairlead": "serving"'
KILLS = (signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP)


class Blame(StrEnum):
    """The party responsible for a failure."""

    PROGRAM = "program"
    INFRASTRUCTURE = "infrastructure"
    QUOTA = "quota"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The reason why a gang cannot continue.

    Attributes:
        setting: A fix in the form of ``--set``; None if no key would help. The remedy has further advice.
        nodes: Nodes that did not start its pods, which it avoids from now on.
        is_exit_code: Whether a kill is known only from an exit code such as 137, which a program may give by itself.
        node: The node of the pod that was lost; empty if none was, or if that is unknown.
        is_refusal: Whether the node only had no place for the pod, which says nothing against it.
    """

    blame: Blame
    reason: Reason
    setting: str | None = None
    nodes: tuple[str, ...] = ()
    is_exit_code: bool = False
    node: str = ""
    is_refusal: bool = False

    def remedy(self, name: str, *, is_over: bool) -> str | None:
        """Return what a user can do, with commands that work as written.

        Args:
            is_over: Whether the run does not start again; otherwise it has to be suspended before a change.
        """
        if self.setting is None:
            return self.reason.remedy
        command = f"`fairlead resume {name} --set {self.setting}`"
        first = command if is_over else f"`fairlead suspend {name}`, then {command},"
        return f"{first} gives it more. {self.reason.remedy or ''}".rstrip()


def diagnose(
    spec: Training, pods: tuple[Pod, ...], nodes: tuple[Node, ...], progress: Progress | None, now: float
) -> Failure | None:
    """Return the root cause of the gang's failure; None while there is none."""
    lost = [pod for pod in pods if pod.phase is PodPhase.LOST]
    if lost:
        return _lost(spec, min(lost, key=lambda pod: pod.index), nodes)
    refused = [pod for pod in pods if pod.phase is PodPhase.REFUSED]
    if refused:
        return _refused(spec, min(refused, key=lambda pod: pod.index))
    exits = sorted((exit_ for pod in pods for exit_ in pod.exits if not exit_.ok), key=lambda exit_: exit_.at)
    if exits:
        return _ended(spec, _first_cause(spec, exits), progress, nodes)
    broken = [pod for pod in pods if pod.phase is PodPhase.FAILED]
    named = preflights.named_nodes(spec, broken)
    if named is not None:
        reason, unfit = named
        return Failure(blame=Blame.INFRASTRUCTURE, reason=reason, nodes=unfit)
    if broken:
        message = broken[0].message or f"pod {broken[0].index} could not start"
        return Failure(blame=Blame.PROGRAM, reason=Reason(code=Code.START_FAILED, message=message))
    return _not_started(spec, pods, now) or _stalled(spec, pods, now)


def hung(workload: Workload, pod: Pod) -> bool:
    """Return whether a pod that is stopping belongs to an attempt that is torn down because it hangs."""
    status = workload.status
    if status.phase is Phase.RESTARTING and status.attempt == pod.attempt + 1:
        return status.reason.code is Code.STALLED
    return status.phase is Phase.STOPPING and status.reason.code is Code.STALLED and status.attempt == pod.attempt


def _lost(spec: Training, pod: Pod, nodes: tuple[Node, ...]) -> Failure:
    node = next((node for node in nodes if node.name == pod.node), None)
    if pod.node and (node is None or not node.ready):
        reason = Reason(
            code=Code.NODE_LOST, message=f"node {pod.node}, which held pod {pod.index} of {spec.nodes}, is gone"
        )
    else:
        what = pod.message or "its supervising process was killed, which ended its ranks"
        where = f" on {pod.node}" if pod.node else ""  # a pod of an engine may have been on no node
        reason = Reason(code=Code.POD_LOST, message=f"pod {pod.index} of {spec.nodes}{where} was lost: {what}")
    is_refusal = bool(pod.node) and (pod.message or "").startswith(NO_PLACE)
    avoided = (pod.node,) if is_refusal else ()
    return Failure(blame=Blame.INFRASTRUCTURE, reason=reason, node=pod.node, nodes=avoided, is_refusal=is_refusal)


def _refused(spec: Training, pod: Pod) -> Failure:
    message = f"pod {pod.index} of {spec.nodes} was refused: {pod.message or 'a quota has no room for it'}"
    return Failure(blame=Blame.QUOTA, reason=Reason(code=Code.OVER_QUOTA, message=message))


def _first_cause(spec: Training, exits: list[RankExit]) -> RankExit:
    if spec.grace_s > SAME_MOMENT_S:
        for exit_ in exits:
            if exit_.at <= exits[0].at + SAME_MOMENT_S and (
                exit_.out_of_memory or _signal_of(exit_) == signals.SIGKILL
            ):
                return exit_
    return exits[0]


def _ended(spec: Training, exit_: RankExit, progress: Progress | None, nodes: tuple[Node, ...]) -> Failure:
    exit_ = replace(exit_, tail=tuple(map(_readable, exit_.tail)))
    where = f"rank {exit_.rank} of {spec.world_size}"
    after = "" if progress is None or progress.step is None else f" after step {progress.step}"
    number = _signal_of(exit_)
    if exit_.out_of_memory:
        limit = spec.resources.memory_bytes
        setting = _more_memory(spec, nodes)
        bound = "its memory limit" if limit is None else f"its limit of {describe_memory(limit)}"
        return _failure(
            Blame.INFRASTRUCTURE,
            Code.OUT_OF_MEMORY,
            f"{where} ran out of memory{after}: the pod needed more than {bound} and was killed",
            "Otherwise make the program smaller (batch size, data loader workers)."
            if setting is not None
            else "Make the program smaller (batch size, data loader workers), or run it where a node has more memory.",
            exit_.tail,
            setting=setting,
        )
    if number == signals.SIGTERM and any(_OWN_SIGNAL in line for line in exit_.tail):
        return _failure(
            Blame.PROGRAM,
            Code.PROGRAM_FAILED,
            f"{where} was ended by SIGTERM{after}, which a process of its own group sent to all of it",
            "`kill 0` in a script ends the script too; `kill $(jobs -p)` ends what it has started.",
            exit_.tail,
        )
    if number is not None and number in KILLS:
        by = f"killed with {signals.Signals(number).name}{after}"
        if exit_.signal is None:
            by += f" (by its exit code {exit_.exit_code}, which a shell gives for a command that was)"
        extra = ", which Fairlead did not send"
        if number == signals.SIGKILL and spec.resources.memory_bytes is None:
            extra += " (if this machine ran out of memory, that was the kernel)"
        killed = _failure(Blame.INFRASTRUCTURE, Code.KILLED, f"{where} was {by}{extra}", None, exit_.tail)
        return replace(killed, is_exit_code=exit_.signal is None)
    if any("out of memory" in line.lower() and "cuda" in line.lower() for line in exit_.tail):
        return _failure(
            Blame.PROGRAM,
            Code.GPU_OUT_OF_MEMORY,
            f"{where} ran out of GPU memory{after}",
            "Use a smaller batch, shard the model (FSDP2), or ask for a GPU with more memory.",
            exit_.tail,
        )
    bad_loss = next((match for line in exit_.tail if (match := _BAD_LOSS.search(line))), None)
    if number is None and bad_loss is not None:
        return _failure(
            Blame.PROGRAM,
            Code.LOSS_NOT_FINITE,
            f"{bad_loss[1]}, reported by {where}{after}",
            "Lower the learning rate, clip gradients, or look at the data of that step; "
            "`terminate_on_nan: false` lets it go on.",
            exit_.tail,
        )
    bad_loss = next((match for line in exit_.tail if (match := _NOT_REFORMED.search(line))), None)
    if number is None and bad_loss is not None:
        what = f"{where} could not go on in place{after}: {bad_loss[1][:200]}"
        return _failure(Blame.INFRASTRUCTURE, Code.KILLED, what, None, exit_.tail)
    if number is not None:
        name = signals.Signals(number).name if number in list(signals.Signals) else f"signal {number}"
        what = f"{where} crashed with {name}{after}"
    else:
        what = f"{where} failed{after} with exit code {exit_.exit_code}{_last_words(exit_)}"
    # A line that is quoted whole is not shown again.
    detail = () if what.endswith(": " + "\n".join(exit_.tail).strip()) else exit_.tail
    return _failure(Blame.PROGRAM, Code.PROGRAM_FAILED, what, _advice(spec, exit_), detail)


def _not_started(spec: Training, pods: tuple[Pod, ...], now: float) -> Failure | None:
    late = overdue(pods, now) if spec.engine is None else []
    if not late:
        return None
    first = late[0]
    assert first.silence is not None
    reason = Reason(
        code=Code.START_TIMED_OUT,
        message=f"pod {first.index} of {spec.nodes} did not start on {first.node} within {describe_duration(LIMIT_S)}: "
        f"{first.silence.what}",
    )
    nodes = tuple(sorted({pod.node for pod in late}))
    return Failure(blame=Blame.INFRASTRUCTURE, reason=reason, nodes=nodes)


def _stalled(spec: Training, pods: tuple[Pod, ...], now: float) -> Failure | None:
    limit = spec.stall_timeout_s
    if limit is None or not pods or any(pod.phase not in (PodPhase.RUNNING, PodPhase.SUCCEEDED) for pod in pods):
        return None
    latest = max(max(pod.active_at or 0.0, pod.started_at or 0.0) for pod in pods)
    heard = max((pod.heard_at for pod in pods if pod.heard_at is not None), default=now)
    if heard - latest < limit:
        return None
    of_all = f" on any of {spec.world_size} ranks" if spec.world_size > 1 else ""
    return _failure(
        Blame.INFRASTRUCTURE,
        Code.STALLED,
        f"no progress for {describe_duration(heard - latest)}{of_all}; `stall_timeout` is {describe_duration(limit)}",
        f"`fairlead logs {spec.name} --attempt {pods[0].attempt}` ends with the stacks of its ranks, "
        "where such a pause is not normal.",
        (),
        setting=f"stall_timeout={format_duration(min(2 * limit, DECADE_S))}",
    )


def _signal_of(exit_: RankExit) -> int | None:
    """Return the signal that ended the rank, including one that a shell turned into an exit code."""
    if exit_.signal is not None:
        return exit_.signal
    if exit_.exit_code is not None and exit_.exit_code - 128 in KILLS:
        return exit_.exit_code - 128
    return None


def _last_words(exit_: RankExit) -> str:
    """Return the last line of a Python traceback, which has the error."""
    for line in reversed(exit_.tail):
        text = line.strip()
        if text:
            return f": {text[:300]}"
    return ""


def _readable(line: str) -> str:
    """Return a readable line; ``fairlead.runtime.serving`` reports failures of a replica's server as JSON."""
    if not line.startswith(SERVING):
        return line
    try:
        message = parse_object(line, max_bytes=MOST_SAID_BYTES).get("failed")
    except ValueError:  # truncated
        return line
    return message if isinstance(message, str) else line


def _advice(spec: Training, exit_: RankExit) -> str | None:
    words = _last_words(exit_)
    if not spec.has_rendezvous and any(_MISSED.search(line) for line in exit_.tail):
        return (
            "It expects what torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR ...), and a lone rank starts without: "
            "add `launch: torchrun`."
        )
    if "ModuleNotFoundError" in words:
        return "Install it in the Python that `run` names, add a `setup:` step, or activate the right environment."
    if exit_.exit_code == 127:
        return "The command was not found: check `run` and the PATH of the shell that submitted it."
    if exit_.exit_code == 126 and "fairlead: the working directory " in words:
        return "Put the directory back and resume the run, or submit it again with another `workdir`."
    if exit_.exit_code == 126:
        return "The command is not executable: check its mode and its first line."
    return None


def _more_memory(spec: Training, nodes: tuple[Node, ...]) -> str | None:
    """Return twice the memory, or at most that of the largest node; None if the gang could not have more."""
    limit = spec.resources.memory_bytes
    most = max((node.memory_bytes for node in nodes), default=0) // MIB * MIB
    if limit is None or most <= limit:
        return None
    more = min(2 * limit, most)
    fits = why_never(replace(spec, resources=replace(spec.resources, memory_bytes=more)), nodes) is None
    return f"resources.memory={format_size(more)}" if fits else None


def _failure(
    blame: Blame, code: Code, message: str, remedy: str | None, detail: tuple[str, ...], *, setting: str | None = None
) -> Failure:
    reason = Reason(code=code, message=message, remedy=remedy, detail=detail)
    return Failure(blame=blame, reason=reason, setting=setting)
