"""What a Training says of its split, made complete or refused with what would help."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.errors import CannotFit, Conflict, UnknownModel
from fairlead.policy.strategy.gpus import find
from fairlead.policy.strategy.resolution import ranked, resolve, transformer_of
from fairlead.policy.strategy.search import StepHardware, Wanted, assess, does_not_fit, search
from fairlead.policy.strategy.split import Split
from fairlead.specs.parallel import Choose, ModelShape, Parallel, Recomputed, Shard, SplitCandidate
from fairlead.specs.resources import GpuRequest, Resources
from fairlead.specs.training import Training

LLAMA_8B = ModelShape(
    layers=32, hidden=4096, heads=32, kv_heads=8, width=14_336, vocabulary=128_256, sequence=8192
)  # fmt: skip


def training(parallel: Parallel | None = None, *, gpus: int = 8, model: str = "H100", nodes: int = 1) -> Training:
    gpu = GpuRequest(milli=1000 * gpus, model=model)
    return Training(
        name="llama", run="true", nodes=nodes, resources=Resources(gpu=gpu), model=LLAMA_8B, parallel=parallel
    )


def resolved(parallel: Parallel, **of: Any) -> Parallel:
    return resolve(training(parallel, **of), None).parallel


def test_what_is_left_open_is_plain_data_parallelism() -> None:
    assert resolved(Parallel(tensor=2)) == Parallel(
        data=4, shard=Shard.NONE, tensor=2, pipeline=1, micro_batch=1, recompute=Recomputed.NONE, batch=4
    )
    assert resolved(Parallel(batch=64)).micro_batch == 8


def test_auto_chooses_a_split_that_fits_and_keeps_what_is_given() -> None:
    chosen = resolved(Parallel(choose=Choose.AUTO, batch=64))
    assert chosen.choose is None
    assert (chosen.data or 0) * (chosen.tensor or 0) * (chosen.pipeline or 0) == 8
    given = resolved(Parallel(choose=Choose.AUTO, batch=64, tensor=4, recompute=Recomputed.FULL))
    assert (given.tensor, given.recompute, given.batch) == (4, Recomputed.FULL, 64)


def test_auto_is_the_fastest_of_what_can_be_applied() -> None:
    spec = training(Parallel(choose=Choose.AUTO, batch=64))
    chosen = resolve(spec, None).parallel
    ranking = ranked(spec, None, None)
    applied = [each.split for each in ranking.splits if each.fits and each.split.pipeline == 1]
    assert (applied[0].data, applied[0].tensor, applied[0].micro_batch) == (
        chosen.data,
        chosen.tensor,
        chosen.micro_batch,
    )


def test_auto_is_resolved_to_the_same_split_again() -> None:
    chosen = resolved(Parallel(choose=Choose.AUTO, batch=64))
    assert resolved(chosen) == chosen


def test_parts_that_do_not_multiply_to_the_ranks_are_refused() -> None:
    with pytest.raises(Conflict, match=r"data 3 x tensor 2 x pipeline 1 is 6, but the run has 8 ranks"):
        resolved(Parallel(data=3, tensor=2))
    with pytest.raises(Conflict, match="give a multiple of 16"):
        resolved(Parallel(data=8, micro_batch=2, batch=24))


def test_an_elastic_gang_has_no_split() -> None:
    with pytest.raises(Conflict, match="give `nodes` one number"):
        resolve(replace(training(Parallel()), most_nodes=4), None)


def test_auto_says_what_it_lacks_to_choose_by() -> None:
    with pytest.raises(Conflict, match="describe it with `model`"):
        resolve(replace(training(Parallel(choose=Choose.AUTO)), model=None), None)
    with pytest.raises(Conflict, match="name one, such as `gpu: A100:8`"):
        resolve(replace(training(Parallel(choose=Choose.AUTO)), resources=Resources()), None)
    with pytest.raises(Conflict, match="nothing is known of the GPU X1"):
        resolved(Parallel(choose=Choose.AUTO), model="X1")
    with pytest.raises(UnknownModel, match="vocabulary missing"):
        transformer_of(replace(LLAMA_8B, vocabulary=None), None)


def test_nothing_that_fits_is_said_with_what_would() -> None:
    with pytest.raises(CannotFit, match=r"does not fit: needs \d+ GiB of 22 on each GPU; FSDP over \d+ .*would"):
        resolved(Parallel(choose=Choose.AUTO), gpus=2, model="A10G")


def test_whole_copies_that_do_not_fit_are_told_to_shard_or_recompute() -> None:
    gpu = find("H100")
    assert gpu is not None
    model, on = transformer_of(replace(LLAMA_8B, layers=8), None), StepHardware(gpu=gpu, gpus=8, node=8)
    candidate = assess(model, Split(data=8, micro_batch=2), on)
    assert not candidate.fits
    told = does_not_fit(model, candidate, on)
    assert told.startswith("does not fit: needs ")
    assert " on each GPU; FSDP over 8 " in told


def test_what_does_not_fit_by_a_long_sequence_says_for_which_it_was_counted() -> None:
    gpu = find("A10G")
    assert gpu is not None
    on = StepHardware(gpu=gpu, gpus=1, node=1)
    for length, said in ((131_072, True), (4096, False)):
        model = transformer_of(replace(LLAMA_8B, sequence=length), None)
        told = does_not_fit(model, assess(model, Split(data=1), on), on)
        assert (f"for sequences of {length:,} tokens (`sequence` in `model`" in told) is said


def test_every_loser_says_why_and_none_that_fits_is_faster() -> None:
    gpu = find("A100-80GB")
    assert gpu is not None
    model = transformer_of(LLAMA_8B, None)
    found = search(model, StepHardware(gpu=gpu, gpus=16, node=8), Wanted(batch=128))
    times = [each.time.total for each in found if each.fits]
    assert times == sorted(times)
    assert found[0].reason == "the fastest"
    assert all(each.reason for each in found)
    assert all("does not fit" in each.reason for each in found if not each.fits)
    assert all(each.split.gpus == 16 for each in found)


def test_a_config_is_read_and_keys_win_over_it() -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "n_ctx": 32}
    model = transformer_of(ModelShape(layers=6), config)
    assert (model.layers, model.hidden, model.sequence) == (6, 64, 32)


def test_probe_has_the_best_of_what_fits_tried() -> None:
    spec = training(Parallel(choose=Choose.AUTO, batch=64, probe=3))
    found = resolve(spec, None)
    candidates = found.parallel.candidates
    assert (found.parallel.choose, found.parallel.probe, found.parallel.batch) == (None, None, 64)
    applied = [each for each in ranked(spec, None, None).splits if each.fits and each.split.pipeline == 1][:3]
    assert [each.estimate_s for each in candidates.values()] == [
        float(f"{each.time.total / 1000:.4g}") for each in applied
    ]
    assert next(iter(candidates)) == "data4-tensor2-shard-gradients"
    assert found.note.startswith("parallel: tries data 4 with gradients sharded, tensor 2, micro-batch ")
    assert resolve(training(found.parallel), None).parallel == found.parallel


def test_where_one_split_alone_fits_nothing_is_tried() -> None:
    asked = Parallel(choose=Choose.AUTO, batch=64, probe=3, tensor=8)
    found = resolve(training(asked), None)
    assert found.parallel.candidates == {}
    assert found.parallel.tensor == 8
    assert "the only one that fits" in found.note


def test_ranks_without_gpus_try_what_is_put_in_an_order_and_told_no_time() -> None:
    spec = training(Parallel(choose=Choose.AUTO, batch=16, probe=3))
    spec = replace(spec, resources=Resources(), ranks_per_node=4)
    candidates = resolve(spec, None).parallel.candidates
    assert len(candidates) == 3
    assert {each.estimate_s for each in candidates.values()} == {None}
    assert {(each.data or 0) * (each.tensor or 0) for each in candidates.values()} == {4}


def test_candidates_that_a_person_names_are_made_complete_or_refused() -> None:
    asked = Parallel(batch=64, candidates={"whole": SplitCandidate(), "halves": SplitCandidate(tensor=2)})
    found = resolve(training(asked), None).parallel.candidates
    assert found["halves"] == SplitCandidate(
        data=4, shard=Shard.NONE, tensor=2, pipeline=1, micro_batch=16, recompute=Recomputed.NONE
    )
    for wrong, said in (
        (replace(asked, batch=None), "give `batch` too"),
        (replace(asked, choose=Choose.AUTO), "leave out `choose` and `probe`"),
        (replace(asked, candidates={"odd": SplitCandidate(tensor=3)}), "parallel.candidates.odd: data 2 x tensor 3"),
        (Parallel(probe=2), "add that, or name splits"),
    ):
        with pytest.raises(Conflict, match=said):
            resolve(training(wrong), None)
