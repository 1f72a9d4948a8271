"""The node on which a pod costs the rest of the future least."""

import zlib

import numpy as np
from numpy.typing import NDArray

from fairlead.policy.fleet import Fleet, Ints, Mask, Spot
from fairlead.policy.ranking import Ranking, Scores
from fairlead.policy.shapes import WHOLE_GPU, Shape
from fairlead.policy.task_mix import TaskMix
from fairlead.policy.worth import LEVELS, PRICES, STEP_MILLI, Demand, demands, table

FULL = LEVELS - 1
PATIENCE_FULL = 10.0
PATIENCE_GROWTH = 2.5
FLUID = 0.0
FLUID_A = 0.9
FEW = 64
KEY_OF_CORES = 0x1B873593CC9E2D51
ORDER_WEIGHT = 0.05
REFRESH_ALLOCATED = 0.01
REFRESH_OBSERVED = 1.2


class Packing:
    def __init__(self, fleet: Fleet, mix: TaskMix) -> None:
        self._fleet = fleet
        self._mix = mix
        keys = np.array([zlib.crc32(name.encode()) for name in fleet.names], dtype=np.int64)
        rank = np.empty(len(fleet))
        rank[np.argsort(keys, kind="stable")] = np.arange(len(fleet))
        has_gpu = fleet.capacity_milli.any(axis=1)
        self._order = ORDER_WEIGHT * (rank / max(1, len(fleet)) + has_gpu)
        self._ranking = Ranking(fleet, self._score)
        keys = np.random.default_rng(0).integers(1 << 62, size=(2, fleet.kind.shape[1]))
        self._key_of_devices: Ints = keys
        self._refreshed_free = -1
        self._next_observed = 0
        self._worth = np.zeros((1, LEVELS, len(PRICES)))
        self._prices = PRICES
        self.price = 0.0

    def observe(self, shape: Shape) -> None:
        self._mix.observe(shape)

    def choose(self, shape: Shape) -> Spot | None:
        """Node and devices for one pod; None where it fits nowhere."""
        self._refresh()
        node = self._ranking.best(shape)
        if node is None:
            return None
        nodes = np.array([node])
        usable = self._fleet.usable(nodes, shape)
        if not shape.is_share:
            return Spot(node=node, devices=tuple(int(i) for i in np.flatnonzero(usable[0])[: shape.num_gpus]))
        return Spot(node=node, devices=(int(self._by_device(nodes, usable, shape)[0].argmax()),))

    def _refresh(self) -> None:
        fleet, mix = self._fleet, self._mix
        moved = abs(fleet.free_gpu_milli - self._refreshed_free) >= REFRESH_ALLOCATED * fleet.total_gpu_milli
        if not moved and mix.num_observed < self._next_observed:
            return
        self._refreshed_free = fleet.free_gpu_milli
        self._next_observed = int(mix.num_observed * REFRESH_OBSERVED) + 1
        allocated = 1 - fleet.free_gpu_milli / max(1, fleet.total_gpu_milli)
        patience = PATIENCE_FULL * np.exp(PATIENCE_GROWTH * (1 - allocated))
        tables: list[tuple[Demand, NDArray[np.float64]]] = []
        rows = []
        for demand in demands(mix, fleet):
            known = [t for d, t in tables if d == demand]
            if not known:
                tables.append((demand, table(demand, patience)))
            rows.append(known[0] if known else tables[-1][1])
        worth = np.stack(rows)
        first = self._price_of_cores(worth)
        self._worth, self._prices = worth[:, :, first:].copy(), PRICES[first:]
        self.price = float(PRICES[first])
        self._ranking.forget()
        cores = sum(n * s.cpu_milli / 1000 for s, n in mix.items())
        devices = sum(n * s.total_gpu_milli / 1000 for s, n in mix.items())
        self._a = FLUID_A * cores / devices if devices else 1e-9

    def _price_of_cores(self, worth: NDArray[np.float64]) -> int:
        """Index of the price at which cores left over by pods with devices are as many as those without will ask for."""
        fleet = self._fleet
        room = worth[fleet.kind, fleet.gpu_milli // STEP_MILLI].sum(axis=1) + PRICES * np.maximum(
            0, fleet.cpu_milli[:, None] / 1000
        )
        value = np.minimum.accumulate(room[:, ::-1], axis=1)[:, ::-1].sum(axis=0)
        only_cores = sum(n * s.cpu_milli / 1000 for s, n in self._mix.items() if not s.num_gpus)
        devices = sum(n * s.total_gpu_milli / 1000 for s, n in self._mix.items())
        wanted = only_cores / devices * fleet.free_gpu_milli / 1000 if devices else 0.0
        return int((value - PRICES * wanted).argmin())

    def _score(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        fleet = self._fleet
        some, inverse = self._distinct(nodes)
        ok = usable if some is nodes else fleet.usable(some, shape)
        if shape.is_share:
            after = self._by_device(some, ok, shape).max(axis=1)
        else:
            chosen = ok & (ok.cumsum(axis=1) <= shape.num_gpus)
            lost = (self._worth[fleet.kind[some], FULL] * chosen[:, :, None]).sum(axis=1)
            after = (self._room(some, shape) - lost).min(axis=1)
        before = self._room(some, Shape()).min(axis=1)
        if FLUID:
            i0 = fleet.gpu_milli[some].sum(axis=1) / 1000
            c0 = fleet.cpu_milli[some] / 1000
            short = np.maximum(0, i0 - shape.total_gpu_milli / 1000 - (c0 - shape.cpu_milli / 1000) / self._a) - np.maximum(0, i0 - c0 / self._a)
            after = after - FLUID * short
        return np.asarray((after - before)[inverse] - self._order[nodes])

    def _distinct(self, nodes: Ints) -> tuple[Ints, Ints | slice]:
        if len(nodes) <= FEW:
            return nodes, slice(None)
        fleet = self._fleet
        with np.errstate(over="ignore"):
            key = fleet.cpu_milli[nodes] * KEY_OF_CORES
            key += (fleet.gpu_milli[nodes] * self._key_of_devices[0]).sum(axis=1)
            key += (fleet.kind[nodes] * self._key_of_devices[1]).sum(axis=1)
        _, firsts, inverse = np.unique(key, return_index=True, return_inverse=True)
        return nodes[firsts], inverse

    def _room(self, nodes: Ints, shape: Shape) -> NDArray[np.float64]:
        fleet = self._fleet
        cores = (fleet.cpu_milli[nodes] - shape.cpu_milli) / 1000
        devices = self._worth[fleet.kind[nodes], np.maximum(0, fleet.gpu_milli[nodes]) // STEP_MILLI].sum(axis=1)
        return np.asarray(devices + self._prices * np.maximum(0, cores)[:, None])

    def _by_device(self, nodes: Ints, usable: Mask, shape: Shape) -> Scores:
        kind, free = self._fleet.kind[nodes], self._fleet.gpu_milli[nodes]
        after = np.maximum(0, free - shape.gpu_milli) // STEP_MILLI
        change = self._worth[kind, after] - self._worth[kind, free // STEP_MILLI]
        value = (self._room(nodes, shape)[:, None, :] + change).min(axis=2)
        return np.where(usable, value, -np.inf)
