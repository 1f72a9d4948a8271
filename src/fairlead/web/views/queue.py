"""Shows pending runs in queue order: the same as ``fairlead queue``."""

from fairlead.text.quantities import describe_need
from fairlead.web.expected_starts import outlook_of
from fairlead.web.view import Answer, Question

MOST = 200


def queue(question: Question) -> Answer:
    """List pending runs with expected starts and reasons."""
    outlook = outlook_of(question)
    rows = [
        {
            "place": place,
            "run": expected.run,
            "needs": describe_need(expected.run.spec),
            "starts_at": expected.start,
            "is_now": expected.start is not None and expected.start - question.now <= 1.0,
            "unknown": expected.unknown,
            "reason": outlook.statuses.get(expected.run.uid, expected.run.status).reason,
        }
        for place, expected in enumerate(outlook.queue[:MOST], 1)
    ]
    values = {"rows": rows, "num_waiting": len(outlook.queue), "most": MOST}
    return Answer(title="Queue", template="queue.html", values=values)
