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
import math
import os
import random
import time
import traceback
from pathlib import Path
from typing import Any

MODEL, RELEASES, NODES = "model.npz", "releases.json", "nodes.json"
MOST_WEIGHT = 1e12
NOT_FINITE, MISSHAPEN, BAD_WEIGHT, UNREADABLE = "not_finite", "misshapen", "bad_weight", "unreadable"
"""Problems for which an update is left out of its round."""
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
        report(event="finished", round=starts.reached)

    return wrapper


class _StrategyStarts:
    """Stands before ``Strategy.start`` of Flower, which each ServerApp calls with its strategy."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.number = self.reached = 0
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
        rounds = rounds - done
        if settings["privacy"] is not None:
            _refuse_whole_numbers(arrays)
            strategy = private_strategy(strategy, settings)
            rounds = max(0, min(rounds, int(settings["privacy"]["rounds"]) - releases()))
        _shift_rounds(strategy, done)
        evaluate = others.pop("evaluate_fn", None)
        watched = _WatchedGrid(grid, settings, strategy)

        def after_round(number: int, current: Any) -> Any:
            if number == 0 and done:
                return None
            metrics = None if evaluate is None else evaluate(number + done, current)
            if number:
                save_round(state, number + done, current, strategy)
                report(event="round", round=number + done, loss=_loss_in(metrics), **watched.finish_round())
            return metrics

        watched.wait_for_all()
        result = original(strategy, watched, arrays, num_rounds=max(0, rounds), evaluate_fn=after_round, **others)
        self.reached = done + max(0, rounds)
        if rounds <= 0:
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


def private_strategy(strategy: Any, settings: dict[str, Any]) -> Any:
    """Return a strategy that clips updates and adds noise, by Flower's wrapper, as the accountant assumes.

    Each site takes part in a round with a probability by itself. All updates weigh the same, and their sum is divided
    by the number that is expected (McMahan et al., arXiv:1710.06963, equation 2), so that one site changes the model by
    at most the clip over that number, also where others do not answer. Flower's mean is scaled to that. The noise is
    seeded by the operating system, whatever seed the app has set. A round counts as spent before anybody sees its
    model.

    Raises:
        ValueError: The app's strategy aggregates in a way of its own.
    """
    import numpy
    from flwr.app import Array, ArrayRecord
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

    if getattr(type(strategy), "aggregate_train", None) is not FedAvg.aggregate_train:
        raise ValueError(
            f"privacy: the app's strategy {type(strategy).__name__} aggregates in another way than FedAvg, in which "
            "one site may change the model by more than its share; give `aggregate: fedavg`, or leave `privacy` out"
        )
    privacy = settings["privacy"]
    probability = privacy["probability"]
    expected = probability * len(settings["sites"])
    aggregate, configure = strategy.aggregate_train, strategy.configure_train
    private = DifferentialPrivacyServerSideFixedClipping(strategy, privacy["noise"], privacy["clip"], expected)
    clip_and_add = private.aggregate_train

    def configure_train(server_round: int, arrays: Any, config: Any, grid: Any) -> list[Any]:
        strategy.fraction_train = 1.0
        chance = random.SystemRandom()
        messages = configure(server_round, arrays, config, grid)
        return [message for message in messages if probability >= 1 or chance.random() < probability]

    def mean_over_expected(server_round: int, replies: list[Any]) -> tuple[Any, Any]:
        current = private.current_arrays
        if not replies:
            return current, None
        for reply in replies:
            for record in reply.content.metric_records.values():
                record[strategy.weighted_by_key] = 1
        arrays, metrics = aggregate(server_round, replies)
        share = len(replies) / expected
        scaled = {}
        for name, array in arrays.items():
            old = current[name].numpy()
            scaled[name] = Array(numpy.asarray(old + share * (array.numpy() - old), old.dtype))
        return ArrayRecord(scaled), metrics

    def aggregate_train(server_round: int, replies: Any) -> tuple[Any, Any]:
        # An update that changes nothing adds nothing to the sum, and Flower would divide by its norm.
        updates = [reply for reply in replies if not reply.has_error() and not _is_same(reply, private.current_arrays)]
        spend_release()
        seeded = numpy.random.get_state()
        numpy.random.seed(numpy.frombuffer(os.urandom(32), numpy.uint32))
        try:
            return clip_and_add(server_round, updates)  # type: ignore[no-any-return]
        finally:
            numpy.random.set_state(seeded)

    strategy.configure_train, strategy.aggregate_train = configure_train, mean_over_expected
    private.aggregate_train = aggregate_train
    return private


def releases() -> int:
    """Return the number of noisy models that this federation has made, also before a restart."""
    path = Path(os.environ["FEDERATION_STATE"], RELEASES)
    return int(json.loads(path.read_text(encoding="utf-8"))["releases"]) if path.exists() else 0


def spend_release() -> None:
    """Count one more noisy model, on disk before the model is used."""
    path = Path(os.environ["FEDERATION_STATE"], RELEASES)
    partial = path.with_name(f".{path.name}")
    with partial.open("w", encoding="utf-8") as file:
        json.dump({"releases": releases() + 1}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _refuse_whole_numbers(arrays: Any) -> None:
    import numpy

    for name, array in arrays.items():
        if not numpy.issubdtype(numpy.dtype(array.dtype), numpy.floating):
            raise ValueError(
                f"privacy: the model's array {name} has type {array.dtype}, which takes no noise; keep it out of the "
                "model that the sites exchange"
            )


def _is_same(reply: Any, arrays: Any) -> bool:
    import numpy

    sent = arrays.to_numpy_ndarrays()
    return all(
        numpy.array_equal(new, old)
        for record in reply.content.array_records.values()
        for new, old in zip(record.to_numpy_ndarrays(), sent, strict=True)
    )


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

    def __init__(self, grid: Any, settings: dict[str, Any], strategy: Any) -> None:
        self._grid = grid
        self._settings = settings
        inner = getattr(strategy, "strategy", strategy)
        bases = [parent.__name__ for parent in type(inner).__mro__ if parent.__module__.startswith(STRATEGIES)]
        self._weight = getattr(inner, "weighted_by_key", None)
        self._has_trees = any(name.startswith("FedXgb") for name in bases)
        self._is_flowers = type(inner).aggregate_train.__module__.startswith(STRATEGIES)
        self._losses: list[tuple[float, float]] = []
        self._sent = self._received = self._updates = 0
        self._crossed: dict[str, list[int]] = {}

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
        if self._settings["privacy"] is not None:
            least = 0  # a round that depended on who answers would not be as the accountant assumes
            if not messages:
                return []
        for _ in range(MOST_TRIES):
            answers = list(self._grid.send_and_receive(messages, timeout=timeout))
            self._note_crossed(messages, answers)
            replies = self._checked(messages, answers)
            valid = [reply for reply in replies if not reply.has_error()]
            self._sent += sum(_size(message) for message in messages)
            self._received += sum(_size(reply) for reply in valid)
            for reply in replies:
                if reply.has_error():
                    report(event="error", round=_round_of(messages[0]), message=str(reply.error.reason)[:300])
            if len(valid) >= least:
                self._note(valid)
                return replies
            report(event="repeated", round=_round_of(messages[0]), updates=len(valid), needed=least)
            messages = self._again(messages)
        raise RuntimeError(f"no try of {MOST_TRIES} brought the updates of {least} sites")

    def finish_round(self) -> dict[str, Any]:
        """Return the mean loss, the number of updates and the bytes of the round that is over."""
        figures: dict[str, Any]
        weight = sum(count for _, count in self._losses)
        mean = sum(loss * count for loss, count in self._losses) / weight if weight else None
        figures = {
            "site_loss": mean, "updates": self._updates, "sent": self._sent, "received": self._received,
            "crossed": self._crossed,
        }  # fmt: skip
        if self._settings["privacy"] is not None:
            figures["releases"] = releases()
        self._losses, self._sent, self._received, self._updates = [], 0, 0, 0
        self._crossed = {}
        return figures

    def _note_crossed(self, messages: list[Any], answers: list[Any]) -> None:
        """Note the bytes of arrays to and from each site, also of updates that are left out or repeated."""
        sites = _sites_by_node()
        to_site = [(message.metadata.dst_node_id, _size(message), 0) for message in messages]
        from_site = [(answer.metadata.src_node_id, 0, _size(answer)) for answer in answers if not answer.has_error()]
        for node, sent, received in (*to_site, *from_site):
            site = sites.get(str(node))
            if site is not None:
                before = self._crossed.get(site, [0, 0])
                self._crossed[site] = [before[0] + sent, before[1] + received]

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

    def _checked(self, messages: list[Any], replies: list[Any]) -> list[Any]:
        """Return the replies without updates that would spoil every later model, each of which is reported."""
        shapes = _shapes_sent(messages)
        problems = [None if reply.has_error() else _problem_of(reply, shapes, self._weight) for reply in replies]
        answers = sum(not reply.has_error() for reply in replies)
        # A strategy of the app may exchange other arrays than the model, and trees grow.
        if self._has_trees or not (self._is_flowers or 0 < problems.count(MISSHAPEN) < answers):
            problems = [None if problem == MISSHAPEN else problem for problem in problems]
        for reply, problem in zip(replies, problems, strict=True):
            if problem is not None:
                site = _site_of(reply.metadata.src_node_id)
                report(event="left_out", round=_round_of(messages[0]), site=site, problem=problem)
        return [reply for reply, problem in zip(replies, problems, strict=True) if problem is None]

    def _note(self, replies: list[Any]) -> None:
        """Note the updates and losses of replies that are aggregated."""
        for reply in replies:
            self._updates += bool(reply.content.array_records)
            loss = _loss_of(reply)
            if loss is not None:
                counts = [record.get("num-examples", 1) for record in reply.content.metric_records.values()]
                is_count = isinstance(counts[0], int | float) and 0 < counts[0] <= MOST_WEIGHT
                self._losses.append((loss, float(counts[0]) if is_count else 1.0))


def _size(message: Any) -> int:
    """Return the bytes of the arrays of a message."""
    return sum(len(array.data) for record in message.content.array_records.values() for array in record.values())


def _shapes_sent(messages: list[Any]) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of the model's arrays in messages that ask for training; None for any others."""
    if not messages or messages[0].metadata.message_type.partition(".")[0] != "train":
        return None
    return {
        name: tuple(array.shape)
        for record in messages[0].content.array_records.values()
        for name, array in record.items()
    }


def _problem_of(reply: Any, shapes: dict[str, tuple[int, ...]] | None, weight: str | None) -> str | None:
    """Return why an update cannot be aggregated, one of four words; None if it can."""
    import numpy

    arrays: dict[str, Any] = {}
    for record in reply.content.array_records.values():
        try:
            arrays.update((name, array.numpy()) for name, array in record.items())
        except (ValueError, TypeError, EOFError, OSError, KeyError):
            return UNREADABLE
    for array in arrays.values():
        if numpy.issubdtype(array.dtype, numpy.inexact) and not bool(numpy.isfinite(array).all()):
            return NOT_FINITE
    if shapes is None:
        return None
    for metrics in reply.content.metric_records.values():
        value = metrics.get(weight, 1)
        if isinstance(value, int | float) and not 0 <= value <= MOST_WEIGHT:  # NaN compares as False
            return BAD_WEIGHT
    numbers = all(numpy.issubdtype(array.dtype, numpy.number) for array in arrays.values())
    return None if numbers and {name: array.shape for name, array in arrays.items()} == shapes else MISSHAPEN


def _site_of(node: int) -> str | None:
    """Return the site of a node, as the server enrolled it; None if that is unknown."""
    return _sites_by_node().get(str(node))


def _sites_by_node() -> dict[str, str]:
    path = Path(os.environ["FEDERATION_STATE"], NODES)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


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
    """Return the first finite metric of which the name holds `loss`."""
    for name, value in ({} if metrics is None else metrics).items():
        if "loss" in name.lower() and isinstance(value, int | float) and math.isfinite(value):
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
