"""Objects of our kinds, right and wrong, generated from seeds: whole ones, each with one thing changed."""

import copy
import random
from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

RIGHT: dict[str, Object] = {
    "Training": {
        "image": "python:3.12",
        "workdir": "/work",
        "setup": "pip install x",
        "run": "python train.py",
        "env": {"SEED": "1", "NAME": "x y"},
        "nodes": 2,
        "ranks_per_node": 4,
        "resources": {"gpu": "A100:40GB:4", "cpu": "500m", "memory": "16Gi", "shm": 1073741824},
        "capacity": {"spot": True, "max_price": 3.5},
        "checkpoint": {"to": "s3://bucket/x", "every": "10m", "keep": 3},
        "retry": {"program": 1, "infrastructure": 3, "backoff": "2s", "max_backoff": "1m"},
        "priority": 5,
        "max_duration": "12h",
        "stall_timeout": "30m",
        "grace": "45s",
        "launch": "exec",
        "kubernetes": {
            "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
            "spec": {
                "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "x", "operator": "Exists"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "containers": [
                    {
                        "name": "ranks",
                        "env": [{"name": "A", "value": "b"}],
                        "resources": {"limits": {"rdma/hca": 1}},
                        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                    }
                ],
                "initContainers": [{"name": "proxy", "image": "proxy:1", "resources": {"limits": {"rdma/hca": 1}}}],
                "securityContext": {"fsGroup": 7},
            },
        },
    },
    "Team": {
        "quota": {"gpu": "16", "cpu": 256, "memory": "2Ti"},
        "weight": 2,
        "members": ["ann", "ben@example.com"],
    },
    "Pool": {
        "nodes": 4,
        "hardware": {
            "gpu": {"model": "A100", "count": 8, "memory": "80GB", "instances": {"3g.40gb": "1", "1g.10gb": "3"}},
            "cpu": 96,
            "memory": "1Ti",
        },
        "capacity_type": "spot",
        "price_per_hour": 3.5,
        "labels": {"zone": "a", "example.com/rack": "7"},
        "taints": ["dedicated=ml:NoSchedule", "x:NoExecute"],
    },
}

TEXTS = (
    "", " ", "x", "yes", "0", "1", "-1", "1.5", "0.5", "0.0005", "1e3", "1e99", "+2", ".5", "5.", "1,5", "8",
    "1001", "999999999999", "10m", "1h30m", "1m1h", "90", "5d", "4000d", "1us", "0s", "0.5ms", "1ms", "200 steps",
    "0 steps", "1 step", "10 minutes", "2x", "1Gi", "1gi", "1.5Gi", "1.1Ki", "1.0001k", "24GB", "1 GB", "2Pi",
    "1Pi", "1025Ti", "0Gi", "1B", "1K", "1Kib", "500m", "0.1m", "0m", "0.29", "1.001", "0.3", "100000", "100001",
    "A100", "A100:8", "A100:0", "A100:1.5", "A100:0.5", "A100:1001", "8:A100", "A100x8", "24GB:2", "A100:40GB:2",
    "A100:0GB", "A100:2Pi", "RTX 4090", "H100 SXM5 80GB:8", "4090", "a" * 64, "A" * 63 + ":2", "gpu:all", "auto",
    "exec", "fork", "Exec", "spot", "on-demand", "Spot", "owned", "a b", "a\nb", "a\x00b", "a\x7fb", "a\u2028b",
    "tab\tbed", "\u00e9", "ann", "ann,ben", "x:NoSchedule", "x=y:NoSchedule", "x=y:Never", "=y:NoSchedule", "x",
    "x=" + "y" * 64 + ":NoSchedule", "-x:NoSchedule", "a/b/c:NoExecute", "dedicated=other:NoSchedule", "x" * 300,
    "x" * 5000, "$(reboot)", "../../etc", "fairlead-x", "ranks", "/fairlead", "/fairlead/x", "/fairleadx",
    "fairlead.dev/x", "RANK", "FAIRLEAD_RUN", "FAIRLEAD_MINE", "MASTER_ADDR",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 1000, 1001, 1024, 1025, 10_000, 10_001, 100_000, 100_001, 1_000_001, 10**9, 10**9 + 1, 2**50,
    2**50 + 1, 2**60, 2**62, 0.5, 1.5, 1e-7, 0.000001, 1e6, 1e6 + 0.5, -0.5, 2.0,
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, ["x"], {"x": "y"}, [1], {"x": 1}, [None], {"x": None})
NAMES = (
    "x", "-x", "a b", "1a", "A.B-c", "RANK", "LOCAL_RANK", "FAIRLEAD_RUN", "MASTER_PORT", "a/b", "a/b/c", "/b",
    "fairlead.dev/x", "", "x" * 64, "x" * 257, "x" * 320, "\u00e9", "a\nb", "UPPER", "example.com/Zone_1", "run",
    "memory", "name", "status", "nodess",
)  # fmt: skip
METADATA_NAMES = ("x" * 50, "x" * 51, "a.b", "a", "1a", "a-b")


def whole(kind: str, spec: Object, name: str) -> Object:
    metadata = {"name": name} | ({"namespace": "default"} if kind == "Training" else {})
    return {"apiVersion": "fairlead.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def mutated(rng: random.Random, num: int) -> Object:
    """A right object with one to three changes."""
    kind = rng.choice(("Training", "Training", "Training", "Team", "Pool"))
    spec = copy.deepcopy(RIGHT[kind])
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change(rng, spec)
    name = rng.choice(METADATA_NAMES) if rng.random() < 0.05 else f"o{num}"
    return whole(kind, spec, name)


def _change(rng: random.Random, spec: Object) -> None:
    holder, key = rng.choice(list(places(spec)))
    action = rng.random()
    if action < 0.1:
        del holder[key]
    elif action < 0.2 and isinstance(holder, dict):
        holder[rng.choice(NAMES)] = rng.choice((*TEXTS, *NUMBERS, *OTHERS))
    elif action < 0.25 and isinstance(holder, list):
        holder.append(copy.deepcopy(rng.choice(holder)))
    elif action < 0.75 and isinstance(holder[key], str):
        holder[key] = rng.choice(TEXTS)
    elif action < 0.75 and isinstance(holder[key], (int, float)):
        holder[key] = rng.choice(NUMBERS)
    else:
        holder[key] = copy.deepcopy(rng.choice((*TEXTS, *NUMBERS, *OTHERS)))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in an object that can be changed; outer ones count as often as inner ones."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield value, key
            yield from places(inner)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield value, at
            yield from places(inner)
