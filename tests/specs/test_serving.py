"""Endpoints as files: the example that is there, and what cannot be."""

import json

import pytest

from fairlead.errors import InvalidSpec
from fairlead.specs.formats.reading import load_file, parse
from fairlead.specs.formats.serialization import from_json, to_json
from fairlead.specs.serving import PREDICTOR_PROBE, PREDICTOR_SERVER, Batching, Scale, Serving
from tests.docs.examples import ROOT


def test_the_example_serves_what_the_other_example_trained() -> None:
    (serving,) = load_file(ROOT / "examples" / "serve.yaml")
    (trained,) = load_file(ROOT / "examples" / "language_model.yaml")
    assert isinstance(serving, Serving)
    assert serving.model == f"run://{trained.name}@latest"
    module = str(serving.predictor).partition(":")[0]
    assert (ROOT / "examples" / f"{module}.py").is_file()


def test_a_replica_with_a_predictor_runs_our_server_and_asks_its_protocol() -> None:
    replica = Serving(name="chat", predictor="predict:Classifier").replica("r2")
    assert (replica.run, replica.probe, replica.revision) == (PREDICTOR_SERVER, PREDICTOR_PROBE, "r2")
    assert from_json(to_json(replica)) == replica


def test_what_is_stored_of_an_endpoint_is_read_where_the_defaults_of_what_it_does_not_use_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = to_json(Serving(name="chat", run="serve $PORT"))
    for settings, attribute, default in ((Batching, "max_batch_size", 64), (Scale, "concurrency", 8.0)):
        defaults = settings.__init__.__kwdefaults__ or {}
        monkeypatch.setattr(settings.__init__, "__kwdefaults__", {**defaults, attribute: default})
    spec = from_json(stored)
    assert isinstance(spec, Serving)
    assert (spec.batching.max_batch_size, spec.scale.concurrency) == (64, 8.0)


def test_what_is_stored_of_an_endpoint_keeps_the_defaults_of_what_it_uses() -> None:
    stored = json.loads(to_json(Serving(name="chat", predictor="predict:Classifier", replicas=0, most_replicas=2)))
    assert stored["batching"] == {"max_batch_size": 32, "max_latency_s": 0.05}
    assert stored["scale"] == {
        "by": None, "cpu": None, "external_metric": None, "replicas": None,
        "concurrency": 4.0, "latency_s": None, "first_token_s": None, "per_token_s": None, "queue": None,
        "prometheus": None, "schedule": {}, "shed": True, "window_s": 60.0, "idle_s": 300.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("{}", "run: missing; give the command of a server, or `predictor`"),
        ("{run: a, predictor: 'b:C'}", "it is either a command (`run`) or a predictor, not both"),
        ("{run: a, batching: 8}", "batching: it is for a `predictor`"),
        ("{run: a, replicas: 0}", "replicas: 0 would never serve"),
        ("{run: a, replicas: 2, scale: 8}", "scale: the number of replicas is always 2"),
        ("{run: a, env: {PORT: 1}}", 'env: "PORT" is set for each replica'),
        ("{run: a, env: {FAIRLEAD_MODEL: 1}}", 'env: "FAIRLEAD_MODEL" is set for each replica'),
        (
            "{run: a, replicas: 1..3, scale: {latency: 500}}",
            "scale: `latency` is 8m20s, and by `timeout` every request is over after 1m; give less",
        ),
        ("{run: a, canary: {latency: 2m}}", "canary: `latency` is 2m, and by `timeout` every request is over after"),
        (
            "{run: a, canary: {metric: {header: X-Score, above: 1, below: 0.5}}}",
            "which say when its number is bad, there are both; give one",
        ),
        (
            "{run: a, replicas: 1..3, scale: {latency: 2s, time_to_first_token: 1s}}",
            "by `latency` or by `time_to_first_token`, not by both; remove one",
        ),
        (
            "{run: a, replicas: 1..3, scale: {concurrency: 2, time_per_token: 50ms, window: 90s}}",
            "`time_per_token` always uses the last 15 minutes",
        ),
        (
            "{run: a, replicas: 1..3, max_concurrency: 2, scale: {queue: 5, time_per_token: 50ms}}",
            "by `time_per_token` or by `queue`, not by both; remove one",
        ),
        (
            "{run: a, replicas: 1..3, scale: {time_to_first_token: 2m}}",
            "scale: `time_to_first_token` is 2m, and by `timeout` every request is over after 1m; give less",
        ),
        ("{run: a, replicas: 1..3, engine: knative, scale: {time_per_token: 50ms}}", "no gateway counts tokens"),
        ("{run: a, replicas: 1..3, scale: {queue: 5}}", "without `max_concurrency` none does; give that too"),
        (
            "{run: a, replicas: 1..3, max_concurrency: 2, scale: {queue: 5, concurrency: 2}}",
            "by `concurrency` or by `queue`, not by both",
        ),
        (
            "{run: a, replicas: 1..3, scale: {schedule: {day: {cron: '0 8 * * *', duration: 1h, replicas: 4}}}}",
            "`schedule.day` has 4 replicas, and there are 1 to 3; give 2 to 3",
        ),
        (
            "{run: a, replicas: 1..3, scale: {schedule: {day: {cron: '0 25 * * *', duration: 1h, replicas: 2}}}}",
            "has an hour of `25`; give 0 to 23",
        ),
        ("{run: a, probe: health}", 'probe: "health" is not a path'),
        ("{predictor: module}", "is not a predictor; give its module and its class"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(keys: str, says: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        parse(f"{{kind: Serving, name: chat, {keys[1:]}" if keys != "{}" else "{kind: Serving, name: chat}")
    assert any(says in problem for problem in refused.value.problems), refused.value.problems


def test_a_name_leaves_room_for_those_of_replicas() -> None:
    with pytest.raises(InvalidSpec, match="36 characters; give at most 35"):
        parse(f"{{kind: Serving, name: {'a' * 36}, run: a}}")
