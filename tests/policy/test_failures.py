"""Who is to blame, and which rank was first."""

import signal
from dataclasses import replace

import pytest

from fairlead.policy.health.incidents import failed_on, with_incident
from fairlead.policy.kinds.failures import NO_PLACE, Blame, Failure, diagnose
from fairlead.runtime.shim import OWN_SIGNAL
from fairlead.specs.resources import Resources
from fairlead.specs.training import Launch, Training
from fairlead.state.plan import Change
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Grant, Intent, Node, Phase, Pod, PodPhase, Progress, RankExit, Workload
from tests.builders import status

NODE = Node(name="localhost", cpu_milli=4000, memory_bytes=8 * 1024**3)
GIB = 1024**3
SPEC = Training(name="train", run="python train.py", nodes=1, ranks_per_node=2)


def exited(
    rank: int, at: float = 10.0, *, code: int | None = None, by: int | None = None, oom: bool = False,
    tail: tuple[str, ...] = (),
) -> RankExit:  # fmt: skip
    return RankExit(rank=rank, at=at, exit_code=code, signal=by, out_of_memory=oom, tail=tail)


def gang(*exits: RankExit, phase: PodPhase = PodPhase.FAILED, index: int = 0) -> Pod:
    return Pod(
        uid=f"w-0-{index}",
        workload_uid="w",
        attempt=0,
        index=index,
        node="localhost",
        grant=Grant(),
        phase=phase,
        created_at=0.0,
        started_at=10.0,
        active_at=40.0,
        exits=exits,
    )


def diagnosed(*pods: Pod, spec: Training = SPEC, progress: Progress | None = None, now: float = 100.0) -> Failure:
    failure = diagnose(spec, pods, (NODE,), progress, now)
    assert failure is not None
    return failure


def test_nothing_is_wrong_with_a_gang_that_ended_well() -> None:
    well = gang(exited(0, code=0), exited(1, code=0), phase=PodPhase.SUCCEEDED)
    assert diagnose(SPEC, (well,), (NODE,), None, 1.0) is None


def test_the_first_error_is_the_cause() -> None:
    failure = diagnosed(gang(exited(1, 10.0, code=1), exited(0, 10.1, by=signal.SIGTERM)))
    assert (failure.blame, failure.reason.code) == (Blame.PROGRAM, Code.PROGRAM_FAILED)
    assert failure.reason.message == "rank 1 of 2 failed with exit code 1"


def test_a_script_that_signals_its_own_group_has_failed_by_itself() -> None:
    tail = (f"fairlead: {OWN_SIGNAL}",)
    failure = diagnosed(gang(exited(0, by=signal.SIGTERM, tail=tail)))
    assert (failure.blame, failure.reason.code) == (Blame.PROGRAM, Code.PROGRAM_FAILED)
    assert "which a process of its own group sent to all of it" in failure.reason.message
    assert diagnosed(gang(exited(0, by=signal.SIGTERM))).blame is Blame.INFRASTRUCTURE


def test_the_only_line_of_a_rank_is_told_once() -> None:
    failure = diagnosed(gang(exited(0, code=1, tail=("fairlead: step b failed", ""))))
    assert failure.reason.message == "rank 0 of 2 failed with exit code 1: fairlead: step b failed"
    assert failure.reason.detail == ()
    several = diagnosed(gang(exited(0, code=1, tail=("Traceback:", "ValueError: x"))))
    assert several.reason.message == "rank 0 of 2 failed with exit code 1: ValueError: x"
    assert several.reason.detail == ("Traceback:", "ValueError: x")


def test_what_a_server_of_a_predictor_says_for_programs_is_told_as_a_sentence() -> None:
    said = '{"fairlead": "serving", "failed": "there is no module \'model\'"}'
    failure = diagnosed(gang(replace(exited(0, code=1), tail=("starting", said))))
    assert failure.reason.message == "rank 0 of 2 failed with exit code 1: there is no module 'model'"
    assert failure.reason.detail == ("starting", "there is no module 'model'")
    cut = diagnosed(gang(replace(exited(0, code=1), tail=(said[:-3],))))
    assert cut.reason.message == f"rank 0 of 2 failed with exit code 1: {said[:-3]}"


def test_a_kill_explains_the_error_that_its_peer_reported_at_the_same_moment() -> None:
    failure = diagnosed(gang(exited(1, 10.0, code=1), exited(0, 10.01, by=signal.SIGKILL)))
    assert (failure.blame, failure.reason.code) == (Blame.INFRASTRUCTURE, Code.KILLED)


def test_our_own_kill_long_after_the_error_explains_nothing() -> None:
    failure = diagnosed(gang(exited(1, 10.0, code=1), exited(0, 12.0, by=signal.SIGKILL)))
    assert failure.blame is Blame.PROGRAM


def test_a_crash_is_the_programs_own() -> None:
    failure = diagnosed(gang(exited(0, by=signal.SIGSEGV)), progress=Progress(step=41))
    assert failure.reason.message == "rank 0 of 2 crashed with SIGSEGV after step 41"


def test_a_loss_that_was_not_finite_is_named_with_its_step() -> None:
    tail = ("Traceback", "fairlead.runtime.errors.LossNotFinite: the loss is not finite at step 41: -inf")
    failure = diagnosed(gang(exited(0, code=1, tail=tail)), progress=Progress(step=41))
    assert (failure.blame, failure.reason.code) == (Blame.PROGRAM, Code.LOSS_NOT_FINITE)
    assert failure.reason.message == "the loss is not finite at step 41: -inf, reported by rank 0 of 2 after step 41"
    assert "`terminate_on_nan: false`" in str(failure.remedy("train", is_over=True))


def test_ranks_that_could_not_go_on_in_place_are_no_mistake_of_the_program() -> None:
    tail = ("Traceback", "fairlead.runtime.errors.ReformFailed: the ranks did not come together within 60 s")
    failure = diagnosed(gang(exited(0, code=1, tail=tail)), progress=Progress(step=41))
    assert failure.blame is Blame.INFRASTRUCTURE
    assert failure.reason.message == (
        "rank 0 of 2 could not go on in place after step 41: the ranks did not come together within 60 s"
    )


def test_out_of_memory_is_named_with_the_limit_and_the_remedy() -> None:
    spec = Training(name="train", run="x", resources=Resources(memory_bytes=512 * 1024**2))
    failure = diagnosed(gang(exited(0, by=signal.SIGKILL, oom=True)), spec=spec)
    assert (failure.blame, failure.reason.code) == (Blame.INFRASTRUCTURE, Code.OUT_OF_MEMORY)
    assert "more than its limit of 512 MiB" in failure.reason.message
    more = "`fairlead resume train --set resources.memory=1Gi` gives it more. Otherwise make the program smaller"
    assert str(failure.remedy("train", is_over=True)).startswith(more)
    suspended = f"`fairlead suspend train`, then {more.replace('1Gi` ', '1Gi`, ')}"
    assert str(failure.remedy("train", is_over=False)).startswith(suspended)


def test_more_memory_than_any_node_has_is_no_remedy() -> None:
    for asked, more in ((3 * GIB, "6Gi"), (5 * GIB, "8Gi"), (8 * GIB, None)):
        spec = Training(name="train", run="x", resources=Resources(memory_bytes=asked))
        failure = diagnosed(gang(exited(0, by=signal.SIGKILL, oom=True)), spec=spec)
        assert failure.setting == (more and f"resources.memory={more}")
        assert "--set" not in str(failure.reason.remedy)


def test_a_lost_pod_explains_whatever_its_peers_report() -> None:
    lost, peer = gang(phase=PodPhase.LOST, index=0), gang(exited(1, code=1), index=1)
    assert diagnosed(lost, peer).reason.code is Code.POD_LOST


def test_a_node_that_had_no_place_for_a_pod_is_avoided_and_nothing_is_said_against_it() -> None:
    refused = replace(gang(phase=PodPhase.LOST), message=f"{NO_PLACE} on the node that had room: 1 cannot allocate")
    failure = diagnosed(refused)
    assert (failure.reason.code, failure.nodes, failure.is_refusal) == (Code.POD_LOST, ("localhost",), True)
    run = Workload(uid="w", spec=SPEC, intent=Intent.RUN, status=status(Phase.STARTING), version=1, created_at=0.0)
    change = Change(workload_uid="w", version=1)
    assert with_incident(change, run, failure, (refused,), 5.0, progressed=True).incident is None
    assert failed_on(run, failure, (refused,), progressed=False) == ()
    assert diagnosed(gang(phase=PodPhase.LOST)).nodes == ()


def test_silence_for_the_stall_timeout_is_a_hang_and_not_a_moment_before() -> None:
    spec = Training(name="train", run="x", stall_timeout_s=60.0)
    pod = gang(phase=PodPhase.RUNNING)
    assert diagnose(spec, (pod,), (NODE,), None, 99.9) is None
    assert diagnosed(pod, spec=spec, now=100.0).reason.code is Code.STALLED


def test_silence_counts_up_to_the_last_answer() -> None:
    spec = Training(name="train", run="x", stall_timeout_s=60.0)
    asked_early, asked_late = (replace(gang(phase=PodPhase.RUNNING), heard_at=at) for at in (40.0, 105.0))
    assert diagnose(spec, (asked_early,), (NODE,), None, 1000.0) is None
    assert "no progress for 1m 5s; `stall_timeout`" in diagnosed(asked_late, spec=spec, now=1000.0).reason.message
    two = replace(spec, ranks_per_node=2)
    assert "no progress for 1m 5s on any of 2 ranks; " in diagnosed(asked_late, spec=two, now=1000.0).reason.message


def test_a_directory_that_vanished_is_never_a_matter_of_the_path() -> None:
    said = "fairlead: the working directory /w cannot be entered: No such file or directory"
    ended = RankExit(rank=0, at=10.0, exit_code=126, signal=None, tail=(said,))
    remedy = diagnosed(gang(ended)).reason.remedy
    assert remedy is not None
    assert remedy.startswith("Put the directory back")


@pytest.mark.parametrize(
    "last",
    [
        "KeyError: 'LOCAL_RANK'",
        '  File "comm.py", line 917, in mpi_discovery\n    from mpi4py import MPI\n'
        "ModuleNotFoundError: No module named 'mpi4py'",
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK "
        "expected, but not set",
    ],
)
def test_a_lone_rank_that_misses_torchruns_variables_is_told_how_to_get_them(last: str) -> None:
    exit_ = replace(exited(0, code=1), tail=("Traceback (most recent call last):", *last.splitlines()))
    lone = Training(name="train", run="x", ranks_per_node=1)
    assert "add `launch: torchrun`" in str(diagnosed(gang(exit_), spec=lone).reason.remedy)
    for spec in (SPEC, replace(lone, launch=Launch.TORCHRUN)):
        assert "launch: torchrun" not in str(diagnosed(gang(exit_), spec=spec).reason.remedy)
