"""The ServerApp: FedAvg over updates in the order of their sites, since a sum of floats depends on its order."""

import os

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class OrderedFedAvg(FedAvg):
    """FedAvg whose sums do not depend on which site answers first."""

    def aggregate_train(self, server_round, replies):
        valid = [reply for reply in replies if not reply.has_error()]
        return super().aggregate_train(
            server_round, sorted(valid, key=lambda reply: reply.content["metrics"]["partition"])
        )


@app.main()
def main(grid: Grid, context: Context) -> None:
    sites = int(context.run_config["num-sites"])
    strategy = OrderedFedAvg(
        fraction_evaluate=0.0, min_available_nodes=sites, min_train_nodes=sites, weighted_by_key="num-examples"
    )
    arrays = ArrayRecord([np.zeros((64, 10)), np.zeros(10)])
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=int(context.run_config["num-server-rounds"]))
    np.savez(os.environ["DIGITS_RESULT"], *result.arrays.to_numpy_ndarrays())
