"""Wraps the two components of a Flower app; ``wrapped_copy`` puts this file into a copy of the app.

It changes nothing of what the app computes. It sets the number of rounds, the sites that a round needs, its deadline
and, if the spec has one, another strategy of Flower where the app calls its strategy, drops updates that are not
finite, saves the model after each round, and reports rounds, losses and bytes to a file. It imports Flower alone, since
a site need not have Fairlead.

See decision 237.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import time
import traceback
from pathlib import Path
from typing import Any

MODEL = "model.npz"
STRATEGIES = "flwr.serverapp.strategy"
TRAINING = ("configure_train", "aggregate_train")
MOMENTS = ("m_t", "v_t", "momentum_vector")
"""What Flower's strategies remember from round to round beside the model: arrays by name, or a list of them."""
WAIT_S = 0.5
JOIN_WITHIN_S = 300.0
MOST_TRIES = 100


def load_component(reference: str) -> Any:
    """Return the object that ``module:attribute`` names."""
    module, _, attribute = reference.partition(":")
    value: Any = importlib.import_module(module)
    for name in attribute.split("."):
        value = getattr(value, name)
    return value


def report(**fields: Any) -> None:
    """Append one line to the report of this run, if it has one."""
    path = os.environ.get("FEDERATION_REPORT")
    if path is None:
        return
    line = json.dumps({**fields, "at": time.time()}) + "\n"
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)


def wrap_client(app: Any) -> Any:
    """Return a ClientApp that reports each loss of this site."""
    from flwr.clientapp import ClientApp

    class ReportingApp(ClientApp):  # type: ignore[misc]
        """The app's own ClientApp, with a report after each message."""

        def __call__(self, message: Any, context: Any) -> Any:
            began = time.time()
            reply = app(message, context)
            work = message.metadata.message_type.partition(".")[0]
            report(event=work, round=_round_of(message), loss=_loss_of(reply), seconds=time.time() - began)
            return reply

    return ReportingApp()


def wrap_server(app: Any, settings: dict[str, Any]) -> Any:
    """Return a ServerApp that runs the app's own under the settings of the federation."""
    from flwr.serverapp import ServerApp

    wrapper = ServerApp()

    @wrapper.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        starts = _StrategyStarts(settings)
        starts.install()
        try:
            app(grid, context)
        except BaseException as error:
            traceback.print_exc()
            report(event="failed", message=f"{type(error).__name__}: {error}")
            raise
        if starts.number == 0:
            report(event="failed", message="the ServerApp ended without calling `start` of a strategy of Flower")
            return
        report(event="finished", round=settings["rounds"])

    return wrapper


class _StrategyStarts:
    """Stands before ``Strategy.start`` of Flower, which each ServerApp calls with its strategy."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.number = 0
        self._settings = settings

    def install(self) -> None:
        from flwr.serverapp.strategy import Strategy

        original, starts = Strategy.start, self

        signature = inspect.signature(original)

        def start(*args: Any, **named: Any) -> Any:
            starts.number += 1
            arguments = dict(signature.bind(*args, **named).arguments)
            strategy, grid, arrays = arguments.pop("self"), arguments.pop("grid"), arguments.pop("initial_arrays")
            arguments.pop("num_rounds", None)
            return starts.run(original, strategy, grid, arrays, arguments)

        Strategy.start = start

    def run(self, original: Any, strategy: Any, grid: Any, arrays: Any, others: dict[str, Any]) -> Any:
        settings = self._settings
        rounds = settings["rounds"]
        if settings["deadline_s"] is not None:
            others["timeout"] = settings["deadline_s"]
        if settings["aggregate"] is not None:
            strategy = chosen_strategy(strategy, *settings["aggregate"])
        _set_sites(strategy, settings["min_sites"], settings["sample"])
        state = Path(os.environ["FEDERATION_STATE"], MODEL)
        done = 0
        if state.exists():
            done, arrays = load_round(state, strategy)
            report(event="resumed", round=done)
        _shift_rounds(strategy, done)
        evaluate = others.pop("evaluate_fn", None)
        watched = _WatchedGrid(grid, settings)

        def after_round(number: int, current: Any) -> Any:
            if number == 0 and done:
                return None
            metrics = None if evaluate is None else evaluate(number + done, current)
            if number:
                save_round(state, number + done, current, strategy)
                report(event="round", round=number + done, loss=_loss_in(metrics), **watched.finish_round())
            return metrics

        watched.wait_for_all()
        result = original(
            strategy, watched, arrays, num_rounds=max(0, rounds - done), evaluate_fn=after_round, **others
        )
        if done >= rounds:
            result.arrays = arrays
        return result


def chosen_strategy(strategy: Any, name: str, arguments: dict[str, Any]) -> Any:
    """Return a strategy of Flower's class ``name`` in place of the app's own, with the settings of that.

    A subclass of the app's stays what it is where it changes no training, such as how it evaluates.

    Raises:
        ValueError: The app's strategy trains in a way of its own.
    """
    import flwr.serverapp.strategy as strategies

    chosen, own = getattr(strategies, name), type(strategy)
    base = next(parent for parent in own.__mro__ if parent.__module__.startswith(STRATEGIES))
    refused = f"aggregate: the app's strategy {own.__name__} %s, which {name} would not do; leave `aggregate` out"
    if not issubclass(base, strategies.FedAvg) or base.__name__.startswith("FedXgb"):
        raise ValueError(refused % f"is a {base.__name__}")
    if own is not base:
        changed = [method for method in TRAINING if getattr(own, method) is not getattr(base, method)]
        if changed:
            raise ValueError(refused % f"has its own {' and '.join(changed)}")
        if base not in (strategies.FedAvg, chosen):
            raise ValueError(refused % f"is a {base.__name__}")
    combined: Any = chosen if own is base else type(own.__name__, (own, chosen), {})
    settings = vars(strategy)
    parameters = inspect.signature(chosen if isinstance(strategy, chosen) else strategies.FedAvg).parameters
    made = combined.__new__(combined)
    chosen.__init__(made, **{**{key: settings[key] for key in parameters if key in settings}, **arguments})
    for key, value in settings.items():
        vars(made).setdefault(key, value)
    return made


def _set_sites(strategy: Any, least: int, sample: int | None) -> None:
    """Set the sites that a round waits for and, with a sample, those that train in it."""
    inner = getattr(strategy, "strategy", strategy)
    for name in ("min_available_nodes", "min_train_nodes", "min_evaluate_nodes"):
        if getattr(inner, name, 0):
            setattr(inner, name, least)
    if sample is None:
        return
    if not getattr(inner, "min_train_nodes", 0):
        raise ValueError(f"sample: the app's strategy {type(inner).__name__} trains at no sampled sites; leave it out")
    configure = inner.configure_train

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        connected = len(list(grid.get_node_ids()))
        inner.fraction_train = 1e-9
        inner.min_train_nodes = max(least, min(sample, connected))
        return configure(server_round, arrays, config, grid)

    inner.configure_train = configure_train


def _shift_rounds(strategy: Any, done: int) -> None:
    """Number the rounds of a strategy that continues after those that are done."""
    if not done:
        return
    for name in ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"):
        method = getattr(strategy, name)

        def shifted(server_round: int, *args: Any, _method: Any = method) -> Any:
            return _method(server_round + done, *args)

        setattr(strategy, name, shifted)


class _WatchedGrid:
    """A Grid that drops what cannot be aggregated, and asks again until a round has the updates that it needs."""

    def __init__(self, grid: Any, settings: dict[str, Any]) -> None:
        self._grid = grid
        self._settings = settings
        self._losses: list[tuple[float, float]] = []
        self._sent = self._received = self._updates = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def wait_for_all(self) -> None:
        """Wait for all sites before the first round, at most for the deadline of a round."""
        wanted = len(self._settings["sites"])
        ends = time.monotonic() + (self._settings["deadline_s"] or JOIN_WITHIN_S)
        while len(list(self._grid.get_node_ids())) < wanted and time.monotonic() < ends:
            time.sleep(WAIT_S)

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        messages = list(messages)
        least = min(self._settings["min_sites"], len(messages))
        for _ in range(MOST_TRIES):
            replies = [self._checked(reply) for reply in self._grid.send_and_receive(messages, timeout=timeout)]
            valid = [reply for reply in replies if reply is not None and not reply.has_error()]
            self._sent += sum(_size(message) for message in messages)
            self._received += sum(_size(reply) for reply in valid)
            for reply in replies:
                if reply is not None and reply.has_error():
                    report(event="error", round=_round_of(messages[0]), message=str(reply.error.reason)[:300])
            if len(valid) >= least:
                self._note(valid)
                return [reply for reply in replies if reply is not None]
            report(event="repeated", round=_round_of(messages[0]), updates=len(valid), needed=least)
            messages = self._again(messages)
        raise RuntimeError(f"no try of {MOST_TRIES} brought the updates of {least} sites")

    def finish_round(self) -> dict[str, Any]:
        """Return the mean loss, the number of updates and the bytes of the round that is over."""
        weight = sum(count for _, count in self._losses)
        mean = sum(loss * count for loss, count in self._losses) / weight if weight else None
        figures = {"site_loss": mean, "updates": self._updates, "sent": self._sent, "received": self._received}
        self._losses, self._sent, self._received, self._updates = [], 0, 0, 0
        return figures

    def _again(self, messages: list[Any]) -> list[Any]:
        """Return the same messages to the sites that are connected, once enough of them are."""
        from flwr.app import Message

        while len(nodes := list(self._grid.get_node_ids())) < self._settings["min_sites"]:
            time.sleep(WAIT_S)
        first = messages[0]
        kind = first.metadata.message_type
        sample = self._settings["sample"]
        if sample is not None and kind.partition(".")[0] == "train":
            nodes = random.sample(nodes, min(sample, len(nodes)))
        return [Message(content=first.content, message_type=kind, dst_node_id=node) for node in nodes]

    def _checked(self, reply: Any) -> Any:
        """Return a reply; None for an update that is not finite, which would spoil every later model."""
        if reply.has_error() or all(_is_finite(record) for record in reply.content.array_records.values()):
            return reply
        report(event="not_finite", node=str(reply.metadata.src_node_id))
        return None

    def _note(self, replies: list[Any]) -> None:
        """Note the updates and losses of replies that are aggregated."""
        for reply in replies:
            self._updates += bool(reply.content.array_records)
            loss = _loss_of(reply)
            if loss is not None:
                counts = [record.get("num-examples", 1) for record in reply.content.metric_records.values()]
                self._losses.append((loss, float(counts[0])))


def _size(message: Any) -> int:
    """Return the bytes of the arrays of a message."""
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def _is_finite(record: Any) -> bool:
    import numpy

    return all(
        bool(numpy.isfinite(array).all())
        for array in record.to_numpy_ndarrays()
        if numpy.issubdtype(array.dtype, numpy.inexact)
    )


def _round_of(message: Any) -> int | None:
    for record in message.content.config_records.values():
        if "server-round" in record:
            return int(record["server-round"])
    return None


def _loss_of(message: Any) -> float | None:
    if message.has_error():
        return None
    losses = (_loss_in(record) for record in message.content.metric_records.values())
    return next((loss for loss in losses if loss is not None), None)


def _loss_in(metrics: Any) -> float | None:
    """Return the first metric of which the name holds `loss`."""
    for name, value in ({} if metrics is None else metrics).items():
        if "loss" in name.lower() and isinstance(value, int | float):
            return float(value)
    return None


def save_round(path: Path, number: int, arrays: Any, strategy: Any = None) -> None:
    """Save a model, the number of its round and the moments of its strategy, in one step."""
    import numpy

    described = [[name, array.dtype, list(array.shape), array.stype] for name, array in arrays.items()]
    contents: dict[str, Any] = {
        f"a{index}": numpy.frombuffer(array.data, numpy.uint8) for index, array in enumerate(arrays.values())
    }
    moments: dict[str, list[str] | int] = {}
    for moment in MOMENTS:
        value = getattr(strategy, moment, None)
        if value:
            moments[moment] = list(value) if isinstance(value, dict) else len(value)
            parts = value.values() if isinstance(value, dict) else value
            contents.update({f"{moment}{index}": part for index, part in enumerate(parts)})
    about = {"round": number, "arrays": described, "moments": moments}
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        numpy.savez(file, about=numpy.array(json.dumps(about)), **contents)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_round(path: Path, strategy: Any = None) -> tuple[int, Any]:
    """Return the number of the round and the model that ``save_round`` wrote; set the moments of the strategy."""
    import numpy
    from flwr.app import Array, ArrayRecord

    with numpy.load(path, allow_pickle=False) as stored:
        about = json.loads(str(stored["about"]))
        arrays = {
            name: Array(dtype=dtype, shape=tuple(shape), stype=stype, data=stored[f"a{index}"].tobytes())
            for index, (name, dtype, shape, stype) in enumerate(about["arrays"])
        }
        for moment, keys in about["moments"].items():
            number = keys if isinstance(keys, int) else len(keys)
            parts = [stored[f"{moment}{index}"] for index in range(number)]
            if hasattr(strategy, moment):
                setattr(strategy, moment, parts if isinstance(keys, int) else dict(zip(keys, parts, strict=True)))
    return int(about["round"]), ArrayRecord(arrays)
