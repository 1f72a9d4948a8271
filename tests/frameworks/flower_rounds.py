"""Runs rounds of a Flower app in one process, by Flower's own strategies and apps, and prints the results.

``python flower_rounds.py APP``: the app's directory is on the path, and `fairlead_flower_app.py` beside it.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

SITES = ("north", "south", "west")


class OneProcessGrid:
    """A Grid whose nodes are calls of the ClientApp.

    Attributes:
        faults: What goes wrong at calls, by their number: the site that does not answer, or ``nan SITE``. A round has
            two calls, the second one without messages, as nothing is evaluated.
    """

    def __init__(self, client: Any, faults: dict[int, str] | None = None) -> None:
        self.calls = 0
        self._client = client
        self._faults = faults or {}

    def get_node_ids(self) -> list[int]:
        return [1, 2, 3]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        import numpy as np
        from flwr.app import ArrayRecord, Context, RecordDict

        self.calls += 1
        fault = self._faults.get(self.calls, "")
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if fault == SITES[node - 1]:
                continue
            context = Context(
                run_id=1, node_id=node, node_config={"partition-id": node - 1, "num-partitions": 3},
                state=RecordDict(), run_config={"learning-rate": 0.1},
            )  # fmt: skip
            reply = self._client(message, context)
            if fault == f"nan {SITES[node - 1]}":
                arrays = reply.content["arrays"].to_numpy_ndarrays()
                reply.content["arrays"] = ArrayRecord([np.full_like(array, np.nan) for array in arrays])
            replies.append(reply)
        return replies


def main(app: str) -> None:
    """Print the digests of parameters after rounds under several conditions."""
    sys.path[:0] = [app]
    import hashlib

    import numpy as np
    from digits.client_app import app as client
    from digits.server_app import app as server
    from fairlead_flower_app import wrap_client, wrap_server
    from flwr.app import Context, RecordDict
    from flwr.serverapp.strategy import Strategy
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    original = Strategy.start
    results = {}

    def train(name: str, rounds: int, least: int | None, faults: dict[int, str] | None = None, state: str = "") -> None:
        Strategy.start = original
        directory = state or tempfile.mkdtemp()
        os.environ["FEDERATION_STATE"] = directory
        os.environ["FEDERATION_REPORT"] = f"{directory}/report.jsonl"
        os.environ["DIGITS_RESULT"] = f"{directory}/result.npz"
        config = {"num-sites": 3, "num-server-rounds": rounds, "learning-rate": 0.1}
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
        settings = {"sites": SITES, "rounds": rounds, "min_sites": least, "deadline_s": 5.0}
        grid = OneProcessGrid(client if least is None else wrap_client(client), faults)
        (server if least is None else wrap_server(server, settings))(grid, context)
        lines = Path(f"{directory}/report.jsonl")
        reports = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        result = Path(directory, "result.npz")
        digest = None
        if result.exists():
            with np.load(result) as stored:
                digest = hashlib.sha256(b"".join(stored[key].tobytes() for key in stored.files)).hexdigest()
            result.unlink()
        events = [report["event"] for report in reports if report["event"] != "train"]
        losses = [report["site_loss"] for report in reports if report["event"] == "round"]
        results[name] = {"digest": digest, "events": events, "losses": losses, "calls": grid.calls}
        if not state:
            shutil.rmtree(directory)

    train("alone", 5, None)
    train("wrapped", 5, 3)
    train("one away", 5, 2, {3: "south"})
    train("too few at first", 5, 3, {3: "south"})
    train("not finite", 5, 3, {3: "nan west"})
    directory = tempfile.mkdtemp()
    train("first three", 3, 3, state=directory)
    train("continued", 5, 3, state=directory)
    train("continued after its end", 5, 3, state=directory)
    shutil.rmtree(directory)
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
