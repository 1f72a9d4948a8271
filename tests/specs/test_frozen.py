"""Frozen classes behave as the standard library's do, whatever they are made of."""

import copy
import dataclasses
import inspect
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import frozen
from fairlead.specs.training import Training

OPTIONS: dict[str, Any] = {"frozen": True, "slots": True, "kw_only": True}
Maker = Callable[..., Any]


def made_by(make: Maker, **options: bool) -> tuple[type, ...]:
    """Classes of each sort that there is, made by one of the two."""

    @make(**options)
    class Plain:
        """A plain one."""

        name: str
        number: int = 3
        items: tuple[int, ...] = ()

    @make(**options)
    class Fields:
        """One of each sort of field."""

        one: int
        made: list[int] = field(default_factory=list)
        hidden: str = field(default="h", repr=False)
        aside: int = field(default=0, compare=False)
        unhashed: list[int] = field(default_factory=list, hash=False)
        left: str = field(default="left", init=False)
        fresh: list[int] = field(default_factory=list, init=False)

    @make(**options)
    class Checked:
        """Looks at its value and works another out."""

        value: int
        pair: tuple[int, int] = field(init=False)

        def __post_init__(self) -> None:
            if self.value < 0:
                raise ValueError("below 0")
            object.__setattr__(self, "pair", (self.value, self.value))

    @make(**options)
    class Child(Checked):
        """One with a parent."""

        more: str = "more"

    @make(**options)
    class Lone:
        """A single field."""

        value: Any = None

    @make(**options)
    class Empty:
        """No field."""

    @make(**options)
    class Own:
        """Methods of its own."""

        value: int = 0

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self))

    @make(**options)
    class Hashed:
        """A hash of its own."""

        value: int = 0

        def __hash__(self) -> int:
            return 7

    return Plain, Fields, Checked, Child, Lone, Empty, Own, Hashed


OURS, THEIRS = made_by(frozen.dataclass, **OPTIONS), made_by(dataclasses.dataclass, **OPTIONS)
PLACES = made_by(frozen.dataclass, frozen=True, slots=True), made_by(dataclasses.dataclass, frozen=True, slots=True)
NAN = math.nan
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-2, 2), st.just(NAN), st.just([]), st.just(()), st.text(max_size=1)
)


def outcome(do: Callable[[], Any]) -> tuple[str, Any]:
    """What a call returns, or how it fails."""
    try:
        return "returned", do()
    except Exception as error:  # noqa: BLE001 (whatever it is, both have to fail alike)
        return type(error).__name__, str(error)


@pytest.mark.parametrize(("ours", "theirs"), [*zip(OURS, THEIRS, strict=True), *zip(*PLACES, strict=True)])
@given(data=st.data())
def test_a_class_does_what_the_standard_librarys_does(ours: Any, theirs: Any, data: st.DataObject) -> None:
    names = [each.name for each in dataclasses.fields(theirs)]
    some = st.dictionaries(st.sampled_from([*names, "strange"]), VALUES)
    given_, other, at = data.draw(some), data.draw(some), data.draw(st.lists(VALUES, max_size=2))
    mine, its = outcome(lambda: ours(*at, **given_)), outcome(lambda: theirs(*at, **given_))
    if its[0] != "returned":
        assert mine == its
        return
    a, b = mine[1], its[1]
    assert repr(a) == repr(b)
    assert repr(dataclasses.asdict(a)) == repr(dataclasses.asdict(b))
    assert outcome(lambda: hash(a)) == outcome(lambda: hash(b))
    assert (a == copy.copy(a), a != a) == (b == copy.copy(b), b != b)
    changed = outcome(lambda: dataclasses.replace(a, **other)), outcome(lambda: dataclasses.replace(b, **other))
    assert repr(changed[0]) == repr(changed[1])
    assert (a == changed[0][1]) == (b == changed[1][1])
    assert repr(outcome(lambda: frozen.replace(a, **other))) == repr(changed[1])
    for name in names:
        assert outcome(partial(setattr, a, name, 1)) == outcome(partial(setattr, b, name, 1))
        assert outcome(partial(delattr, a, name)) == outcome(partial(delattr, b, name))


@pytest.mark.parametrize(("ours", "theirs"), [*zip(OURS, THEIRS, strict=True), *zip(*PLACES, strict=True)])
def test_a_class_looks_as_the_standard_librarys_does(ours: Any, theirs: Any) -> None:
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert (ours.__slots__, ours.__match_args__) == (theirs.__slots__, theirs.__match_args__)
    shown = [(each.name, each.type, each.kw_only, each.init) for each in dataclasses.fields(ours)]
    assert shown == [(each.name, each.type, each.kw_only, each.init) for each in dataclasses.fields(theirs)]


def test_the_signature_is_the_same_once_there_was_an_object() -> None:
    ours, theirs = (made_by(make, **OPTIONS)[0] for make in (frozen.dataclass, dataclasses.dataclass))
    before = str(inspect.signature(ours))
    assert ours(name="a") == ours(name="a")
    assert before == str(inspect.signature(ours)) == str(inspect.signature(theirs))


def test_an_object_comes_back_from_a_pickle_and_a_deep_copy() -> None:
    run = Training(name="train", run="python train.py", env={"A": "1"})
    assert pickle.loads(pickle.dumps(run)) == run == copy.deepcopy(run)


def test_a_class_that_holds_itself_can_be_shown() -> None:
    lone = OURS[4](value=[])
    lone.value.append(lone)
    assert repr(lone).endswith("Lone(value=[...])")


def test_what_is_not_frozen_is_the_standard_librarys() -> None:
    @frozen.dataclass(slots=True)
    class Loose:
        """One that changes."""

        value: int = 0

    loose = Loose()
    loose.value = 2
    assert loose == Loose(2)
    assert "of" not in vars(Loose.__init__)


def test_an_unknown_key_of_a_constructor_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Training.__init__\(\) got an unexpected keyword argument 'nods'"):
        Training(name="a", run="b", nods=2)  # type: ignore[call-arg]


def test_loading_the_command_writes_no_constructor_before_there_is_an_object() -> None:
    code = (
        "import fairlead.cli.commands.run, fairlead.cluster.local.cluster\n"
        "from fairlead.state.snapshot import Workload, Pod\n"
        "print([hasattr(each.__init__, 'of') for each in (Workload, Pod)])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == "[True, True]"
