"""A Flower app trains under a Federation as under Flower alone, through kills, and only with sites that are enrolled.

`pytest -m frameworks` runs these; the first time makes an environment with Flower and scikit-learn.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairlead.cluster.local.cluster import LocalCluster
from fairlead.runtime.federation import flower_app, identities
from fairlead.state.snapshot import AnyWorkload, Phase
from tests.frameworks.environments import interpreter_with
from tests.frameworks.flower_rounds import STRATEGIES
from tests.home import end_everything
from tests.ports import free_port, listens
from tests.processes import Child
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.frameworks, pytest.mark.timeout(1800)]
APP = Path(__file__).parent / "digits_app"
RUN_TIMEOUT_S = 900.0
SITES = ("north", "south", "west")
MANY_ROUNDS, MOST_KILLS, BETWEEN_KILLS_S = 100, 20, (5.0, 40.0)
MARK = b"a patient of this site 7f3a9c"
"""Bytes in the data of each site, which its client reads."""


@pytest.fixture(scope="module")
def programs() -> Path:
    return interpreter_with("flower").parent


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = LocalCluster.open(tmp_path / "home")
    yield cluster
    cluster.close()
    end_everything(tmp_path / "home")


def submit(
    cluster: LocalCluster, programs: Path, directory: Path, result: Path, rounds: int, data: Path | None = None,
    others: str = "",
) -> str:  # fmt: skip
    """Submit a federation by the command line, and return its uid."""
    own = "" if data is None else f", data: {data}/{{}}"
    sites = "".join(f"  {name}: {{resources: {{cpu: 0.1}}{own.format(name)}}}\n" for name in SITES)
    text = f"kind: Federation\nname: digits\napp: {APP}\nresources: {{cpu: 0.1}}\nrounds: {rounds}\nsites:\n{sites}"
    text += others
    (directory / "federation.yaml").write_text(text)
    env = {
        **os.environ, "FAIRLEAD_HOME": str(cluster.home.path), "DIGITS_RESULT": str(result),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    argv = [str(Path(sys.executable).with_name("fairlead")), "run", "federation.yaml", "--detach"]
    subprocess.run(argv, cwd=directory, env=env, check=True, timeout=120)
    return cluster.find("digits").uid


def parameters(path: Path) -> list[Any]:
    with np.load(path) as stored:
        return [stored[name] for name in stored.files]


def under_flower_alone(directory: Path, programs: Path, result: Path) -> None:
    """Train by Flower's own commands, without TLS."""
    port = free_port()
    home = directory / "flwr"
    home.mkdir()
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    env: Mapping[str, str] = {
        **os.environ, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "DIGITS_RESULT": str(result),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    shared = ["--insecure", "--host", "127.0.0.1", "--port"]
    link = [str(programs / "flower-superlink"), *shared, str(port), "--disable-runtime-dependency-installation"]
    nodes = [
        [
            str(programs / "flower-supernode"), *shared, str(free_port()), "--superlink", f"127.0.0.1:{port}",
            "--node-config", f"partition-id={number} num-partitions={len(SITES)}",
        ]
        for number in range(len(SITES))
    ]  # fmt: skip
    children: list[Child[bytes]] = [Child([*argv], env=dict(env), limit_s=RUN_TIMEOUT_S) for argv in (link, *nodes)]
    try:
        until(lambda: listens(port), "SuperLink that listens")
        ended = subprocess.run(
            [str(programs / "flwr"), "run", str(APP), "here", "--stream"], env=dict(env), timeout=RUN_TIMEOUT_S,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.exists(), (ended.stdout + ended.stderr)[-3000:]
    finally:
        for child in children:
            child.terminate()
            child.wait(60)


def wait_for_end(cluster: LocalCluster, uid: str) -> AnyWorkload:
    until(lambda: cluster.get(uid).status.phase.is_final, timeout_s=RUN_TIMEOUT_S)
    return cluster.get(uid)


@pytest.fixture(scope="module")
def rounds_in_one_process(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> dict[str, Any]:
    """Results of rounds with calls in place of nodes, by their names."""
    app = tmp_path_factory.mktemp("rounds") / "app"
    shutil.copytree(APP, app)
    shutil.copyfile(Path(flower_app.__file__), app / "fairlead_flower_app.py")
    program = Path(__file__).with_name("flower_rounds.py")
    argv = [str(programs / "python"), str(program), str(app), str(MANY_ROUNDS)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]
    results: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return results


def test_rounds_under_the_wrapper_are_those_of_flower_alone_through_faults_and_restarts(
    rounds_in_one_process: dict[str, Any],
) -> None:
    results = rounds_in_one_process
    alone = results["alone"]["digest"]
    rounds = ["round"] * 5
    for name, events in {
        "wrapped": [*rounds, "finished"],
        "too few at first": ["round", "repeated", *rounds[1:], "finished"],
        "not finite": ["round", "left_out", "repeated", *rounds[1:], "finished"],
        "continued": ["round", "round", "round", "finished", "resumed", "round", "round", "finished"],
    }.items():
        assert (results[name]["events"], results[name]["digest"]) == (events, alone), name
    # The sum of the losses of sites may be in another order.
    assert results["not finite"]["losses"] == pytest.approx(results["wrapped"]["losses"])
    assert results["continued after its end"]["digest"] == alone
    assert results["one away"]["events"] == [*rounds, "finished"]
    assert results["one away"]["digest"] != alone


@pytest.mark.parametrize(
    ("name", "problem"), [("one left out", "not_finite"), ("wrong shape", "misshapen"), ("wrong weight", "bad_weight")]
)
def test_an_update_that_would_spoil_the_model_is_left_out_with_the_name_of_its_site(
    rounds_in_one_process: dict[str, Any], name: str, problem: str
) -> None:
    results = rounds_in_one_process
    assert results[name]["left out"] == [["west", problem]]
    assert results[name]["events"] == ["round", "left_out", *["round"] * 4, "finished"]
    assert results[name]["updates"] == [3, 2, 3, 3, 3]
    digests = {results[other]["digest"] for other in ("one left out", "wrong shape", "wrong weight")}
    assert len(digests) == 1, "the model is that of the other sites' updates"


def test_private_rounds_clip_add_noise_of_the_promised_size_and_end_with_the_budget(
    rounds_in_one_process: dict[str, Any],
) -> None:
    results = rounds_in_one_process
    model = {name: np.array(result["model"]) for name, result in results.items() if result["model"] is not None}
    assert model["hardly private"] == pytest.approx(model["FedAvg alone"], abs=1e-9)
    assert results["one away of a private round"]["updates"] == [2, 3, 3, 3, 3]
    assert np.linalg.norm(model["clipped"]) <= 5 * 1.0001e-3
    # Five rounds of noise with standard deviation z C / N; the clipped updates add 0.04 C a round to a coordinate.
    assert np.std(model["noisy"]) == pytest.approx(5**0.5 * 1e-3 / 3, rel=0.15)
    assert not np.allclose(model["noisy"], model["noisy again"]), "an app that seeds NumPy knew the noise"
    assert set(results["by chance"]["updates"]) <= {0, 1, 2, 3}
    assert results["budget"]["events"] == ["round", "round", "finished"]
    assert results["nothing left"]["events"] == ["round", "round", "finished", "resumed", "finished"]
    assert results["some spent"]["events"] == ["round", "round", "finished"]
    assert "aggregates in another way than FedAvg" in results["own aggregation"]["problem"]
    assert "aggregates in another way than FedAvg" in results["median"]["problem"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_chosen_strategy_is_that_of_flower_also_where_it_continues(
    rounds_in_one_process: dict[str, Any], strategy: str
) -> None:
    digests = [
        rounds_in_one_process[f"{strategy} {how}"]["digest"]
        for how in ("alone", "chosen", "with its own evaluation", "continued")
    ]
    assert digests == [digests[0]] * 4
    is_mean = strategy in ("FedAvg", "FedProx")  # this client has no proximal term
    assert (digests[0] == rounds_in_one_process["FedAvg alone"]["digest"]) is is_mean


def test_a_chosen_strategy_keeps_the_settings_of_the_app_and_refuses_training_of_its_own(
    rounds_in_one_process: dict[str, Any],
) -> None:
    results = rounds_in_one_process
    assert results["app's own FedAdam"]["digest"] == results["FedAdam of that rate"]["digest"]
    assert results["refused"]["problem"] == (
        "aggregate: the app's strategy OrderedFedAvg has its own aggregate_train, which FedAdam would not do; leave "
        "`aggregate` out"
    )
    assert "is a FedXgbBagging" in results["trees"]["problem"]


def test_a_sample_of_the_sites_trains_in_each_round(rounds_in_one_process: dict[str, Any]) -> None:
    assert rounds_in_one_process["sample"]["updates"] == [2] * 5
    assert rounds_in_one_process["sample of few"]["updates"] == [2] * 5


def test_an_app_trains_to_the_same_parameters_as_under_flower_alone(
    cluster: LocalCluster, tmp_path: Path, programs: Path
) -> None:
    uid = submit(cluster, programs, tmp_path, tmp_path / "ours.npz", rounds=3)
    federation = wait_for_end(cluster, uid)
    assert federation.status.phase is Phase.SUCCEEDED, federation.status.reason.message
    assert "3 of 3 rounds done" in federation.status.reason.message
    under_flower_alone(tmp_path, programs, tmp_path / "alone.npz")
    for ours, alone in zip(parameters(tmp_path / "ours.npz"), parameters(tmp_path / "alone.npz"), strict=True):
        assert ours.tobytes() == alone.tobytes()


def test_a_killed_client_and_a_killed_server_return_and_the_rounds_end_as_they_would_have(
    cluster: LocalCluster, tmp_path: Path, programs: Path
) -> None:
    uid = submit(cluster, programs, tmp_path, tmp_path / "ours.npz", rounds=4)
    until(lambda: "1 of 4" in cluster.get(uid).status.reason.message, timeout_s=RUN_TIMEOUT_S)
    for name in ("digits-south", "digits-server"):
        run = cluster.find(name)
        (pod,) = cluster.pods(run.uid)
        os.kill(rank_of(cluster, run.uid, pod.uid), signal.SIGKILL)
    federation = wait_for_end(cluster, uid)
    assert federation.status.phase is Phase.SUCCEEDED, federation.status.reason.message
    assert (tmp_path / "ours.npz").exists()


@pytest.mark.long
@pytest.mark.timeout(2 * 3600)
def test_many_rounds_through_kills_of_anything_lose_and_repeat_no_update_and_leave_no_data_outside_of_a_site(
    cluster: LocalCluster,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    programs: Path,
    rounds_in_one_process: dict[str, Any],
) -> None:
    data, draws = tmp_path_factory.mktemp("data"), random.Random(7)
    for name in SITES:
        (data / name).mkdir(parents=True)
        (data / name / "mark").write_bytes(MARK)
    uid = submit(cluster, programs, tmp_path, tmp_path / "ours.npz", MANY_ROUNDS, data, "deadline: 1m\nretry: 1000\n")
    kills = 0
    while not cluster.get(uid).status.phase.is_final:
        time.sleep(draws.uniform(*BETWEEN_KILLS_S))
        processes = processes_below(cluster.home.path)
        if processes and kills < MOST_KILLS:
            kills += kill(draws.choice(processes))
    federation = cluster.get(uid)
    assert federation.status.phase is Phase.SUCCEEDED, federation.status.reason.message
    assert f"{MANY_ROUNDS} of {MANY_ROUNDS} rounds done" in federation.status.reason.message
    assert kills >= MOST_KILLS // 2
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parameters(tmp_path / "ours.npz"))).hexdigest()
    assert digest == rounds_in_one_process["many"]["digest"], "an update was lost, or counted twice"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [str(path) for path in files if MARK in path.read_bytes()] == []


def processes_below(home: Path) -> list[int]:
    """Return the processes of all runs of a home: ranks and shims, and what Flower starts of them."""
    own = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it has ended, or is another user's
        if f"FAIRLEAD_RUN_DIR={home}/".encode() in environ and b"FEDERATION=" in environ:
            own.append(int(entry.name))
    return own


def kill(process: int) -> bool:
    """Kill a process; return whether it was still alive."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def rank_of(cluster: LocalCluster, run: str, pod: str) -> int:
    """Return the process of a pod's only rank."""
    content = json.loads((cluster.home.pod(run, pod) / "started.json").read_text())
    return int(content["pids"]["0"])


def test_a_node_that_is_not_enrolled_is_refused(cluster: LocalCluster, tmp_path: Path, programs: Path) -> None:
    submit(cluster, programs, tmp_path, tmp_path / "ours.npz", rounds=50)
    until(lambda: "digits-server" in cluster.store.names(), "server's run")
    files = cluster.home.run(cluster.find("digits-server").uid) / "files" / "federation"
    until((files / "address.json").exists, timeout_s=RUN_TIMEOUT_S)
    port = json.loads((files / "address.json").read_text())["port"]
    identities.make_site_key(tmp_path)
    argv = [
        str(programs / "flower-supernode"), "--superlink", f"127.0.0.1:{port}", "--root-certificates",
        str(files / "ca.crt"), "--auth-supernode-private-key", str(tmp_path / "site.key"), "--host", "127.0.0.1",
        "--port", str(free_port()),
    ]  # fmt: skip
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "flwr"), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
    log = tmp_path / "stranger.log"
    with log.open("wb") as output:
        stranger = Child([*argv], env=environment, limit_s=RUN_TIMEOUT_S, stdout=output, stderr=output)
    try:
        until(lambda: stranger.poll() is not None, log.read_text)
    finally:
        stranger.terminate()
        stranger.wait(60)
    assert stranger.returncode != 0
    assert "Failed to activate SuperNode" in log.read_text()
