"""Decides whether and when a failed gang is restarted.

The program's own failures are counted over the whole life of the run. Failures of the platform are counted in a row and
reset by progress, so that a run on unreliable machines continues as long as it advances, and one that is killed at the
same point each time ends. Progress is what a run has saved, or what it has reported if it saves nothing. Time counts as
progress only before the loss of a pod or a node, which is independent of the program: kills, a lack of memory and hangs
may be caused by it however late, and end a run without reports once they are too many.

A refusal of pods by a quota is no failure: the gang is retried indefinitely, and nothing is counted.

See decision 241.
"""

from fairlead.frozen import dataclass
from fairlead.policy.kinds.failures import Blame, Failure
from fairlead.specs.training import Training
from fairlead.state.reasons import Code
from fairlead.state.snapshot import Phase, Progress, Status, Workload
from fairlead.text.quantities import plural

# A place that held a run for this long was not bad; a run that is lost sooner, repeatedly, finds no place to run.
PRODUCTIVE_S = 60.0
OF_PLACES = frozenset({Code.POD_LOST, Code.NODE_LOST})
# A start that failed after this long has held its places in vain; the obstacle, such as a volume that cannot be
# mounted, usually needs a person, and other runs go first meanwhile.
IN_VAIN_S = 300.0
# A program that ends at once with an exit code such as 137, so often in a row, is not killed by chance.
AT_ONCE_S = 5.0
MOST_AT_ONCE = 3
# A try costs the API server two requests per pod, and tries are unlimited: `retry` may only ask for longer waits.
REFUSED_FIRST_S, REFUSED_MOST_S = 1.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A restart not before ``at``, with updated counters."""

    at: float
    program_failures: int
    disruptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """A decision against a restart with its reason, with updated counters."""

    why: str
    program_failures: int
    disruptions: int


def retry(spec: Training, status: Status, failure: Failure, progress: Progress | None, now: float) -> Again | GiveUp:
    """Return the consequence of a failure."""
    program, disruptions = status.failures.program, status.failures.disruptions
    productive = _productive(status, failure, progress, now)
    if failure.blame is Blame.PROGRAM:
        program += 1
        if program > spec.retry.program:
            budget = spec.retry.program
            why = (
                f"it was retried {plural(budget, 'time')}, as `retry` allows" if budget else "`retry` allows no restart"
            )
            return GiveUp(why=why, program_failures=program, disruptions=disruptions)
        return Again(at=now + backoff_s(spec, program), program_failures=program, disruptions=disruptions)
    disruptions = 1 if productive else disruptions + 1
    again = status.failures.last is not None and status.failures.last.code is failure.reason.code
    if failure.reason.code is Code.OUT_OF_MEMORY and again and not productive:
        why = "it ran out of memory twice without progress, and would again"
        return GiveUp(why=why, program_failures=program, disruptions=disruptions)
    is_at_once = status.phase is Phase.RUNNING and now - status.since < AT_ONCE_S
    if failure.is_exit_code and again and is_at_once and disruptions >= MOST_AT_ONCE:
        why = f"it ended so {disruptions} times in a row, this time at once, and would again"
        return GiveUp(why=why, program_failures=program, disruptions=disruptions)
    if disruptions > spec.retry.infrastructure:
        why = f"{plural(disruptions, 'failure')} in a row without reported progress, `retry.infrastructure` allows "
        return GiveUp(why=f"{why}{spec.retry.infrastructure}", program_failures=program, disruptions=disruptions)
    # The first restart after progress is immediate: waiting gains nothing.
    wait = 0.0 if disruptions == 1 else backoff_s(spec, disruptions - 1)
    # Other nodes may do better at once, but not repeatedly.
    elsewhere = failure.nodes and not status.failures.avoided_nodes
    if status.phase is Phase.STARTING and now - status.since >= IN_VAIN_S and not elsewhere:
        wait = spec.retry.max_backoff_s
    return Again(at=now + wait, program_failures=program, disruptions=disruptions)


def longest_wait_s(spec: Training) -> float:
    """Return the longest time between two tries of a gang that a quota refuses."""
    return max(spec.retry.max_backoff_s, REFUSED_MOST_S)


def retry_refused(workload: Workload, now: float) -> float:
    """Return when a gang that a quota refused again is retried.

    The time is spread over the second half of the wait, so that two gangs that each took what the other lacked do not
    collide again and again.
    """
    spec, status = workload.spec, workload.status
    wait_s = max(spec.retry.backoff_s, REFUSED_FIRST_S) * 2.0 ** min(status.failures.refusals, 30)
    import hashlib  # only for a run that failed; it loads OpenSSL

    drawn = hashlib.blake2b(f"{workload.uid}-{status.attempt}".encode(), digest_size=4).digest()
    share = int.from_bytes(drawn) / 2**32
    return now + min(wait_s, longest_wait_s(spec)) * (1 + share) / 2


def _productive(status: Status, failure: Failure, progress: Progress | None, now: float) -> bool:
    """Return whether the failed start got further than earlier ones, or its end was independent of the program."""
    if status.failures.last is None:
        return True
    lasted_s = now - status.since if status.phase is Phase.RUNNING else 0.0
    if failure.reason.code in OF_PLACES and lasted_s >= PRODUCTIVE_S:
        return True
    if progress is None or progress.step is None:
        return False
    saved = [step for step in (progress.checkpoint_step, progress.memory_step) if step is not None]
    reached = max(saved, default=progress.step)
    return status.failures.step is None or reached > status.failures.step


def backoff_s(spec: Training, count: int) -> float:
    """Return the wait before another try after so many failures in a row."""
    return float(min(spec.retry.max_backoff_s, spec.retry.backoff_s * 2.0 ** min(count - 1, 30)))
