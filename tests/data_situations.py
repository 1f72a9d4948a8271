"""Runs over data in the places where it usually is: spec files that run here and in pods, and what may not get out."""

import json
from base64 import b64encode
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

IMAGES = """
name: images
run: python train.py
data: {train: s3://models/imagenet}
"""
PARQUET = """
name: rows
run: python train.py
data: {train: {from: gs://lake/rows, credentials: lake}}
"""
TOKENS = """
name: tokens
run: python train.py
nodes: 2
data: {train: pvc://tokens/2026-11}
"""
HUB = """
name: hub
run: python train.py
data: {train: {from: hf://datasets/lab/digits, include: "*.parquet", credentials: hub}}
"""
LUSTRE = """
name: lustre
run: python train.py
nodes: 4
data: {train: {from: pvc://corpus, at: /mnt/corpus}, out: {from: pvc://corpus/out, at: /mnt/out, write: true}}
"""
PRIVATE = """
name: private
run: python train.py
data: {train: {from: s3://models/private, mode: stream, credentials: reader}}
"""
SITUATIONS = (IMAGES, PARQUET, TOKENS, HUB, LUSTRE, PRIVATE)

PROGRAM = """
import fairlead

with fairlead.run() as run:
    data = run.data("train")
    step = run.resume(seen={})
    samples = []
    for batch in data.batches(4):
        samples += batch
        step += 1
        run.progress(step)
        run.checkpoint(step)
    CHECK
    print("read", len(samples), "samples of version", data.version)
"""
"""A program that reads its data once; CHECK stands for what it expects of ``samples`` or ``data``."""


def forms(values: Iterable[str]) -> set[str]:
    """Keys as they are, and as they are written in JSON, URLs and Secrets."""
    return {
        form
        for value in values
        for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), b64encode(value.encode()).decode())
    }


def leaks(root: Path, keys: Iterable[str], *, besides: Iterable[Path]) -> list[str]:
    """The files below a directory with a form of one of the keys, but for those below ``besides``."""
    wanted, others = forms(keys), tuple(besides)
    return [
        f"{path}: {form}"
        for path in root.rglob("*")
        if path.is_file() and not any(path.is_relative_to(other) for other in others)
        for form in wanted
        if form.encode() in path.read_bytes()
    ]
