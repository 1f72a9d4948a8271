"""Readers of bytes from elsewhere as targets of fuzzing: each takes any bytes, and raises only its own errors."""

import gzip
import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead.cluster.kubernetes.api.shallow import loads, problem_of
from fairlead.cluster.kubernetes.workloads.pod_reports import read_ending, read_last_words, read_report
from fairlead.cluster.local.packages.locked_packages import packages_of
from fairlead.errors import InvalidSpec
from fairlead.gateway.messages import HttpError, Malformed, read_request, read_response
from fairlead.gateway.packing import packed, unpacked
from fairlead.policy.gpu.cuda_support import GpuPlatform, judge
from fairlead.runtime.extraction import InvalidArchive, extract
from fairlead.runtime.serving.inference_protocol import read_infer_request
from fairlead.runtime.serving.problems import BadRequest
from fairlead.specs.formats.reading import parse
from fairlead.untrusted_json import parse_json

MIB = 1 << 20


@dataclass(frozen=True)
class Target:
    """A reader, and a few inputs to begin with."""

    read: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


def heads(data: bytes) -> None:
    """Heads of requests and responses, as clients and replicas send them to the gateway."""
    with suppress(HttpError):
        request = read_request(data)
        assert request.path.startswith((b"/", b"*")), request.path
        assert request.length >= -1
    with suppress(Malformed):
        assert read_response(data, method=b"GET").status < 1000


def archives(data: bytes) -> None:
    """Archives of working directories and steps: nothing is written outside of the directory."""
    with tempfile.TemporaryDirectory() as place:
        inside, canary = Path(place) / "in" / "side", Path(place) / "canary"
        canary.write_text("sings")
        with suppress(InvalidArchive):
            extract(io.BytesIO(data), inside)
        assert {path.name for path in Path(place).iterdir()} == {"in", "canary"}
        assert {path.name for path in (Path(place) / "in").iterdir()} <= {"side"}
        assert canary.read_text() == "sings"


def documents(data: bytes) -> None:
    """Spec files."""
    with suppress(InvalidSpec):
        parse(data.decode("utf-8", "surrogateescape"), source="f.yaml")


def tensors(data: bytes) -> None:
    """Bodies of inference requests, with tensors as JSON and as bytes."""
    header, _, body = data.partition(b"\n")
    for length in (None, header.decode("latin-1")):
        with suppress(BadRequest):
            read_infer_request(bytearray(data if length is None else body), length, None, "model")


def messages(data: bytes) -> None:
    """Termination messages, reports and whatever else is JSON from a pod."""
    text = data.decode("utf-8", "replace")
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-11-21T10:00:00Z", "message": text}
    pod = {"status": {"containerStatuses": [{"name": "ranks", "state": {"terminated": ended}}]}}
    assert read_ending(pod, ranks=range(2)) is not None
    read_last_words(pod)
    read_report(text)
    with suppress(ValueError):
        json.dumps(parse_json(data, max_bytes=MIB), ensure_ascii=False).encode()
    with suppress(ValueError):
        unpacked(text, most_bytes=MIB)


def objects(data: bytes) -> None:
    """Answers of an API server with objects that anybody wrote."""
    with suppress(ValueError):
        found = loads(data)
        for each in found.get("items") or () if isinstance(found, dict) else ():
            if isinstance(each, dict):
                problem_of(each)


def locks(data: bytes) -> None:
    """Locks of environments that a user wrote, and the versions in them."""
    packages = packages_of(data, "3.12.7", "x86_64")
    judge(packages, GpuPlatform(driver=(580, 65, 6), capabilities=((9, 0),)))


def _archive(name: str, kind: bytes = tarfile.REGTYPE) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.size, member.linkname = kind, 3 if kind == tarfile.REGTYPE else 0, "../canary"
        archive.addfile(member, io.BytesIO(b"abc"))
    return buffer.getvalue()


_TENSOR = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}],"outputs":[{"name":"y"}]}'
TARGETS = {
    "heads": Target(
        heads,
        (
            b"GET /a?b HTTP/1.1\r\nHost: a\r\nConnection: close, x\r\n\r\n",
            b"POST http://h/p HTTP/1.0\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        ),
    ),
    "archives": Target(
        archives,
        (
            _archive("train.py"),
            _archive("../x"),
            _archive("link", tarfile.SYMTYPE),
            gzip.decompress(_archive("a/b/c")),
            _archive("pipe", tarfile.FIFOTYPE),
        ),
    ),
    "documents": Target(
        documents,
        (
            b"name: a\nrun: python t.py\nnodes: 2\nresources: {gpu: A100:8}\nmetrics: {pattern: '(?P<loss>a{1,3})'}\n",
            b"kind: Sweep\nname: s\nparameters: {lr: log 1e-5..1e-1, n: 1..8, o: a | b when n = 3}\n"
            b"trial: {run: t {{lr}}}\nobjective: loss\n",
            b"apiVersion: fairlead.dev/v1alpha1\nkind: Training\nmetadata: {name: c}\nspec: {run: x, env: {A: '1'}}\n",
        ),
    ),
    "locks": Target(
        locks,
        (
            b'[[packages]]\nname = "torch"\nversion = "2.11.0+cu126"\nmarker = "os_name == \'posix\' and a"\n',
            b'[[packages]]\nname = "nvidia-cuda-runtime"\nversion = "13.0.96"\n'
            b'[[packages]]\nname = "vllm"\nversion = "1"\n',
        ),
    ),
    "tensors": Target(
        tensors,
        (
            _TENSOR,
            b"93\n"
            b'{"inputs":[{"name":"x","shape":[2],"datatype":"INT64","parameters":{"binary_data_size":16}}]}'
            + bytes(16),
        ),
    ),
    "messages": Target(
        messages,
        (
            b'{"form":1,"ranks":[[0,1,null,5.0,0]],"tail":["x"],"tail_of":0,"hang":[[0,"f",null,3]],"usage":[1,2,3]}',
            b'{"form":1,"started_at":1,"progress":{"step":3,"loss":1.5,"metrics":{"a":1}},"events":[[0,1,2.0,"Saved","m"]]}',
            packed({"services": {}}).encode(),
        ),
    ),
    "objects": Target(objects, (b'{"items":[{"metadata":{"name":"a"},"x":[[[]]]}]}', b'{"type":"ADDED","object":{}}')),
}
