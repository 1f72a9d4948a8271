"""Formats performance estimates of endpoints with a text server, as text and JSON."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias

from fairlead.cli.show import table
from fairlead.control.gpu_measurement import read_measured
from fairlead.control.model_config import read_json
from fairlead.control.served_requests import read_served
from fairlead.errors import Conflict, UnknownModel
from fairlead.frozen import dataclass
from fairlead.policy.serving.text_calibration import calibrate
from fairlead.policy.serving.text_capacity import ERROR, Latencies, answers, blocks_of, by_data_sheet, expert_share
from fairlead.policy.serving.text_engine import BLOCK, EngineLimits
from fairlead.policy.strategy.resolution import gpu_of
from fairlead.policy.strategy.transformer import hugging_face
from fairlead.specs.serving import Serving
from fairlead.text.quantities import plural

Config: TypeAlias = Mapping[str, Any]
# Suffixes of Hugging Face's architectures of text generation.
GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# Number of simulations of each search in a calibration.
SIMULATIONS = 200
HEADERS = ("REQUESTS/S", "TOKENS/S", "FIRST TOKEN", "EACH FURTHER")


def text_config(spec: Serving, directory: Path) -> Config | None:
    """Return the config of the local text model that an endpoint's own server uses; None without one."""
    if spec.run is None or spec.resources.gpu is None or spec.model is None or "://" in spec.model or "@" in spec.model:
        return None
    path = Path(directory, spec.workdir or ".", spec.model).expanduser() / "config.json"
    config = read_json(path) if path.is_file() else {}
    generates = any(str(architecture).endswith(GENERATES) for architecture in config.get("architectures") or ())
    return config if generates else None


def describe_text(spec: Serving, config: Config, tokens: tuple[int, int], served: Path | None) -> list[str]:
    """Describe the performance of one replica under several loads; or why there is no estimate.

    Args:
        config: Config of its model, from ``text_config``.
        tokens: Numbers of tokens of a typical request and its answer.
        served: File of requests that such a replica has served; None without one.
    """
    try:
        estimates = _estimates(spec, config, tokens, served)
    except (Conflict, UnknownModel) as error:
        return [f"{spec.name}: no estimate: {error}"]
    loads = [estimate.loads for estimate in estimates]
    rows = [
        (
            _range(speed.requests_s for speed in load),
            _range(speed.tokens_s for speed in load),
            f"{_range(1e3 * speed.first_s for speed in load)} ms",
            f"{_range(1e3 * speed.further_s for speed in load)} ms",
        )
        for load in zip(*loads, strict=True)
    ]
    (prompt, answer), engine = tokens, estimates[0].engine
    memory = "" if engine.blocks is None else f", {engine.blocks * BLOCK} tokens in memory"
    by = f"by the data sheet, before anything was measured: within about {100 * ERROR:.0f} %"
    if served is not None:
        by = f"by {served}, as {plural(len(estimates), 'calibration')} that fit it say{_certainty(estimates, served)}"
    return [
        f"{spec.name}: a replica on {estimates[0].gpus} with continuous batching ({engine.max_seqs} requests at once, "
        f"{engine.max_tokens} tokens a step{memory}); requests of {prompt} tokens, answers of {answer}:",
        *table([HEADERS, *rows]).splitlines(),
        f"{spec.name}: {by}",
    ]


def text_json(
    spec: Serving, config: Config, tokens: tuple[int, int], served: Path | None
) -> list[list[dict[str, Any]]] | None:
    """Return the estimates as JSON, a list for each; None without an estimate."""
    try:
        return [[asdict(load) for load in estimate.loads] for estimate in _estimates(spec, config, tokens, served)]
    except (Conflict, UnknownModel):
        return None


def _certainty(estimates: Sequence["_Estimate"], served: Path) -> str:
    """Return which of the loads go beyond those that were served, and by what memory is limited there."""
    served_per_s = estimates[0].served_per_s
    if all(load.requests_s <= served_per_s for estimate in estimates for load in estimate.loads):
        return ""
    memory = (
        ""
        if all(estimate.is_memory_seen for estimate in estimates)
        else "; memory was never short, so it is that of the data sheet"
    )
    within = f"within about {100 * ERROR:.0f} %{memory}"
    return f"; above the {served_per_s:.3g} requests/s of {served.name} nothing was measured: {within}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """The estimate by one set of coefficients.

    Attributes:
        is_memory_seen: Whether its memory follows from requests that waited for it.
        served_per_s: Requests per second to each engine that were served; 0 without any.
    """

    gpus: str
    engine: EngineLimits
    loads: list[Latencies]
    is_memory_seen: bool = False
    served_per_s: float = 0.0


def _estimates(spec: Serving, config: Config, tokens: tuple[int, int], served: Path | None) -> list[_Estimate]:
    request = spec.resources.gpu
    assert request is not None, "only of text servers"
    gpu, _ = gpu_of(spec.resources, read_measured())
    if request.milli % 1000:
        raise Conflict("estimates are for whole GPUs")
    model, num = hugging_face(config), request.num_devices
    blocks = blocks_of(model, gpu, num)
    if not blocks:
        raise UnknownModel(f"the model's {2e-9 * model.parameters:.3g} GB do not fit on {num} x {gpu.names[0]}")
    share, gpus = expert_share(model), f"{num} x {gpu.names[0]}"
    times, engine = by_data_sheet(model, gpu, num), EngineLimits(blocks=blocks, expert_share=share)
    if served is None:
        return [_Estimate(gpus=gpus, engine=engine, loads=answers(times, engine, *tokens))]
    known = read_served(served)
    engines = known.engines(EngineLimits(expert_share=share), is_mixture=share > 0.0)
    calibrated = calibrate(known.requests, known.served, engines, prior=times, simulations=SIMULATIONS)
    served_per_s = len(known.requests) / max(1e-9, known.requests[-1].arrived_s)
    estimates = list[_Estimate]()
    for calibration in calibrated:
        used = calibration.engine
        if used.blocks is None:
            used = replace(used, blocks=blocks // used.ranks)
        estimates.append(
            _Estimate(
                gpus=gpus, engine=used, loads=answers(calibration.times, used, *tokens),
                is_memory_seen=calibration.engine.blocks is not None, served_per_s=served_per_s,
            )
        )  # fmt: skip
    return estimates


def _range(values: Iterable[float]) -> str:
    """Format one number, or the minimum and maximum if they differ as printed."""
    texts = sorted((f"{value:.3g}" if value < 1_000 else f"{value:.0f}" for value in values), key=float)
    return texts[0] if texts[0] == texts[-1] else f"{texts[0]} to {texts[-1]}"
