"""Reads a rank's environment once: torchrun's variables and Fairlead's own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.runtime import run_key
from fairlead.runtime.errors import Misuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The pod contract from one rank's view; the defaults are those of a plain ``python script.py``.

    Attributes:
        rank: Number of this process among all ranks.
        world_size: Number of ranks.
        local_rank: Number of this process among the ranks of its pod.
        local_size: Number of ranks of its pod.
        node: Number of the pod.
        run: Name of the run; empty outside Fairlead.
        run_uid: Identity of the run, the same over its attempts.
        attempt: Number of earlier starts of the run.
        pod_dir: Directory for reports; None outside Fairlead, where progress is printed instead.
        run_dir: Directory that is kept across attempts.
        checkpoint_to: Directory or URL of this run's checkpoints; None for none.
        checkpoint_step: Step of the newest complete checkpoint that earlier attempts reported; None if there is none.
        checkpoint_from: Directory or URL of the checkpoints from which a run without its own starts; None for none.
        every_s: Seconds between checkpoints; None if they are not due by time.
        every_steps: Steps between checkpoints; None if they are not due by steps.
        every_auto: The seconds between checkpoints are chosen automatically; excludes the other two.
        node_failures_per_day: Expected failures a day of the nodes of this start; None if nothing is known of them.
        keep: Number of complete checkpoints that are kept, at least 1.
        trust: Whoever can write checkpoints is trusted to run programs as this run, which loading objects does.
        memory_dir: Directory in which the nodes keep checkpoints in memory; None for no such checkpoints.
        memory_every_s: Seconds between saves into memory; None if they are not due by time.
        memory_every_steps: Steps between saves into memory; None if they are not due by steps.
        master_addr: Host of rank 0.
        agree_port: Port on that host for Fairlead's own use; None if none is reserved.
        key_file: Path of the run's key, by which its ranks know each other; None outside Fairlead.
        grace_s: Seconds between a stop notice and the kill.
        parallel: The split of a step as JSON, as ``parallel.read_split`` accepts it; None if the spec has none.
        terminate_on_nan: A loss that is NaN or infinite ends the program.
        traced: The program runs with fake tensors, to measure the memory that it would allocate.
        probed: This attempt only measures how long a step of its split takes.
        members_dir: Directory through which ranks continue in place after one is killed; None if all restart instead.
        members_at: Host and port of the server through which they do so in pods; None if they share the directory.
        replacement: Number of pods of its index that were lost in this attempt while the others went on in place.
        elastic: The next attempt of the run may have another number of ranks, as its spec allows.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node: int = 0
    run: str = ""
    run_uid: str = ""
    attempt: int = 0
    pod_dir: Path | None = None
    run_dir: Path
    checkpoint_to: str | None = None
    checkpoint_step: int | None = None
    checkpoint_from: str | None = None
    every_s: float | None = None
    every_steps: int | None = None
    every_auto: bool = False
    node_failures_per_day: float | None = None
    keep: int = 3
    trust: bool = False
    memory_dir: Path | None = None
    memory_every_s: float | None = None
    memory_every_steps: int | None = None
    master_addr: str = "127.0.0.1"
    agree_port: int | None = None
    key_file: str | None = None
    grace_s: float = 30.0
    terminate_on_nan: bool = True
    members_dir: Path | None = None
    members_at: tuple[str, int] | None = None
    replacement: int = 0
    elastic: bool = False
    parallel: str | None = None
    traced: bool = False
    probed: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise Misuse(
                f"RANK is {self.rank} and WORLD_SIZE is {self.world_size}; a rank lies between 0 and the size - 1"
            )
        if self.keep < 1:
            raise Misuse(f"{self.keep} checkpoints to keep; keep at least 1")
        if self.every_s is not None and self.every_s <= 0:
            raise Misuse(f"a checkpoint every {self.every_s} seconds; give more than 0")
        if self.every_steps is not None and self.every_steps < 1:
            raise Misuse(f"a checkpoint every {self.every_steps} steps; give at least 1")


def read_environment(
    environ: Mapping[str, str],
    *,
    checkpoint_to: str | None = None,
    checkpoint_from: str | None = None,
    every_s: float | None = None,
    every_steps: int | None = None,
    keep: int | None = None,
) -> Environment:
    """Return the environment, with the program's own values where the environment has none.

    Raises:
        Misuse: A variable is not a number, or the numbers contradict each other.
    """
    given_every_s = _number(environ, "FAIRLEAD_CHECKPOINT_EVERY_S")
    given_every_steps = _whole(environ, "FAIRLEAD_CHECKPOINT_EVERY_STEPS")
    every_auto = environ.get("FAIRLEAD_CHECKPOINT_EVERY_AUTO") == "1"
    if given_every_s is None and given_every_steps is None and not every_auto:
        given_every_s, given_every_steps = every_s, every_steps
    if given_every_s is not None and given_every_steps is not None:
        raise Misuse("a checkpoint is due either after some seconds or after some steps; give one of the two")
    pod_dir = environ.get("FAIRLEAD_POD_DIR")
    members_dir = environ.get("FAIRLEAD_MEMBERS_DIR")
    members_host = environ.get("FAIRLEAD_MEMBERS_HOST")
    members_port = _whole(environ, "FAIRLEAD_MEMBERS_PORT")
    memory_dir = environ.get("FAIRLEAD_CHECKPOINT_MEMORY")
    grace_s = _number(environ, "FAIRLEAD_GRACE_S")
    return Environment(
        rank=_whole(environ, "RANK") or 0,
        world_size=_whole(environ, "WORLD_SIZE") or 1,
        local_rank=_whole(environ, "LOCAL_RANK") or 0,
        local_size=_whole(environ, "LOCAL_WORLD_SIZE") or 1,
        node=_whole(environ, "GROUP_RANK") or 0,
        run=environ.get("FAIRLEAD_RUN", ""),
        run_uid=environ.get("FAIRLEAD_RUN_UID", ""),
        attempt=_whole(environ, "FAIRLEAD_ATTEMPT") or _whole(environ, "TORCHELASTIC_RESTART_COUNT") or 0,
        pod_dir=Path(pod_dir) if pod_dir else None,
        run_dir=Path(environ.get("FAIRLEAD_RUN_DIR") or "."),
        checkpoint_to=environ.get("FAIRLEAD_CHECKPOINT_TO") or checkpoint_to,
        checkpoint_step=_whole(environ, "FAIRLEAD_CHECKPOINT_STEP"),
        checkpoint_from=environ.get("FAIRLEAD_CHECKPOINT_FROM") or checkpoint_from,
        every_s=given_every_s,
        every_steps=given_every_steps,
        every_auto=every_auto,
        node_failures_per_day=_number(environ, "FAIRLEAD_NODE_FAILURES_PER_DAY"),
        keep=_whole(environ, "FAIRLEAD_CHECKPOINT_KEEP") or (3 if keep is None else keep),
        trust=environ.get("FAIRLEAD_CHECKPOINT_TRUST") == "1",
        memory_dir=Path(memory_dir) if memory_dir else None,
        memory_every_s=_number(environ, "FAIRLEAD_CHECKPOINT_MEMORY_EVERY_S"),
        memory_every_steps=_whole(environ, "FAIRLEAD_CHECKPOINT_MEMORY_EVERY_STEPS"),
        master_addr=environ.get("MASTER_ADDR") or "127.0.0.1",
        agree_port=_whole(environ, "FAIRLEAD_AGREE_PORT"),
        key_file=environ.get(run_key.FILE) or None,
        grace_s=30.0 if grace_s is None else grace_s,
        terminate_on_nan=environ.get("FAIRLEAD_TERMINATE_ON_NAN") != "0",
        members_dir=Path(members_dir) if members_dir else None,
        members_at=(members_host, members_port) if members_host and members_port else None,
        replacement=_whole(environ, "FAIRLEAD_REPLACEMENT") or 0,
        elastic=environ.get("FAIRLEAD_ELASTIC") == "1",
        parallel=environ.get("FAIRLEAD_PARALLEL") or None,
        traced=environ.get("FAIRLEAD_TRACED") == "1",
        probed=environ.get("FAIRLEAD_PROBE") == "1",
    )


def _whole(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return int(text)
    except ValueError as error:
        raise Misuse(f"{name} is {text!r}; it must be a whole number") from error


def _number(environ: Mapping[str, str], name: str) -> float | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise Misuse(f"{name} is {text!r}; it must be a number of seconds") from error
