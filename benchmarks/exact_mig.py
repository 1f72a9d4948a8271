"""Random small instances of choosing MIG layouts, and the same problem as a model for CP-SAT.

The model knows the tables of ``fairlead.policy.gpu.mig`` and nothing else of the policy: a variable for every
instance at every place it may have, at most one on a slice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from benchmarks.candidates.mig.layouts import Wish, choose
from benchmarks.candidates.mig.partitions import Device, Held
from fairlead.policy.gpu.mig import MODELS, MigInstance

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

CENTS = 100


def instance(seed: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """What solves an instance by the policy, and what solves it exactly."""
    devices, wishes = draw(seed)
    return lambda: choose(devices, wishes).value, lambda: optimum(devices, wishes)


def draw(seed: int) -> tuple[list[Device], list[Wish]]:
    """Two to six GPUs of one or two models, partly in use, and up to five wishes for more than they have at times."""
    random = Random(seed)
    models = random.sample(sorted(MODELS), random.randint(1, 2))
    devices = [_device(f"gpu-{i}", random.choice(models), random) for i in range(random.randint(2, 6))]
    names = sorted({name for model in models for name in MODELS[model].profiles})
    wishes = []
    for _ in range(random.randint(1, 5)):
        profiles = frozenset(random.sample(names, random.choice((1, 1, 1, 2, 3))))
        weight = random.randint(CENTS // 10, 5 * CENTS) / CENTS
        wishes.append(Wish(profiles=profiles, count=random.randint(1, 6), weight=weight))
    return devices, wishes


def optimum(devices: Sequence[Device], wishes: Sequence[Wish]) -> float:
    """What the best layouts are worth."""
    from ortools.sat.python import cp_model  # nearly a second, with pandas

    model = cp_model.CpModel()
    supply: dict[str, list[cp_model.LinearExprT]] = defaultdict(list)
    worth: list[cp_model.LinearExprT] = []
    needed: dict[str, list[cp_model.LinearExprT]] = defaultdict(list)
    for device in devices:
        _add_device(model, device, supply, worth, needed)
    served: dict[str, list[cp_model.LinearExprT]] = defaultdict(list)
    for wish in wishes:
        parts = [model.new_int_var(0, wish.count, "") for _ in wish.profiles]
        model.add(sum(parts) <= wish.count)
        worth += [round(CENTS * wish.weight) * part for part in parts]
        for name, part in zip(sorted(wish.profiles), parts, strict=True):
            served[name].append(part)
    for name in {*served, *needed}:
        wanted = cp_model.LinearExpr.sum([*served[name], *needed[name]])
        model.add(wanted <= cp_model.LinearExpr.sum(supply[name]))
    model.maximize(cp_model.LinearExpr.sum(worth))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    assert status == cp_model.OPTIMAL, solver.status_name(status)
    return round(solver.objective_value) / CENTS


def _add_device(
    model: cp_model.CpModel,
    device: Device,
    supply: dict[str, list[cp_model.LinearExprT]],
    worth: list[cp_model.LinearExprT],
    needed: dict[str, list[cp_model.LinearExprT]],
) -> None:
    """Its instances and who stays. ``needed`` are instances for those who leave."""
    there = {
        MigInstance(start=start, profile=profile.name): model.new_bool_var("")
        for profile in device.model.profiles.values()
        for start in profile.starts
    }
    for at in range(device.model.memory):
        model.add_at_most_one(var for each, var in there.items() if at in device.model.slices(each))
    model.add_at_most_one(var for each, var in there.items() if device.model.profiles[each.profile].has_media)
    changed = model.new_bool_var("")
    for each, var in there.items():
        model.add(var == (each in device.layout)).only_enforce_if(~changed)
    stays = {held.instance: model.new_bool_var("") for held in device.held}
    for held in device.held:
        stay = stays[held.instance]
        model.add_implication(stay, there[held.instance])
        if held.move_cost is None:
            model.add(stay == 1)
        else:
            worth.append(-round(CENTS * held.move_cost) * (1 - stay))
        if device.as_a_whole:
            model.add_implication(changed, ~stay)
        needed[held.instance.profile].append(1 - stay)
    for each, var in there.items():
        supply[each.profile].append(var - stays[each] if each in stays else var)


def _device(name: str, model_name: str, random: Random) -> Device:
    model = MODELS[model_name]
    held, free, used = list[Held](), list[MigInstance](), set[int]()
    places = [(profile, start) for profile in model.profiles.values() for start in profile.starts]
    has_media = False
    for profile, start in random.sample(places, random.randint(0, len(places))):
        lies_on = set(range(start, start + profile.memory))
        if lies_on & used or (profile.has_media and has_media) or random.random() < 0.5:
            continue
        used |= lies_on
        has_media |= profile.has_media
        placed = MigInstance(start=start, profile=profile.name)
        if random.random() < 0.4:
            free.append(placed)
        else:
            cost = random.choice((None, None, random.randint(0, 3 * CENTS) / CENTS))
            held.append(Held(instance=placed, pod=f"{name}-pod-{len(held)}", move_cost=cost))
    return Device(
        id=name, model=model, held=tuple(held), free=tuple(sorted(free)), as_a_whole=random.random() < 0.5
    )  # fmt: skip
