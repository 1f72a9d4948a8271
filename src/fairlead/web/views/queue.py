"""Shows pending runs in queue order: the same as ``fairlead queue``."""

from fairlead.text.quantities import describe_need
from fairlead.web.expected_starts import outlook_of
from fairlead.web.view import Answer, Question

MOST = 200


def queue(question: Question) -> Answer:
    """List pending runs with expected starts and reasons."""
    told = outlook_of(question)
    rows = [
        {
            "place": place,
            "run": each.run,
            "needs": describe_need(each.run.spec),
            "starts_at": each.start,
            "is_now": each.start is not None and each.start - question.now <= 1.0,
            "unknown": each.unknown,
            "reason": told.statuses.get(each.run.uid, each.run.status).reason,
        }
        for place, each in enumerate(told.queue[:MOST], 1)
    ]
    values = {"rows": rows, "num_waiting": len(told.queue), "most": MOST}
    return Answer(title="Queue", template="queue.html", values=values)
