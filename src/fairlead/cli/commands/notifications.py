"""``fairlead notifications``: list the destinations of notifications, and try them."""

import os
import time
from typing import TYPE_CHECKING

import click

from fairlead.cli.show import as_json, message, table
from fairlead.cluster.local.home import Home
from fairlead.control.notifications.local import destinations_in_force, read_record, read_secret
from fairlead.control.notifications.topics import RunNotice, Topic
from fairlead.control.notifications.transports import Undeliverable, deliver
from fairlead.errors import ClusterError, NotFound

if TYPE_CHECKING:
    from fairlead.control.notifications.destinations import Destination


@click.command()
@click.option(
    "--test", "name", metavar="NAME", help="Send a test message to this destination, and wait for its answer."
)
@click.option("--json", "json_", is_flag=True, help="Print the destinations as JSON.")
def notifications(name: str | None, json_: bool) -> int:
    """List the destinations of notifications of this machine, in `notifications.yaml` of the state directory."""
    home = Home.open()
    reading = destinations_in_force(home)
    if reading.problem is not None:
        raise ClusterError(reading.problem)
    if not reading.value:
        message(f"There are no destinations; {home.notifications} lists them, see docs/notifications.md.")
        return 0
    if name is not None:
        chosen = next((destination for destination in reading.value if destination.name == name), None)
        if chosen is None:
            names = ", ".join(destination.name for destination in reading.value)
            raise NotFound(f"There is no destination {name!r} in {home.notifications}; it has {names}.")
        return _try(chosen)
    boxes = read_record(home).outboxes
    rows: list[dict[str, str | int | list[str]]] = []
    for destination in reading.value:
        box = boxes.get(destination.name)
        rows.append(
            {
                "name": destination.name,
                "by": type(destination.transport).__name__.lower().removeprefix("shell"),
                "events": sorted(topic.value for topic in destination.topics),
                "sent": 0 if box is None else box.num_sent,
                "waiting": 0 if box is None else len(box.waiting),
                "given_up": 0 if box is None else box.num_given_up,
                "problem": "" if box is None else box.problem,
            }
        )
    if json_:
        print(as_json(rows))
        return 0
    print(table([tuple(key.upper().replace("_", " ") for key in rows[0]), *map(_cells, rows)]))
    return 0


def _cells(row: dict[str, str | int | list[str]]) -> tuple[str, ...]:
    return tuple(", ".join(value) if isinstance(value, list) else str(value or "-") for value in row.values())


def _try(destination: "Destination") -> int:
    now = time.time()
    notice = RunNotice(
        id=f"test-{now:.3f}", at=now, topic=Topic.TEST, type="Test", run="notifications", team="default", kind="Test",
        uid="", message=f"{destination.name} gets notifications of Fairlead.",
    )  # fmt: skip
    try:
        deliver(destination, (notice,), omitted=0, secrets=read_secret, environ=os.environ)
    except Undeliverable as error:
        raise ClusterError(f"{destination.name}: {error}.") from error
    message(f"{destination.name} accepted a test message.")
    return 0
