"""Estimates starts by the queue as it looks from here, found seldom enough to be cheap."""

from fairlead.errors import NotAllowed
from fairlead.policy.queue.start_outlook import Outlook, outlook
from fairlead.state.snapshot import Snapshot
from fairlead.web.view import Question


def snapshot_of(question: Question) -> Snapshot:
    """Take a snapshot as a loop would see it now.

    Raises:
        NotAllowed: Not ours to see.
    """
    return question.paced.value("snapshot", question.cluster.snapshot)


def outlook_of(question: Question) -> Outlook:
    """The decisions that come next, as ``fairlead queue`` tells them.

    Raises:
        NotAllowed: The whole cluster is not ours to see.
    """
    return question.paced.value("outlook", lambda: outlook(question.cluster.snapshot(), question.now))


def expected_starts(question: Question) -> dict[str, float]:
    """Latest starts as Unix times, by uid, of runs that wait; nothing where the whole cluster is not ours to see."""
    try:
        told = outlook_of(question)
    except NotAllowed:
        return {}
    return {each.run.uid: each.start for each in told.queue if each.start is not None}
