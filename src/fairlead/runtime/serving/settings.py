"""Reads a replica's settings at its start, from the environment of its pod and the command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20
BATCHING_KEYS = ("max_batch_size", "max_latency_ms")


@dataclass(frozen=True)
class Settings:
    """Settings of a replica at its start.

    Attributes:
        predictor: ``module:Class``, importable from the working directory.
        model: Directory or file of the model on disk; empty if there is none.
        port: Port to listen on; 0 for a free one, which is reported on standard error.
        host: Address to listen on.
        service: Name of the service, which is the name of the model in all protocols.
        revision: Name of the revision, which is the version of the model.
        replica: Identity of this replica.
        max_batch_size: Most rows of one call of ``predict``, and most texts generated at once; 1 disables batching.
        max_latency_ms: Longest time, from the arrival of a request to its result, for which a batch may wait or grow.
        grace_s: Seconds from TERM until the process is killed.
        max_queue: Most requests that wait; further ones are answered with 429.
        max_body_bytes: Largest body of a request, also after decompression.
        read_timeout_s: Longest time for the header of a request, for its body, and for a client to take its answer.
        max_connections: Most open connections.
    """

    predictor: str
    model: str = ""
    port: int = 0
    host: str = "127.0.0.1"
    service: str = "model"
    revision: str = "1"
    replica: str = ""
    max_batch_size: int = 1
    max_latency_ms: float = 50.0
    grace_s: float = 30.0
    max_queue: int = 100
    max_body_bytes: int = 64 * MIB
    read_timeout_s: float = 20.0
    max_connections: int = 1024

    def __post_init__(self) -> None:
        module, colon, name = self.predictor.partition(":")
        if not (colon and name.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise ValueError(f"predictor is {self.predictor!r}; give module:Class, such as model:Classifier")
        for key, value, least, most in (
            ("port", self.port, 0, 65535),
            ("max_batch_size", self.max_batch_size, 1, 65536),
            ("max_latency_ms", self.max_latency_ms, 0, 3_600_000),
            ("grace", self.grace_s, 0, 86_400),
            ("max_queue", self.max_queue, 0, 1_000_000),
            ("max_body_bytes", self.max_body_bytes, 1, 1 << 40),
            ("read_timeout", self.read_timeout_s, 0.01, 3600),
            ("max_connections", self.max_connections, 1, 1_000_000),
        ):
            if not least <= value <= most:
                raise ValueError(f"{key} is {value}; give {least} to {most}")


def read_settings(argv: Sequence[str], env: Mapping[str, str]) -> Settings:
    """Read the command line, and the environment for settings that it does not give.

    Raises:
        ValueError: A value is invalid; the message names it and the allowed values.
        SystemExit: The command line cannot be parsed, or asks for help.
    """
    parser = argparse.ArgumentParser(prog="python -m fairlead.runtime.serving", description="Serve a predictor.")
    parser.add_argument("predictor", nargs="?", help="module:Class (default: $FAIRLEAD_PREDICTOR)")
    parser.add_argument("--model", help="directory or file of the model (default: $FAIRLEAD_MODEL)")
    parser.add_argument("--host", help="address to listen on (default: $HOST, else 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on, 0 for a free one (default: $PORT, else 0)")
    parser.add_argument("--name", help="name of the model (default: $FAIRLEAD_SERVICE, else model)")
    parser.add_argument("--max-batch-size", type=int, help="rows of one call (default: $FAIRLEAD_BATCHING, else 1)")
    parser.add_argument("--max-latency-ms", type=float, help="bound of batching (default: $FAIRLEAD_BATCHING, else 50)")
    parser.add_argument("--max-queue", type=int, help="requests that wait (default: $FAIRLEAD_MAX_QUEUE, else 100)")
    arguments = parser.parse_args(argv)
    predictor = arguments.predictor or env.get("FAIRLEAD_PREDICTOR", "")
    if not predictor:
        raise ValueError("no predictor: give module:Class, or set FAIRLEAD_PREDICTOR")
    batching = _batching(env.get("FAIRLEAD_BATCHING", ""))
    numbers: dict[str, Any] = {
        "port": _number(env, "PORT", int, 0) if arguments.port is None else arguments.port,
        "max_batch_size": arguments.max_batch_size
        if arguments.max_batch_size is not None
        else batching["max_batch_size"],
        "max_latency_ms": arguments.max_latency_ms
        if arguments.max_latency_ms is not None
        else batching["max_latency_ms"],
        "max_queue": _number(env, "FAIRLEAD_MAX_QUEUE", int, 100)
        if arguments.max_queue is None
        else arguments.max_queue,
        "grace_s": _number(env, "FAIRLEAD_GRACE", float, 30.0),
    }
    return Settings(
        predictor=predictor,
        model=env.get("FAIRLEAD_MODEL", "") if arguments.model is None else arguments.model,
        host=arguments.host or env.get("HOST", "") or "127.0.0.1",
        service=arguments.name or env.get("FAIRLEAD_SERVICE", "") or "model",
        revision=env.get("FAIRLEAD_REVISION", "") or "1",
        replica=env.get("FAIRLEAD_REPLICA", ""),
        **numbers,
    )


def _batching(text: str) -> dict[str, Any]:
    batching: dict[str, Any] = {"max_batch_size": 1, "max_latency_ms": 50.0}
    if not text:
        return batching
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"FAIRLEAD_BATCHING is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"FAIRLEAD_BATCHING is {text}; give an object with {' and '.join(BATCHING_KEYS)}")
    for key, value in document.items():
        if key not in BATCHING_KEYS:
            raise ValueError(f"FAIRLEAD_BATCHING has {key!r}; it may have {' and '.join(BATCHING_KEYS)}")
        kinds = (int,) if key == "max_batch_size" else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(f"{key} in FAIRLEAD_BATCHING is {value!r}; give a number")
    return {**batching, **document}


def _number(env: Mapping[str, str], name: str, kind: Any, default: Any) -> Any:
    text = env.get(name, "")
    if not text:
        return default
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}; give a number") from error
