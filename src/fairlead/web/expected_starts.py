"""Estimates starts of pending runs from the queue, at a bounded cost."""

from fairlead.errors import NotAllowed
from fairlead.policy.start_outlook import Outlook, outlook
from fairlead.state.snapshot import Snapshot
from fairlead.web.view import Question


def snapshot_of(question: Question) -> Snapshot:
    """Take a snapshot as the control loop would see it now.

    Raises:
        NotAllowed: The reader may not see the whole cluster.
    """
    return question.paced.value("snapshot", question.cluster.snapshot)


def outlook_of(question: Question) -> Outlook:
    """Return the forecast of the next decisions, the same as ``fairlead queue`` prints.

    Raises:
        NotAllowed: The reader may not see the whole cluster.
    """
    return question.paced.value("outlook", lambda: outlook(question.cluster.snapshot(), question.now))


def expected_starts(question: Question) -> dict[str, float]:
    """Return latest starts of pending runs as Unix times by uid; empty if the reader may not see the whole cluster."""
    try:
        outlook = outlook_of(question)
    except NotAllowed:
        return {}
    return {expected.run.uid: expected.start for expected in outlook.queue if expected.start is not None}
