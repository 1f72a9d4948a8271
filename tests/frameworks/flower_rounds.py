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
        faults: What goes wrong at calls, by their number: the site that does not answer, or ``nan SITE``,
            ``shape SITE`` or ``weight SITE``. A round has two calls, the second one without messages, as nothing is
            evaluated; with a budget of privacy it has one.
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
        for message in sorted(messages, key=lambda message: message.metadata.dst_node_id):
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
            if fault == f"shape {SITES[node - 1]}":
                reply.content["arrays"] = ArrayRecord([np.zeros((64, 1)), np.zeros(10)])
            if fault == f"weight {SITES[node - 1]}":
                reply.content["metrics"]["num-examples"] = float("nan")
            replies.append(reply)
        return replies


def main(app: str, rounds: str) -> None:
    """Print the digests of parameters after rounds under several conditions, `many` after that many."""
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

    def train(
        name: str, rounds: int, least: int | None, faults: dict[int, str] | None = None, state: str = "",
        server: Any = server, **others: Any,
    ) -> None:  # fmt: skip
        Strategy.start = original
        directory = state or tempfile.mkdtemp()
        os.environ["FEDERATION_STATE"] = directory
        os.environ["FEDERATION_REPORT"] = f"{directory}/report.jsonl"
        os.environ["DIGITS_RESULT"] = f"{directory}/result.npz"
        nodes = {str(number): site for number, site in enumerate(SITES, 1)}
        Path(directory, "nodes.json").write_text(json.dumps(nodes))
        config = {"num-sites": 3, "num-server-rounds": rounds, "learning-rate": 0.1}
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config)
        settings = {
            "sites": SITES, "rounds": rounds, "min_sites": least, "deadline_s": 5.0, "sample": None, "aggregate": None,
            "privacy": None, **others,
        }  # fmt: skip
        grid = OneProcessGrid(client if least is None else wrap_client(client), faults)
        problem = None
        try:
            (server if least is None else wrap_server(server, settings))(grid, context)
        except ValueError as error:
            problem = str(error)
        lines = Path(f"{directory}/report.jsonl")
        reports = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
        result = Path(directory, "result.npz")
        digest = model = None
        if result.exists():
            with np.load(result) as stored:
                model = stored[stored.files[0]].ravel().tolist()
                digest = hashlib.sha256(b"".join(stored[key].tobytes() for key in stored.files)).hexdigest()
            result.unlink()
        events = [report["event"] for report in reports if report["event"] != "train"]
        done = [report for report in reports if report["event"] == "round"]
        results[name] = {
            "digest": digest, "events": events, "losses": [report["site_loss"] for report in done],
            "updates": [report["updates"] for report in done], "calls": grid.calls, "problem": problem,
            "left out": [(line["site"], line["problem"]) for line in reports if line["event"] == "left_out"],
            "model": model if "privacy" in others or name == "FedAvg alone" else None,
        }  # fmt: skip
        if not state:
            shutil.rmtree(directory)

    train("alone", 5, None)
    train("many", int(rounds), None)
    train("wrapped", 5, 3)
    train("one away", 5, 2, {3: "south"})
    train("too few at first", 5, 3, {3: "south"})
    train("not finite", 5, 3, {3: "nan west"})
    train("one left out", 5, 2, {3: "nan west"})
    train("wrong shape", 5, 2, {3: "shape west"})
    train("wrong weight", 5, 2, {3: "weight west"})
    directory = tempfile.mkdtemp()
    train("first three", 3, 3, state=directory)
    train("continued", 5, 3, state=directory)
    train("continued after its end", 5, 3, state=directory)
    shutil.rmtree(directory)

    train("refused", 5, 3, aggregate=["FedAdam", {}])
    train("sample", 5, 1, sample=2)
    train("sample of few", 5, 1, sample=2, server=an_app("FedAvg", min_train_nodes=3), aggregate=["FedProx", PROX])
    for name, arguments in STRATEGIES.items():
        train(f"{name} alone", 5, None, server=an_app(name, **arguments))
        train(f"{name} chosen", 5, 3, server=an_app("FedAvg"), aggregate=[name, arguments])
        train(f"{name} with its own evaluation", 5, 3, server=an_app("Evaluated"), aggregate=[name, arguments])
        directory = tempfile.mkdtemp()
        train(f"{name} begun", 3, 3, server=an_app("FedAvg"), aggregate=[name, arguments], state=directory)
        train(f"{name} continued", 5, 3, server=an_app("FedAvg"), aggregate=[name, arguments], state=directory)
        shutil.rmtree(directory)
    train("app's own FedAdam", 5, 3, server=an_app("FedAdam", eta=0.05), aggregate=["FedAdam", {}])
    train("FedAdam of that rate", 5, None, server=an_app("FedAdam", eta=0.05))
    train("trees", 5, 3, server=an_app("FedXgbBagging"), aggregate=["FedAdam", {}])

    def private(
        name: str, clip: float, noise: float, probability: float = 1.0, rounds: int = 99, **others: Any
    ) -> None:
        budget = {"clip": clip, "noise": noise, "probability": probability, "rounds": rounds}
        train(name, 5, 1, **{"server": an_app("FedAvg"), **others}, privacy=budget)

    private("hardly private", 100.0, 1e-15)
    private("one away of a private round", 100.0, 1e-15, faults={1: "south"})
    private("clipped", 1e-3, 1e-9)
    private("noisy", 1e-3, 1.0)
    private("noisy again", 1e-3, 1.0)
    private("by chance", 1e9, 1e-15, probability=0.5)
    directory = tempfile.mkdtemp()
    private("budget", 1.0, 1.0, rounds=2, state=directory)
    private("nothing left", 1.0, 1.0, rounds=2, state=directory)
    shutil.rmtree(directory)
    directory = tempfile.mkdtemp()
    Path(directory, "releases.json").write_text('{"releases": 3}')
    private("some spent", 1.0, 1.0, rounds=5, state=directory)
    shutil.rmtree(directory)
    private("own aggregation", 1.0, 1.0, server=server)
    private("median", 1.0, 1.0, server=an_app("FedMedian"))
    print(json.dumps(results))


PROX = {"proximal_mu": 0.1}
STRATEGIES: dict[str, dict[str, float]] = {
    "FedAvg": {},
    "FedProx": PROX,
    "FedAvgM": {"server_learning_rate": 0.9, "server_momentum": 0.5},
    "FedAdam": {"eta": 0.05, "tau": 0.01},
    "FedYogi": {"eta": 0.05},
    "FedAdagrad": {"eta": 0.05},
    "FedMedian": {},
    "FedTrimmedAvg": {"beta": 0.34},
    "Krum": {"num_malicious_nodes": 0},
    "MultiKrum": {"num_malicious_nodes": 0, "num_nodes_to_select": 2},
    "Bulyan": {"num_malicious_nodes": 0},
}


def an_app(name: str, **arguments: Any) -> Any:
    """A ServerApp with a strategy of Flower, or with one of its own that evaluates in another way."""
    import flwr.serverapp.strategy as strategies
    import numpy as np
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp

    class Evaluated(strategies.FedAvg):  # type: ignore[misc]
        def aggregate_evaluate(self, server_round: int, replies: Any) -> Any:
            return None

    class_ = Evaluated if name == "Evaluated" else getattr(strategies, name)
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        named = {"min_available_nodes": 3, "min_train_nodes": 3, "fraction_evaluate": 0.0, **arguments}
        np.random.seed(0)
        rounds = int(context.run_config["num-server-rounds"])
        arrays = ArrayRecord([np.zeros((64, 10)), np.zeros(10)])
        result = class_(**named).start(grid=grid, initial_arrays=arrays, num_rounds=rounds)
        np.savez(os.environ["DIGITS_RESULT"], *result.arrays.to_numpy_ndarrays())

    return app


if __name__ == "__main__":
    main(*sys.argv[1:])
