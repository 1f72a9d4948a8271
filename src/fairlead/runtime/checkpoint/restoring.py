"""Finds the newest checkpoint that is undamaged and belongs to this program, and loads it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.content import Content
from fairlead.runtime.checkpoint.manifest import INTERVAL, DamagedError, Manifest, NewerError, verify
from fairlead.runtime.checkpoint.problems import Failed, failure, settle
from fairlead.runtime.checkpoint.store import CheckpointSource
from fairlead.runtime.errors import CheckpointMismatch, StoreUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A checkpoint that was skipped, and the reason."""

    step: int
    reason: str
    in_memory: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The checkpoint that was loaded.

    Attributes:
        step: Completed steps; 0 if none was loaded.
        saved_by: Number of ranks that saved it; 0 if none was loaded.
        rejected: Newer checkpoints that were skipped.
        run: Identity of the run that saved it; empty if none was loaded.
        attempt: Attempt of the run that saved it.
        interval: The result of ``save_interval.Interval.measurements`` stored with it; empty if there is none.
        in_memory: The checkpoint was loaded from the memory of the nodes.
    """

    step: int
    saved_by: int
    rejected: tuple[Rejected, ...]
    run: str = ""
    attempt: int = 0
    interval: Mapping[str, Any] = field(default_factory=dict)
    in_memory: bool = False


def restore(
    *,
    store: CheckpointSource,
    content: Content,
    channel: Channel,
    node: int,
    local_rank: int,
    reject: Callable[[Rejected], None],
    memory: CheckpointSource | None = None,
    advice: str = "Change the program back, or give the run another place for its checkpoints",
) -> Restored:
    """Load the newest usable checkpoint on all ranks, from the memory of the nodes if that is as new as the disk's.

    ``reject`` is called on all ranks as soon as a checkpoint is skipped. ``advice`` ends the message if none fits the
    program.

    Raises:
        StoreUnavailable: The store cannot be read, or a newer version has saved to it. Starting over would be wrong,
            because it may hold checkpoints.
        CheckpointMismatch: There are undamaged checkpoints, but none can be loaded into this program.
    """
    steps: list[int] = []
    problem = failure(lambda: steps.extend(store.steps())) if channel.rank == 0 else None
    answers = _or_unavailable(channel, problem, steps)
    rejected: list[Rejected] = []
    touched = ""

    def passed_over(source: CheckpointSource, step: int, reason: str) -> None:
        rejected.append(Rejected(step=step, reason=reason, in_memory=source is memory))
        reject(rejected[-1])

    sources: list[tuple[int, CheckpointSource]] = [(step, store) for step in answers[0]]
    if memory is not None:
        sources += [(step, memory) for step in memory.steps()]
    sources.sort(key=lambda source: (source[0], source[1] is memory))
    for step, source in reversed(sources):
        manifest, reason = _manifest(source, channel, step)
        if manifest is None:
            passed_over(source, step, reason)
            continue
        own, directory, reason = _fetch(source, channel, manifest, node=node, local_rank=local_rank)
        try:
            if directory is None:
                passed_over(source, step, reason)
                continue
            for phase in content.loading(manifest):
                settle(channel, failure(partial(phase, directory)))
            return Restored(
                step=step,
                saved_by=manifest.world_size,
                rejected=tuple(rejected),
                run=manifest.run,
                attempt=manifest.attempt,
                interval=manifest.content.get(INTERVAL, {}),
                in_memory=source is memory,
            )
        except (Failed, CheckpointMismatch) as error:
            touched = str(error)
            passed_over(source, step, touched)
        finally:
            if not source.shared:
                channel.gather(None)  # every rank of the pod reads from the one directory
            if own is not None:
                source.release(own)
    if touched:
        # Continuing would train from a partly loaded state, and eventually remove checkpoints that are still usable.
        raise CheckpointMismatch(
            f"{store.place} holds sound checkpoints, but none can be loaded into this program: {touched}. {advice}"
        )
    return Restored(step=0, saved_by=0, rejected=tuple(rejected))


def _manifest(store: CheckpointSource, channel: Channel, step: int) -> tuple[Manifest | None, str]:
    """Return the manifest that rank 0 read, or None and the damage."""
    text, damage = "", ""
    problem: Exception | None = None
    if channel.rank == 0:
        try:
            manifest = store.manifest(step)
            if manifest.step != step:
                raise DamagedError(f"its manifest is that of step {manifest.step}")
            text = manifest.to_json().decode()
        except NewerError as error:
            problem = StoreUnavailable(f"{store.place}: the checkpoint of step {step}: {error}")
        except DamagedError as error:
            damage = str(error)
        except (OSError, StoreUnavailable) as error:
            problem = error
    text, damage = _or_unavailable(channel, problem, [text, damage])[0]
    return (None, damage) if damage else (Manifest.from_json(text.encode()), "")


def _fetch(
    store: CheckpointSource, channel: Channel, manifest: Manifest, *, node: int, local_rank: int
) -> tuple[Path | None, Path | None, str]:
    """Fetch the files for every rank and verify them, once for all ranks or once for each pod.

    Returns the directory that this rank has to release, the directory to load from, and the damage. With damage there
    is no directory to load from.
    """
    names = sorted(manifest.files)
    own: Path | None = None
    damage = ""
    problem: Exception | None = None
    try:
        if store.shared or local_rank == 0:
            own = store.fetch(manifest.step, names)
    except DamagedError as error:
        damage = str(error)
    except (OSError, StoreUnavailable) as error:
        problem = error
    answers = _or_unavailable(channel, problem, [node, local_rank, None if own is None else str(own), damage])
    damages = [answer[3] for answer in answers if answer[3]]
    if damages:
        return own, None, damages[0]
    beside = [rank for rank, answer in enumerate(answers) if store.shared or answer[0] == node]
    fetched = own or next((Path(path) for where, local, path, _ in answers if where == node and local == 0), None)
    if fetched is None:
        raise StoreUnavailable(f"no rank of pod {node} has LOCAL_RANK 0, which fetches the checkpoints")
    try:
        # Ranks that read the same files share the work of verifying them.
        verify(fetched, manifest, names[beside.index(channel.rank) :: len(beside)])
    except DamagedError as error:
        damage = str(error)
    damages = [text for text in channel.gather(damage) if text]
    return (own, None, damages[0]) if damages else (own, fetched, "")


def _or_unavailable(channel: Channel, problem: Exception | None, value: Any) -> list[Any]:
    try:
        return settle(channel, problem, value)
    except Failed as error:
        raise StoreUnavailable(str(error)) from error
