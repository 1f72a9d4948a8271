"""Loading a checkpoint runs nothing that its writer chose, at every place that loads, unless the spec trusts it."""

import collections
import datetime
import decimal
import inspect
import io
import json
import os
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairlead
from fairlead.runtime.checkpoint import randomness
from fairlead.runtime.checkpoint.manifest import MANIFEST, Manifest, files_below, seal
from fairlead.runtime.checkpoint.unpickling import load_values, loads
from fairlead.runtime.environment import Environment
from fairlead.runtime.errors import CheckpointMismatch
from fairlead.runtime.session import Run
from tests.late import Late, torch_or_skip
from tests.runtime.gang import read_events

torch: Any = torch_or_skip()
distcp: Any = Late("fairlead.runtime.checkpoint.distcp")
weights: Any = Late("fairlead.runtime.checkpoint.weights")

Reduced = tuple[Any, ...]


class Hostile:
    """Pickles as a call."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Reduced:
        return self.reduced


def touch(place: Path) -> Hostile:
    return Hostile(os.mkdir, (str(place),))


def scripted(place: Path) -> bytes:
    """Return a pickle in text form, of a call that no class of Python would write."""
    return f"cos\nmkdir\n(S'{place}'\ntR.".encode()


def dotted(place: Path) -> bytes:
    """Return a pickle that reaches a function by way of an allowed module."""
    name = b"distributed.checkpoint.filesystem.os.mkdir"
    text = str(place).encode()
    return (
        b"\x80\x04\x8c\x05torch\x8c" + bytes([len(name)]) + name + b"\x93"
        + b"X" + len(text).to_bytes(4, "little") + text + b"\x85R."
    )  # fmt: skip


def hostile_pickles(place: Path) -> dict[str, bytes]:
    stored = io.BytesIO()
    torch.save(touch(place), stored)
    module = b"torch.distributed.checkpoint.filesystem"
    text = str(place).encode()
    via_record = (
        b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c\x08os.mkdir\x93"
        + b"X" + len(text).to_bytes(4, "little") + text + b"\x85R."
    )  # fmt: skip
    return {
        "a call": pickle.dumps(touch(place)),
        "a call in text": scripted(place),
        "an attribute of an allowed package": dotted(place),
        "a module of records": via_record,
        "eval": pickle.dumps(Hostile(eval, (f"__import__('os').mkdir({str(place)!r})",))),
        "getattr": pickle.dumps(Hostile(getattr, (Hostile(__import__, ("os",)), "mkdir"))),
        "a factory": pickle.dumps(collections.defaultdict(os.getcwd)),
        "a storage with a pickle": pickle.dumps(Hostile(torch.storage._load_from_bytes, (stored.getvalue(),))),
        "a codec": pickle.dumps(Hostile(__import__("_codecs").encode, ("x" * 10, "zlib"))),
    }


KINDS = (
    "a call",
    "a call in text",
    "a codec",
    "a factory",
    "a module of records",
    "a storage with a pickle",
    "an attribute of an allowed package",
    "eval",
    "getattr",
)


def test_every_kind_of_hostile_pickle_is_tried(tmp_path: Path) -> None:
    assert sorted(hostile_pickles(tmp_path)) == sorted(KINDS)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Give a directory that a hostile pickle makes."""
    return tmp_path / "ran"


def load_record(data: bytes, folder: Path) -> object:
    folder.mkdir(exist_ok=True)
    (folder / distcp.METADATA).write_bytes(data)
    return distcp.CheckpointReader(folder)


def load_state(data: bytes, _: Path) -> object:
    from fairlead.runtime.elastic import state_transfer

    return loads(data, "rank 0", also={"x": state_transfer._Slot})


READERS: dict[str, Callable[[bytes, Path], object]] = {
    "objects and old random states": lambda data, _: loads(data, "objects.pickle"),
    "metadata": lambda data, folder: load_record(data, folder / "tensors"),
    "state of another rank": load_state,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_hostile_pickle_runs_nothing(kind: str, reader: str, mark: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch):
        READERS[reader](hostile_pickles(mark)[kind], tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("is_tensor", [True, False])
def test_a_hostile_value_of_a_file_of_tensors_runs_nothing(is_tensor: bool, mark: Path, tmp_path: Path) -> None:
    stored = io.BytesIO()
    torch.save({"value": touch(mark)}, stored)
    (tmp_path / "__0_0.distcp").write_bytes(stored.getvalue())
    tensor = ["float32", [1]] if is_tensor else None
    distcp.write_metadata(tmp_path, [[("groups", "lr"), "__0_0.distcp", 0, len(stored.getvalue()), tensor]])
    with pytest.raises(CheckpointMismatch, match=r"checkpoint: \{trust: true\}"):
        distcp.CheckpointReader(tmp_path).read("groups.lr")
    assert not mark.exists()
    if not is_tensor:
        distcp.CheckpointReader(tmp_path, trust=True).read("groups.lr")
        assert mark.exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_pytorchs_own_loader_runs_nothing_either(mark: Path, tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    from fairlead.runtime.checkpoint.tensors import _load_planner

    dcp.save({"a": torch.ones(2), "b": touch(mark)}, checkpoint_id=str(tmp_path / "c"), no_dist=True)
    tree = {"a": torch.zeros(2), "b": None}
    with pytest.raises(dcp.CheckpointException, match=r"posix\.mkdir"):
        dcp.load(tree, checkpoint_id=str(tmp_path / "c"), planner=_load_planner(False), no_dist=True)
    assert not mark.exists()
    dcp.load(tree, checkpoint_id=str(tmp_path / "c"), planner=_load_planner(True), no_dist=True)
    assert mark.exists()


def test_a_file_of_tensors_outside_the_checkpoint_is_not_read(tmp_path: Path) -> None:
    torch.save(torch.ones(1), tmp_path / "outside")
    folder = tmp_path / "tensors"
    folder.mkdir()
    size = (tmp_path / "outside").stat().st_size
    distcp.write_metadata(folder, [[("modules", "w"), "../outside", 0, size, ["float32", [1]]]])
    with pytest.raises(ValueError, match="leads out of its directory"):
        distcp.CheckpointReader(folder).read("modules.w")


VALUES = [
    {"epoch": 3, "lr": [0.1, 1e-5], "best": None, "name": "a", "done": True, "raw": b"\x00"},
    {1, 2}, frozenset("a"), 1j, range(3), slice(1, 2), bytearray(b"x"),
    collections.OrderedDict(a=1), collections.defaultdict(list, {1: [2]}), collections.Counter("aab"),
    collections.deque([1, 2], maxlen=3),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), datetime.timedelta(hours=1), decimal.Decimal("1.10"),
    np.float64(1.5), np.int64(3), np.bool_(True), np.arange(5), np.array(["a", "b"]), np.array([1, "x"], dtype=object),
    np.array([("a", 1)], dtype=[("n", "U3"), ("v", "i4")]), np.float32, np.random.default_rng(1).bit_generator.state,
    lambda: torch.arange(4), lambda: torch.ones(2, dtype=torch.bfloat16), lambda: torch.nn.Parameter(torch.ones(2)),
    lambda: torch.float16, lambda: torch.Size([2, 3]), lambda: torch.device("cpu"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_of_the_standard_library_numpy_and_torch_are_loaded(value: Any) -> None:
    value = value() if inspect.isfunction(value) else value
    assert repr(loads(pickle.dumps(value), "objects.pickle")) == repr(value)
    if isinstance(value, collections.defaultdict | collections.deque) or value is np.float32:
        return  # PyTorch itself does not load these
    stored = io.BytesIO()
    torch.save(value, stored)
    assert repr(load_values(stored.getvalue(), "a file")) == repr(value)


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"\x80\x04" + tail))
def test_any_bytes_are_a_value_or_a_mismatch(data: bytes) -> None:
    try:
        loads(data, "objects.pickle")
    except CheckpointMismatch as error:
        message = str(error)
    else:
        return
    assert "objects.pickle" in message


@pytest.fixture
def open_run(tmp_path: Path) -> Callable[..., Run]:
    def make(**more: Any) -> Run:
        return Run(
            Environment(run_dir=tmp_path, pod_dir=tmp_path, checkpoint_to=str(tmp_path / "c"), run_uid="u", **more)
        )

    return make


class Own:
    """A class of the program."""

    def __init__(self, value: int) -> None:
        self.value = value


def save(run: Run, state: dict[str, Any]) -> None:
    with run:
        run.resume(state=state)
        run.checkpoint(1, force=True)


def reseal(checkpoint: Path) -> None:
    """Write a manifest for changed files, as whoever may write there can."""
    manifest = Manifest.from_json((checkpoint / MANIFEST).read_bytes())
    (checkpoint / MANIFEST).unlink()
    body = {**{name: getattr(manifest, name) for name in ("step", "world_size", "run", "attempt", "created_at")}}
    files = {name: seal(path) for name, path in files_below(checkpoint).items()}
    (checkpoint / MANIFEST).write_bytes(Manifest(**body, content=manifest.content, files=files).to_json())


@pytest.mark.parametrize("name", ["objects.pickle", "random.pickle"])
def test_a_replaced_file_with_a_fitting_manifest_runs_nothing_at_resume(
    name: str, open_run: Callable[..., Run], mark: Path, tmp_path: Path
) -> None:
    save(open_run(), {"count": 1})
    (checkpoint,) = (tmp_path / "c").glob("step-*")
    (checkpoint / "rank-00000" / "random.json").unlink()  # as an earlier version left it
    (checkpoint / "rank-00000" / name).write_bytes(pickle.dumps({"state": touch(mark)}))
    reseal(checkpoint)
    with pytest.raises(CheckpointMismatch, match=r"posix\.mkdir"), open_run() as run:
        run.resume(state={})
    assert not mark.exists()


def test_an_object_of_the_program_is_refused_when_it_is_first_saved_and_kept_where_trusted(
    open_run: Callable[..., Run], tmp_path: Path
) -> None:
    save(open_run(), {"best": Own(3)})
    assert not list((tmp_path / "c").glob("step-*"))
    said = [message for kind, message in read_events(tmp_path) if kind == "CheckpointFailed"]
    assert f"holds {Own.__module__}.Own, " in said[0]
    assert "give `checkpoint: {trust: true}` in the spec" in said[0]
    save(open_run(trust=True), {"best": Own(3)})
    state: dict[str, Any] = {}
    with open_run(trust=True) as run:
        assert run.resume(state=state) == 1
    assert state["best"].value == 3
    with pytest.raises(CheckpointMismatch, match=r"Own.*checkpoint: \{trust: true\}"), open_run() as run:
        run.resume(state={})


def test_a_random_state_of_an_earlier_version_is_restored(open_run: Callable[..., Run], tmp_path: Path) -> None:
    save(open_run(), {"count": 1})
    (checkpoint,) = (tmp_path / "c").glob("step-*")
    (checkpoint / "rank-00000" / "random.json").unlink()
    (checkpoint / "rank-00000" / "random.pickle").write_bytes(pickle.dumps(randomness.capture()))
    reseal(checkpoint)
    expected = random.random(), np.random.rand(), torch.rand(1)
    with open_run() as run:
        assert run.resume(state={}) == 1
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected


@pytest.mark.parametrize("text", ["{}", "[]", '{"python": 3}', "[" * 10_000, '{"python": [3, ["x"], null]}'])
def test_a_random_state_that_is_none_is_a_mismatch(text: str) -> None:
    with pytest.raises(CheckpointMismatch, match="random generators"):
        randomness.restore(randomness.from_json(text.encode()))


def test_random_states_are_numbers(open_run: Callable[..., Run], tmp_path: Path) -> None:
    save(open_run(), {"count": 1})
    (path,) = (tmp_path / "c").glob("step-*/rank-00000/random.json")
    assert json.loads(path.read_text()).keys() >= {"python", "numpy", "torch"}


def test_weights_of_a_hostile_checkpoint_run_nothing(open_run: Callable[..., Run], mark: Path, tmp_path: Path) -> None:
    with open_run() as run:
        run.resume(model=torch.nn.Linear(2, 1))
        run.checkpoint(1, force=True)
    (checkpoint,) = (tmp_path / "c").glob("step-*")
    assert weights.read_weights(checkpoint)["weight"].shape == (1, 2)
    (metadata,) = checkpoint.rglob(distcp.METADATA)
    metadata.write_bytes(scripted(mark))
    reseal(checkpoint)
    with pytest.raises(CheckpointMismatch, match="holds what PyTorch's checkpoints do not"):
        weights.read_weights(checkpoint)
    assert not mark.exists()


LOADS = re.compile(r"pickle\.loads?\(|Unpickler\(|torch\.load\(|gather_object\(|broadcast_object_list\(")
LOADING = {
    "cluster/simulated/cluster.py",  # what the same process saved
    "runtime/checkpoint/distcp.py",  # its records alone
    "runtime/checkpoint/unpickling.py",
    "runtime/steps.py",  # results of steps, see docs/checkpoint-trust.md
}


def test_no_other_place_loads_what_may_run_code() -> None:
    source = Path(fairlead.__file__).parent
    found = [path for path in source.rglob("*.py") if LOADS.search(path.read_text())]
    assert {path.relative_to(source).as_posix() for path in found} == LOADING
