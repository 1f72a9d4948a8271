"""Estimates of how an endpoint with a text server would answer, as people and programs read them."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairlead.cli.show import table
from fairlead.control.gpu_measurement import read_measured
from fairlead.control.model_config import read_json
from fairlead.control.served_requests import read_served
from fairlead.errors import Conflict, UnknownModel
from fairlead.policy.serving.text_calibration import calibrate
from fairlead.policy.serving.text_capacity import ERROR, Answers, answers, blocks_of, by_data_sheet
from fairlead.policy.serving.text_engine import BLOCK, Engine
from fairlead.policy.strategy.resolution import gpu_of
from fairlead.policy.strategy.transformer import hugging_face
from fairlead.specs.serving import Serving
from fairlead.text.quantities import plural

# What Hugging Face calls models that answer with text.
GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
# Of each search of a calibration.
SIMULATIONS = 200
HEADERS = ("REQUESTS/S", "TOKENS/S", "FIRST TOKEN", "EACH FURTHER")


def is_text_server(spec: Serving, directory: Path) -> bool:
    """Return whether the endpoint runs a server of its own with a model of text that lies on this machine."""
    path = _config_of(spec, directory)
    if spec.run is None or spec.resources.gpu is None or path is None or not path.is_file():
        return False
    return any(str(each).endswith(GENERATES) for each in read_json(path).get("architectures") or ())


def describe_text(spec: Serving, directory: Path, tokens: tuple[int, int], served: Path | None) -> list[str]:
    """Tell how one replica would answer under several loads; or why there is no estimate.

    Args:
        tokens: Of a usual request and of its answer.
        served: Of requests that such a replica has served; None before it has.
    """
    try:
        estimates = _estimates(spec, directory, tokens, served)
    except (Conflict, UnknownModel) as error:
        return [f"{spec.name}: no estimate: {error}"]
    loads = [each.found for each in estimates]
    rows = [
        (
            _range(each.requests_s for each in load),
            _range(each.tokens_s for each in load),
            f"{_range(1e3 * each.first_s for each in load)} ms",
            f"{_range(1e3 * each.further_s for each in load)} ms",
        )
        for load in zip(*loads, strict=True)
    ]
    (prompt, answer), engine = tokens, estimates[0].engine
    memory = "" if engine.blocks is None else f", {engine.blocks * BLOCK} tokens in memory"
    by = f"by the data sheet, before anything was measured: within about {100 * ERROR:.0f} %"
    if served is not None:
        by = f"by {served}, as {plural(len(estimates), 'calibration')} that fit it say"
    return [
        f"{spec.name}: a replica on {estimates[0].gpus} with continuous batching ({engine.max_seqs} requests at once, "
        f"{engine.max_tokens} tokens a step{memory}); requests of {prompt} tokens, answers of {answer}:",
        *table([HEADERS, *rows]).splitlines(),
        f"{spec.name}: {by}",
    ]


def text_json(
    spec: Serving, directory: Path, tokens: tuple[int, int], served: Path | None
) -> list[list[dict[str, Any]]] | None:
    """The same for programs, a list for each estimate; None without one."""
    try:
        return [[asdict(load) for load in each.found] for each in _estimates(spec, directory, tokens, served)]
    except (Conflict, UnknownModel):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Estimate:
    """The answers by one set of coefficients."""

    gpus: str
    engine: Engine
    found: list[Answers]


def _estimates(spec: Serving, directory: Path, tokens: tuple[int, int], served: Path | None) -> list[_Estimate]:
    path, request = _config_of(spec, directory), spec.resources.gpu
    assert path is not None, "only of text servers"
    assert request is not None, "only of text servers"
    gpu, _ = gpu_of(spec.resources, read_measured())
    if request.milli % 1000:
        raise Conflict("estimates are for whole GPUs")
    model, num = hugging_face(read_json(path)), request.num_devices
    blocks = blocks_of(model, gpu, num)
    if not blocks:
        raise UnknownModel(f"the model's {2e-9 * model.parameters:.3g} GB do not fit on {num} x {gpu.names[0]}")
    times, engine, gpus = by_data_sheet(model, gpu, num), Engine(blocks=blocks), f"{num} x {gpu.names[0]}"
    if served is None:
        return [_Estimate(gpus=gpus, engine=engine, found=answers(times, engine, *tokens))]
    known = read_served(served)
    calibrated = calibrate(known.requests, known.served, known.engine(Engine()), prior=times, simulations=SIMULATIONS)
    return [
        _Estimate(gpus=gpus, engine=each.engine, found=answers(each.times, each.engine, *tokens)) for each in calibrated
    ]


def _range(values: Iterable[float]) -> str:
    """Return one number, or the least and the greatest where they differ as printed."""
    low, *_, high = sorted([f"{each:.3g}" if each < 1_000 else f"{each:.0f}" for each in values] * 2, key=float)
    return low if low == high else f"{low} to {high}"


def _config_of(spec: Serving, directory: Path) -> Path | None:
    if spec.model is None or "://" in spec.model or "@" in spec.model:
        return None
    return Path(directory, spec.workdir or ".", spec.model).expanduser() / "config.json"
