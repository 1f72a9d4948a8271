"""What has become of a pod, from the pod as it was last seen."""

from dataclasses import replace

from fairlead.cluster.kubernetes.api.objects import PodObject, ResourceAmounts, read_node
from fairlead.cluster.kubernetes.informers.pod_status import (
    MOUNT_PATIENCE_S,
    LastWord,
    is_hopeless,
    observe_pod,
    remembering,
)
from fairlead.state.snapshot import Pod, PodPhase, Silence
from tests.kubernetes.builders import a_creation

INITIALIZING = ("PodInitializing", "")
PULLING = ("ErrImagePull", "dial tcp 127.0.0.1:1: connect: connection refused")
POD = PodObject(
    key="team/train-0-0", version=1, uid="u", phase="Pending", node="node-a", requests=ResourceAmounts(),
    created_at=0.0, run_uid="r", image="example.com/none:7", waiting=PULLING,
)  # fmt: skip


def test_why_a_pod_could_not_start_is_told_also_after_kubelet_takes_it_back() -> None:
    told = replace(POD, told_at=60.0, waiting=INITIALIZING)
    seen = observe_pod(remembering(POD, told), a_creation(), ranks=range(1), told_at=None, node=None, gone=True)
    assert seen.phase is PodPhase.FAILED
    assert str(seen.message).startswith("the image example.com/none:7 cannot be pulled on node-a: dial tcp")


def test_what_was_mended_before_the_pod_was_told_to_go_is_forgotten() -> None:
    mended = replace(POD, waiting=INITIALIZING)
    assert remembering(POD, mended) == mended
    told = replace(mended, told_at=60.0)
    assert remembering(mended, told) == told


def test_the_trouble_of_another_pod_of_that_name_is_not_taken_over() -> None:
    other = replace(POD, uid="other", told_at=60.0, waiting=INITIALIZING)
    assert remembering(POD, other) == other
    assert remembering(None, other) == other


def test_a_pod_that_cannot_start_says_why_and_whether_that_is_tried_again() -> None:
    node = read_node({"metadata": {"name": "node-a", "resourceVersion": "1"}, "spec": {}, "status": {}})
    pod = observe_pod(POD, a_creation(), ranks=range(1), told_at=None, node=node, gone=False)
    assert pod.phase is PodPhase.STARTING
    assert str(pod.message).endswith("; kubelet retries for 60 s in all")
    hopeless = replace(POD, waiting=("ErrImagePull", "manifest unknown"))
    assert "again" not in str(
        observe_pod(hopeless, a_creation(), ranks=range(1), told_at=None, node=node, gone=False).message
    )
    assert [is_hopeless(each, now=5.0) for each in (POD, hopeless)] == [False, True]
    assert is_hopeless(POD, now=61.0)


def test_a_container_runtime_that_went_away_is_tried_again_and_no_fault_of_the_program() -> None:
    words = "error reading from server: EOF"
    away = replace(POD, waiting=("CreateContainerError", words))
    assert seen(away).message == (
        f"the container runtime of node-a did not answer: {words}; kubelet retries for 60 s in all"
    )
    assert [is_hopeless(away, now=at) for at in (59.0, 61.0)] == [False, True]
    told = replace(away, told_at=61.0)
    lost = observe_pod(told, a_creation(), ranks=range(1), told_at=None, node=None, gone=True)
    assert (lost.phase, lost.message) == (PodPhase.LOST, f"the container runtime of node-a did not answer: {words}")
    wrong = replace(POD, waiting=("CreateContainerError", 'exec: "python3": executable file not found in $PATH'))
    assert is_hopeless(wrong, now=1.0)


MOUNT = ("FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "nope" not found')
UNMOUNTED = replace(POD, waiting=("ContainerCreating", ""))


def hindered(asked_at: float) -> PodObject:
    return LastWord(pod_uid="u", words=MOUNT, asked_at=asked_at).applied(UNMOUNTED)


def test_a_pod_whose_volume_cannot_be_mounted_is_taken_back_when_that_is_still_so_at_the_end_of_our_patience() -> None:
    assert not is_hopeless(hindered(MOUNT_PATIENCE_S - 1.0), now=2 * MOUNT_PATIENCE_S)
    assert is_hopeless(hindered(MOUNT_PATIENCE_S), now=MOUNT_PATIENCE_S)
    assert not is_hopeless(replace(hindered(MOUNT_PATIENCE_S), started_at=500.0), now=MOUNT_PATIENCE_S)
    assert not is_hopeless(UNMOUNTED, now=2 * MOUNT_PATIENCE_S)


def seen(pod: PodObject, *, ready: bool = True) -> Pod:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    node = read_node({"metadata": {"name": "node-a", "resourceVersion": "1"}, "status": {"conditions": conditions}})
    return observe_pod(pod, a_creation(), ranks=range(1), told_at=None, node=node, gone=False)


def heard(words: tuple[str, str] | None, *, told_at: float | None, asked_at: float) -> PodObject:
    return LastWord(pod_uid="u", words=words, told_at=told_at, asked_at=asked_at).applied(UNMOUNTED)


def test_a_bound_pod_is_silent_from_the_last_word_of_its_kubelet_up_to_when_that_was_asked_for() -> None:
    assert seen(UNMOUNTED).silence == Silence(since=0.0, until=0.0, what="its kubelet says nothing of it")
    created = heard(("Created", "Created container: ranks"), told_at=30.0, asked_at=90.0)
    what = "its kubelet said last 'Created: Created container: ranks'"
    assert seen(created).silence == Silence(since=30.0, until=90.0, what=what)
    nothing = heard(None, told_at=None, asked_at=90.0)
    assert seen(nothing).silence == Silence(since=0.0, until=90.0, what="its kubelet says nothing of it")
    assert seen(created).message is None


def test_a_pod_without_a_node_is_silent_for_as_long_as_kube_scheduler_does_not_bind_it() -> None:
    silence = seen(replace(UNMOUNTED, node="")).silence
    assert silence == Silence(since=0.0, what="kube-scheduler has not bound it to its node")


def test_a_pod_that_waits_for_something_known_is_not_silent() -> None:
    pulling = heard(("Pulling", 'Pulling image "none:7"'), told_at=5.0, asked_at=700.0)
    assert seen(pulling).silence is None
    assert seen(pulling).message == "its image example.com/none:7 is being pulled on node-a"
    assert seen(replace(pulling, asked_at=20.0)).message is None, "most images take a while"
    for known in (
        POD, hindered(60.0), replace(UNMOUNTED, is_busy=True), replace(UNMOUNTED, told_at=9.0),
        replace(UNMOUNTED, started_at=9.0), replace(UNMOUNTED, phase="Failed"),
    ):  # fmt: skip
        assert seen(known).silence is None


def test_a_pod_whose_node_is_not_ready_says_so_at_once() -> None:
    assert seen(UNMOUNTED, ready=False).message == "node node-a is not ready: its kubelet does not answer"


def test_what_hindered_a_pod_that_was_taken_back_is_told_of_the_lost_pod() -> None:
    told = replace(UNMOUNTED, told_at=601.0)
    for asked_at, end in ((600.0, "; after 10 min its place is given to others"), (300.0, "")):
        pod = remembering(hindered(asked_at), told)
        seen = observe_pod(pod, a_creation(), ranks=range(1), told_at=None, node=None, gone=True)
        assert (seen.phase, seen.message) == (
            PodPhase.LOST,
            f"a volume cannot be mounted on node-a: {MOUNT[1]}; create what it refers to, or correct the name under "
            f"`kubernetes`{end}",
        )
    started = replace(told, started_at=600.5)
    assert remembering(hindered(600.0), started) == started


def test_what_hinders_one_pod_is_not_said_of_another() -> None:
    other = replace(UNMOUNTED, uid="other")
    assert LastWord(pod_uid="u", words=MOUNT, asked_at=1.0).applied(other) == other
