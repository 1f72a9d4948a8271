"""The ClientApp: five steps of gradient descent on the site's digits in each round."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits.task import load, loss_and_gradient

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()
    partition = int(context.node_config["partition-id"])
    images, digits = load(partition, int(context.node_config["num-partitions"]))
    for _ in range(5):
        loss, gradient = loss_and_gradient(weights, images, digits)
        rate = float(context.run_config["learning-rate"])
        weights = [weight - rate * slope for weight, slope in zip(weights, gradient, strict=True)]
    files = Path(str(context.node_config["data"])).iterdir() if "data" in context.node_config else ()
    num_bytes = sum(len(path.read_bytes()) for path in files)
    metrics = MetricRecord(
        {"bytes": num_bytes, "train_loss": loss, "num-examples": len(images), "partition": partition}
    )
    return Message(content=RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)
