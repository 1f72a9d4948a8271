"""Peak memory of training as measured by others, beside the prediction of Fairlead's formulas.

    python -m benchmarks.memory [--data DIR] [--json] [--fit]

`strategy/simumax_b200.json`: Megatron-LM with Transformer Engine on 8 B200, by SimuMax (Apache-2.0), which predicts
them itself (`perf_alloc_gib`); the most that any GPU allocated. `memory/torchtitan_h100.csv`: Llama 3.1 8B under FSDP2
by torchtitan, the most *reserved*. `memory/gpumemnet_18_rows.csv`: convolutional networks from GPUMemNet's paper, in
use as `nvidia-smi` counts; its transformers are left out, as their script is not public.

No constant is fitted to a row. `--fit` prints the one constant that is common to all convolutional networks, as in the
table.
"""

import argparse
import csv
import json
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import megatron_memory
from benchmarks.convnets import NETWORKS
from benchmarks.convolutions import CONTEXT, peak_memory
from fairlead.policy.strategy import torch_memory
from fairlead.policy.strategy.memory import GIB, worst
from fairlead.policy.strategy.split import PipelineSchedule, Recompute, Split
from fairlead.policy.strategy.transformer import WRITTEN_OUT_NORM, Experts, LatentAttention, Transformer

DATA = Path(__file__).parents[2] / "shared" / "traces"
SEQUENCE = 4096
# Of the rows with context parallelism that do not say.
LONG_SEQUENCE = 32_768


def _llama(hidden: int, heads: int, key_value_heads: int, width: int) -> Transformer:
    return Transformer(
        layers=1, hidden=hidden, heads=heads, key_value_heads=key_value_heads, head=128, width=width,
        vocabulary=128_256, sequence=SEQUENCE,
    )  # fmt: skip


def _deepseek(hidden: int, width: int, vocabulary: int, experts: Experts) -> Transformer:
    latent = LatentAttention(query_rank=1536, key_value_rank=512, head=128, rotary=64, value=128)
    return Transformer(
        layers=1, hidden=hidden, heads=128, key_value_heads=128, head=128, width=width, vocabulary=vocabulary,
        sequence=SEQUENCE, latent=latent, experts=experts,
    )  # fmt: skip


# As SimuMax's `configs/models` have them; its 405B has 16 key-value heads, and one layer is dense in these rows.
MODELS = {
    "llama3-8b": _llama(4096, 32, 8, 14_336),
    "llama3-70b": _llama(8192, 64, 8, 28_672),
    "llama3-405b": _llama(16_384, 128, 16, 53_248),
    "deepseekv2": _deepseek(
        5120, 12_288, 102_400, Experts(count=160, per_token=6, width=1536, shared_width=3072, dense_layers=1)
    ),
    "deepseekv3": _deepseek(
        7168, 18_432, 129_280, Experts(count=256, per_token=8, width=2048, shared_width=2048, dense_layers=1)
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A measured case and what was estimated for it; ``peer_gib`` is the peer's prediction, where there is one."""

    case: str
    file: str
    measured_gib: float
    estimated_gib: float
    peer_gib: float | None = None

    @property
    def error(self) -> float:
        """In percent of what was measured."""
        return 100 * (self.estimated_gib / self.measured_gib - 1)


def main() -> int:
    """Print each row and the errors by file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", action="store_true", help="one object a row")
    parser.add_argument("--fit", action="store_true", help="fit the number that all convolutional networks share")
    arguments = parser.parse_args()
    results = [*megatron(arguments.data), *fsdp(arguments.data), *convolutional(arguments.data)]
    if not results:
        print(f"error: {arguments.data} has none of the tables; give their directory with --data", file=sys.stderr)
        return 2
    if arguments.fit:
        rest = [each.measured_gib - each.estimated_gib for each in results if each.file.startswith("gpumemnet")]
        print(f"CONTEXT = {CONTEXT / GIB + statistics.fmean(rest):.2f} * GIB")
        return 0
    for each in results:
        if arguments.json:
            print(json.dumps(asdict(each)))
        else:
            print(f"{each.case:48} {each.measured_gib:9.2f} {each.estimated_gib:9.2f} {each.error:+7.2f} %")
    if not arguments.json:
        for file in dict.fromkeys(each.file for each in results):
            errors = [each.error for each in results if each.file == file]
            mean, most = statistics.fmean(map(abs, errors)), max(errors, key=abs)
            print(f"{file}: {len(errors)} rows, mean {mean:.3f} %, worst {most:+.2f} %")
    return 0


def megatron(data: Path) -> Iterator[Result]:
    """The rows on B200."""
    path = data / "strategy" / "simumax_b200.json"
    if not path.exists():
        return
    for row in json.loads(path.read_text())["rows"]:
        model, split = _case(row)
        yield Result(
            case=row["case"],
            file=path.name,
            measured_gib=row["real_alloc_gib"],
            estimated_gib=worst(megatron_memory.stages(model, split)).allocated / GIB,
            peer_gib=row.get("perf_alloc_gib"),
        )


def _case(row: Mapping[str, Any]) -> tuple[Transformer, Split]:
    """Model and split of a row, from its columns and, where they do not say, from its case."""
    text = f"{row.get('parallel', '')} {row['case']}"

    def degree(name: str, *columns: str) -> int:
        given = next((row[column] for column in columns if isinstance(row.get(column), int)), None)
        found = re.search(rf"(?<![a-z]){name}_?(\d+)|(?<=\d){name}(\d+)", text)
        return int(given if given is not None else (found[1] or found[2]) if found else 1)

    tensor, pipeline, expert = (
        degree("tp", "tp_size", "tp"),
        degree("pp", "pp_size", "pp"),
        degree("ep", "ep_size", "ep"),
    )
    context, virtual = degree("cp", "cp_size", "cp"), max(1, int(row.get("vp_size") or 1))
    gpus = int(row.get("world_size") or len(row.get("peak_allocated_mb_by_rank") or ()) or 8)
    base = MODELS[row["model"].replace("_", "-").replace("deepseek-", "deepseek")]
    layers = int(row.get("layer_num") or row.get("layers") or degree("l"))
    columns = {
        "layers": layers,
        "sequence": _sequence_of(row, context),
    }
    model = Transformer(**{**{name: getattr(base, name) for name in base.__slots__}, **columns})
    return model, Split(
        data=max(1, gpus // (tensor * pipeline * context)),
        zero=1,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert,
        virtual=virtual,
        schedule=PipelineSchedule.INTERLEAVED if virtual > 1 else PipelineSchedule.ONE_F_ONE_B,
        micro_batch=int(row.get("mbs") or row.get("micro_batch_size") or 1),
        micro_batches=int(row.get("mbc") or row.get("micro_batch_num") or 1),
    )


def _sequence_of(row: Mapping[str, Any], context: int) -> int:
    for column in ("seq_len", "sequence_length", "seq_length", "sequence", "seq", "seqlen"):
        if isinstance(row.get(column), int):
            return int(row[column])
    case = row["case"].lower()
    found = re.search(r"(?:^|_)(?:seq|seqlen|s|sl)_?(\d+)(k?)(?=_|$)", case) or re.search(
        r"(?:^|_)(\d+)(k)(?=_|$)", case
    )
    if found:
        return int(found[1]) * (1024 if found[2] else 1)
    return SEQUENCE if context == 1 else LONG_SEQUENCE


def fsdp(data: Path) -> Iterator[Result]:
    """The rows on H100; reserved, which is what fragments besides what is allocated."""
    path = data / "memory" / "torchtitan_h100.csv"
    if not path.exists():
        return
    sizes = {"8b": (32, 4096, 32, 14_336), "70b": (80, 8192, 64, 28_672), "405b": (126, 16_384, 128, 53_248)}
    with path.open() as file:
        for row in csv.DictReader(file):
            layers, hidden, heads, width = sizes[row["model"].rsplit("-", 1)[1]]
            model = Transformer(
                layers=layers, hidden=hidden, heads=heads, key_value_heads=8, head=128, width=width,
                vocabulary=128_256, sequence=int(row["sequence"]), norm_kept=WRITTEN_OUT_NORM,
            )  # fmt: skip
            found = re.search(r"FSDP\s*(\d+)", row["parallelism"])
            tensor, settings = re.search(r"TP\s*(\d+)", row["parallelism"]), row["settings"].lower()
            split = Split(
                data=int(found[1]) if found else int(row["gpus"]),
                tensor=int(tensor[1]) if tensor else 1,
                zero=3,
                micro_batch=int(row["local_batch"]),
                recompute=Recompute.SELECTIVE
                if "selective" in settings
                else Recompute.FULL
                if "full" in settings
                else Recompute.NONE,
            )
            memory = worst(torch_memory.stages(model, split, compiled="compile" in settings))
            yield Result(
                case=f"{row['model']} {row['parallelism']} {row['settings']}",
                file=path.name,
                measured_gib=float(row["peak_memory_gib"]),
                estimated_gib=memory.reserved / GIB,
            )


def convolutional(data: Path) -> Iterator[Result]:
    """The convolutional networks, in fp32 with SGD."""
    path = data / "memory" / "gpumemnet_18_rows.csv"
    if not path.exists():
        return
    with path.open() as file:
        lines = list(csv.reader(file))[1:]
    name = ""
    for first, batch, measured, *_ in lines:
        name = first or name
        if name in NETWORKS:
            yield Result(
                case=f"{name} batch {batch}",
                file=path.name,
                measured_gib=float(measured) / 1024,
                estimated_gib=peak_memory(NETWORKS[name](), int(batch)) / GIB,
            )


if __name__ == "__main__":
    sys.exit(main())
