"""Doors of other tools, each in an environment of its own: Ray Serve's proxy and LiteLLM's."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.frameworks.environments import find_interpreter

STARTS_WITHIN_S = 180.0
ENDS_WITHIN_S = 20.0
LITELLM = """
model_list:
- model_name: m
  litellm_params: {{model: openai/m, api_base: "http://127.0.0.1:{backend}/v1", api_key: none}}
litellm_settings: {{telemetry: false}}
general_settings: {{dangerously_permit_weak_or_unset_master_key: true}}
"""


class Peer(NamedTuple):
    """A door that runs: the processes that pass requests on."""

    processes: list[psutil.Process]
    port: int


@contextmanager
def ray_serve(place: Path, port: int, answer: str) -> Iterator[Peer | str]:
    """Run Serve with one replica that answers under /m; a sentence where it cannot be run. Its proxy is the door."""
    argv = [str(Path(__file__).with_name("ray_serve.py")), str(port), answer]
    with _run("ray-serve", argv, place) as process:
        if isinstance(process, str):
            yield process
            return
        line = process.stdout.readline() if process.stdout is not None else b""
        if line.strip() != b"ready":
            yield _last_words(place, "ray-serve", process)
            return
        everything = psutil.Process(process.pid).children(recursive=True)
        proxies = [each for each in everything if "ProxyActor" in " ".join(each.cmdline())]
        yield Peer(proxies, port) if proxies else "Ray Serve has no process of its proxy"


@contextmanager
def litellm(place: Path, port: int, backend: int) -> Iterator[Peer | str]:
    """Run LiteLLM's proxy before a server of chat completions; a sentence where it cannot be run."""
    (place / "litellm.yaml").write_text(LITELLM.format(backend=backend))
    argv = ["-m", "litellm.proxy.proxy_cli", "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with _run("litellm", argv, place) as process:
        if isinstance(process, str):
            yield process
            return
        deadline = time.monotonic() + STARTS_WITHIN_S
        while process.poll() is None and time.monotonic() < deadline:
            here = psutil.Process(process.pid)
            listening = [each.laddr.port for each in here.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            if port in listening:
                yield Peer([here], port)
                return
            time.sleep(0.2)
        yield _last_words(place, "litellm", process)


@contextmanager
def _run(peer: str, argv: list[str], place: Path) -> Iterator["subprocess.Popen[bytes] | str"]:
    python = find_interpreter(peer)
    if isinstance(python, str):
        yield python
        return
    with (place / f"{peer}.err").open("wb") as errors:
        process = subprocess.Popen(
            [str(python), *argv], cwd=place, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if peer == "ray-serve" else errors, stderr=errors, start_new_session=True,
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )  # fmt: skip
    try:
        yield process
    finally:
        everything = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        assert process.stdin is not None
        process.stdin.close()
        if peer != "ray-serve":
            process.terminate()
        try:
            process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for each in everything:
            if each.is_running():
                each.kill()


def _last_words(place: Path, peer: str, process: "subprocess.Popen[bytes]") -> str:
    told = (place / f"{peer}.err").read_text(errors="replace").strip().splitlines()
    how = "it does not answer" if process.poll() is None else f"it ended with {process.returncode}"
    return f"{how}: {(told or ['nothing said'])[-1]}"
