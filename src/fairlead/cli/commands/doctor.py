"""``fairlead doctor``: check for problems, with remedies."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

import fairlead
from fairlead import __version__
from fairlead.cli.show import as_json, json_option, message
from fairlead.cli.target import Target, cluster_options
from fairlead.cluster.findings import Finding
from fairlead.cluster.local import gateway_proxy, limits, machine
from fairlead.cluster.local.cluster import LocalCluster
from fairlead.cluster.local.home import Home
from fairlead.cluster.local.visible_gpus import VARIABLE, visible
from fairlead.control.gpu_measurement import measure
from fairlead.control.notifications.local import destinations_in_force, read_record
from fairlead.deferred import deferred
from fairlead.errors import ClusterError
from fairlead.gateway.proxying.programs import HAPROXY
from fairlead.policy.gpu.cuda_support import Support, judge
from fairlead.runtime.podfiles import is_locked
from fairlead.state.scheduling_policy import POLICIES
from fairlead.text.quantities import describe_cpu, describe_memory, plural
from fairlead.untrusted_json import parse_json

if TYPE_CHECKING:
    from fairlead.cli import node_tests
    from fairlead.cluster.kubernetes.client import checkup
    from fairlead.specs import preflight
else:
    node_tests = deferred("fairlead.cli.node_tests")
    checkup = deferred("fairlead.cluster.kubernetes.client.checkup")
    preflight = deferred("fairlead.specs.preflight")

ASK_S = 30.0
MOST_ANSWER = 4 << 20
ANSWER_S = 5.0
TEST_S = 60.0
DEFAULT_NODES = 4
LOW_DISK_BYTES = 5 * 1024**3


@click.command()
@cluster_options
@click.option(
    "--gpu",
    is_flag=True,
    help="Only measure this machine's GPUs, for estimates of training steps; of a cluster, check those of its nodes.",
)
@click.option("--network", is_flag=True, help="Only measure the network between nodes of a cluster.")
@click.option("--nodes", type=click.IntRange(1, 10_000), help="With --network, or --gpu of a cluster: how many nodes.")
@json_option
def doctor(target: Target, gpu: bool, network: bool, nodes: int | None, json_: bool) -> int:
    """Check this machine or a cluster for problems, and show how to fix them.

    With --gpu it measures all GPUs of this machine for about a minute: matrix products, memory, launches and
    all-reduces. `plan` and `parallel: auto` then use these figures.

    With --network or --gpu of a cluster a short run on --nodes of its nodes, 4 by default, waits in the queue as any
    other and tests them: links in pairs, and products on all GPUs, each for at most a minute. It names slow and faulty
    nodes.

    Exit code 1 if there are problems.
    """
    if (network or gpu) and target.is_kubernetes:
        return _test_nodes(target, nodes or DEFAULT_NODES, network=network, gpu=gpu, json_=json_)
    if network:
        raise click.UsageError("--network measures between nodes, and this machine is one; name a cluster by --context")
    if nodes is not None:
        raise click.UsageError("--nodes is for --network or --gpu of a cluster; name it by --context")
    if gpu:
        return _measure(json_)
    findings = _on_kubernetes(target) if target.is_kubernetes else _here()
    if json_:
        print(as_json([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            mark = "!!" if not finding.ok else "ok" if finding.remedy is None else "--"
            print(f"{mark}  {finding.what:<14} {finding.says}")
            if finding.remedy is not None:
                print(f"{'':<19}-> {finding.remedy}")
    return 0 if all(finding.ok for finding in findings) else 1


def _test_nodes(target: Target, nodes: int, *, network: bool, gpu: bool, json_: bool) -> int:
    if network and nodes < 2:
        raise click.UsageError("--network measures between nodes; give --nodes 2 or more")
    test = preflight.Preflight(network_s=TEST_S if network else None, gpu_s=TEST_S if gpu else None)
    cluster = target.open(is_to_submit=True)
    try:
        spec = node_tests.run_for(cluster.nodes(), test, nodes, name="node-test")
        # Of an empty directory, so that no files go along.
        with tempfile.TemporaryDirectory(prefix="fairlead-test-") as directory:
            result = node_tests.result_of(cluster, cluster.in_its_team(spec), Path(directory), message)
    finally:
        cluster.close()
    print(as_json(result) if json_ else node_tests.table_of(result))
    return 1 if any(node["verdict"] for node in result["nodes"]) else 0


def _measure(json_: bool) -> int:
    home = Home.open()
    gpu = measure(home, os.environ, time.time())
    if json_:
        print(as_json(asdict(gpu)))
        return 0
    print(f"{gpu.name}: {describe_memory(int(gpu.memory_bytes))}, {plural(gpu.processors, 'processor')}")
    print(f"  products     {gpu.tflops:.3g} TFLOP/s, half of that at a depth of {gpu.depth:.0f}")
    print(f"  memory       {gpu.memory_gb_s:.4g} GB/s")
    print(f"  launches     {gpu.launch_ms:.3g} ms a layer, forward and backward")
    if gpu.link_gb_s is None or gpu.latency_ms is None:
        print("  all-reduces  not measured: there is one GPU")
    else:
        print(f"  all-reduces  {gpu.link_gb_s:.4g} GB/s, {gpu.latency_ms:.3g} ms between two")
    print(f"kept in {home.gpus}; `fairlead plan` estimates by it from now on")
    return 0


def _on_kubernetes(target: Target) -> list[Finding]:
    from dataclasses import replace

    client = target.client()
    client.limits = replace(client.limits, try_s=ANSWER_S, patience_s=ANSWER_S)
    return checkup.check(client, __version__)


def _here() -> list[Finding]:
    findings = [_python(), *_uncompiled(), *_packages(), _machine(), _memory_limits()]
    try:
        cluster = LocalCluster.open()
    except ClusterError as error:
        return [*findings, Finding(what="state", ok=False, says=str(error))]
    try:
        return [
            *findings,
            _state(cluster),
            _policy(cluster),
            *_retention(cluster),
            *_notifications(cluster),
            _supervisor(cluster),
            *_haproxy(cluster),
        ]
    finally:
        cluster.close()


def _policy(cluster: LocalCluster) -> Finding:
    """Check that optional configuration files in the state directory can be read, and describe them."""
    home = cluster.home
    problems = cluster.file_problems()
    if problems:
        return Finding(what="policy", ok=False, says=" ".join(problems))
    rules, teams = cluster.rules(), cluster.teams()
    name = next(name for name, policy in POLICIES.items() if policy == rules)
    described = f"; {plural(len(teams), 'team')} described in {home.teams}" if teams else ""
    return Finding(what="policy", ok=True, says=f"pending runs are scheduled by the policy `{name}`{described}")


def _retention(cluster: LocalCluster) -> list[Finding]:
    """Check the optional file by which old runs are removed; return a finding only if it cannot be used."""
    try:
        cluster.keeps()
    except ClusterError as error:
        return [Finding(what="keep", ok=False, says=str(error))]
    return []


def _notifications(cluster: LocalCluster) -> list[Finding]:
    """Check the optional file of notifications, and whether their destinations accept them."""
    if not cluster.home.notifications.exists():
        return []
    reading = destinations_in_force(cluster.home)
    boxes = read_record(cluster.home).outboxes
    problems = [reading.problem] if reading.problem else []
    problems += [f"{name}: {box.problem}." for name, box in boxes.items() if box.problem]
    if problems:
        return [Finding(what="notifications", ok=False, says=" ".join(problems))]
    return [Finding(what="notifications", ok=True, says=f"{plural(len(reading.value), 'destination')} accept messages")]


def _python() -> Finding:
    path = shutil.which("python")
    if path is None:
        says = "`python` is not on the PATH; name the interpreter in `run`, or activate an environment"
        return Finding(what="python", ok=False, says=says)
    return Finding(what="python", ok=True, says=f"runs use {path}; Fairlead itself runs on {sys.executable}")


def _uncompiled() -> list[Finding]:
    """Check whether Python caches the bytecode of Fairlead; return a finding only if it does not."""
    loaded = [module.__spec__ for name, module in sys.modules.items() if name.partition(".")[0] == "fairlead"]
    files = [(spec.origin, spec.cached) for spec in loaded if spec is not None and spec.origin and spec.cached]
    missing = [source for source, cached in files if not _is_newer(cached, source)]
    if not missing:
        return []
    why = ", as PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else ""
    says = f"{len(missing)} of {len(files)} modules are compiled anew by each command, which makes it slower{why}"
    package = shlex.quote(str(Path(fairlead.__file__).parent))
    return [Finding(what="compiled", ok=True, says=says, remedy=f"{sys.executable} -m compileall -q {package}")]


def _is_newer(path: str, than: str) -> bool:
    try:
        return os.stat(path).st_mtime >= os.stat(than).st_mtime
    except OSError:
        return False


def _packages() -> list[Finding]:
    """Check torch in the Python that runs use, and whether what is installed there works with this machine's GPUs."""
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    try:
        command = [shutil.which("python") or sys.executable, "-c", code]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S, check=False)
        pairs = parse_json(ended.stdout, max_bytes=MOST_ANSWER) if ended.returncode == 0 else []
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return [Finding(what="torch", ok=False, says=f"the Python of runs did not answer: {error}")]
    # Of several with one name the first is imported.
    versions = {re.sub(r"[-_.]+", "-", str(name)).lower(): str(version) for name, version in reversed(pairs)}
    absent = "not in the Python that runs use; `pip install torch` there, if your programs need it"
    return [Finding(what="torch", ok=True, says=versions.get("torch", absent)), *_cuda(versions)]


def _cuda(versions: Mapping[str, str]) -> list[Finding]:
    """Check installed packages against this machine's driver; no finding without a driver, or without such packages."""
    platform = machine.gpu_platform()
    if platform.driver is None:
        return []
    answer = judge(versions.items(), platform)
    if not answer.message:
        return []
    is_unknown = answer.support is Support.UNKNOWN
    says = f"unknown whether it works: {answer.message}" if is_unknown else answer.message
    return [Finding(what="CUDA", ok=answer.support is not Support.REFUSED, says=says, remedy=answer.remedy)]


def _machine() -> Finding:
    node = machine.node()
    driver = machine.gpu_driver() if node.gpus else None
    gpus = ", ".join(gpu.model for gpu in node.gpus) or "no GPU that NVML knows"
    with_driver = "" if driver is None else f", driver {driver}"
    says = f"{describe_cpu(node.cpu_milli)}, {describe_memory(node.memory_bytes)}, {gpus}{with_driver}"
    value = os.environ.get(VARIABLE)
    if node.gpus and value is not None:
        says += (
            f"; {VARIABLE}={value} leaves {len(visible(node.gpus, value))} of {plural(len(node.gpus), 'GPU')} to runs"
        )
    return Finding(what="machine", ok=True, says=says)


def _memory_limits() -> Finding:
    enforcement = limits.enforcement()
    return Finding(what="memory limits", ok=enforcement.parent is not None, says=enforcement.why)


def _state(cluster: LocalCluster) -> Finding:
    path = cluster.home.path
    free, mode = shutil.disk_usage(path).free, stat.S_IMODE(path.stat().st_mode)
    says = f"{path}, mode {mode:04o}, {describe_memory(free)} free"
    trouble = cluster.trouble()
    if trouble is not None:
        return Finding(what="state", ok=False, says=trouble)
    try:
        cluster.store.check()
    except ClusterError as error:
        return Finding(what="state", ok=False, says=str(error))
    if free < LOW_DISK_BYTES:
        return Finding(what="state", ok=False, says=f"{says}: make room, or set FAIRLEAD_HOME to another disk")
    return Finding(what="state", ok=mode == 0o700, says=says)


def _supervisor(cluster: LocalCluster) -> Finding:
    pid = cluster.supervisor_pid()
    says = f"process {pid}"
    if pid is None:
        says = "one runs" if cluster.supervisor_alive() else "none runs; one is started when there is work"
        return Finding(what="supervisor", ok=True, says=says)
    if cluster.supervisor_answers(ANSWER_S) or not cluster.supervisor_alive():
        return Finding(what="supervisor", ok=True, says=says)
    remedy = f"`kill -CONT {pid}` if a signal stopped it; else `kill -9 {pid}`: the next command starts another."
    unheard = f"{says} does not answer within {ANSWER_S:.0f} s; runs continue, but nothing starts, stops or restarts"
    return Finding(what="supervisor", ok=False, says=unheard, remedy=remedy)


def _haproxy(cluster: LocalCluster) -> list[Finding]:
    """Check that haproxy runs with the configuration that the gateway wrote; no finding where it is not chosen."""
    home = cluster.home
    try:
        if gateway_proxy.chosen(home) != HAPROXY:
            return []
        program = gateway_proxy.haproxy_program()
    except ClusterError as error:
        return [Finding(what="haproxy", ok=False, says=str(error))]
    if not is_locked(home.serving / "gateway.lock"):
        return [Finding(what="haproxy", ok=True, says=f"{program}, for the first endpoint")]
    state = gateway_proxy.read_report(home)
    if state is None:
        says = "the gateway that runs does not use it yet: it finishes its requests, and another one follows"
        return [Finding(what="haproxy", ok=True, says=says)]
    if state["problem"] is not None:
        says = f"{state['program']} does not work, so the gateway forwards all requests: {state['problem']}"
        remedy = f"{home.serving / 'haproxy.log'} has its output; `fairlead gateway --proxy python` does without"
        return [Finding(what="haproxy", ok=False, says=says, remedy=remedy)]
    num_held = len(state["held"])
    verb = "stays" if num_held == 1 else "stay"
    stays = (
        f"; {plural(num_held, 'endpoint')} {verb} with the gateway, and `fairlead gateway` says why" if num_held else ""
    )
    return [Finding(what="haproxy", ok=True, says=f"{state['program']} forwards requests{stays}")]
