"""Finding the newest checkpoint that is sound and belongs to this program, and loading it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fairlead.runtime.channels import Channel
from fairlead.runtime.checkpoint.content import Content
from fairlead.runtime.checkpoint.manifest import INTERVAL, DamagedError, Manifest, verify
from fairlead.runtime.checkpoint.problems import Failed, failure, settle
from fairlead.runtime.checkpoint.store import Store
from fairlead.runtime.errors import CheckpointMismatch, StoreUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A checkpoint that was passed over, and why."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The checkpoint that was loaded.

    Attributes:
        step: Completed steps; 0 when nothing was loaded.
        saved_by: How many ranks saved it; 0 when nothing was loaded.
        rejected: Newer checkpoints that were passed over.
        attempt: Start of the run that saved it.
        interval: What ``save_interval.Interval.kept`` gave for it; empty when nothing did.
    """

    step: int
    saved_by: int
    rejected: tuple[Rejected, ...]
    attempt: int = 0
    interval: Mapping[str, Any] = field(default_factory=dict)


def restore(
    *,
    store: Store,
    content: Content,
    channel: Channel,
    node: int,
    local_rank: int,
    reject: Callable[[Rejected], None],
    advice: str = "Change the program back, or give the run another place for its checkpoints",
) -> Restored:
    """Load the newest good checkpoint on all ranks.

    ``reject`` is called, on all ranks, as soon as one is passed over; ``advice`` is for when none fits the program.

    Raises:
        StoreUnavailable: The place cannot be read; starting over would be wrong, for the checkpoints may be there.
        CheckpointMismatch: There are sound checkpoints, but none can be loaded into this program.
    """
    steps: list[int] = []
    problem = failure(lambda: steps.extend(store.steps())) if channel.rank == 0 else None
    answers = _or_unavailable(channel, problem, steps)
    rejected: list[Rejected] = []
    touched = ""

    def passed_over(step: int, reason: str) -> None:
        rejected.append(Rejected(step=step, reason=reason))
        reject(rejected[-1])

    for step in reversed(answers[0]):
        manifest, reason = _manifest(store, channel, step)
        if manifest is None:
            passed_over(step, reason)
            continue
        own, directory, reason = _fetch(store, channel, manifest, node=node, local_rank=local_rank)
        try:
            if directory is None:
                passed_over(step, reason)
                continue
            for phase in content.loading(manifest):
                settle(channel, failure(partial(phase, directory)))
            return Restored(
                step=step,
                saved_by=manifest.world_size,
                rejected=tuple(rejected),
                attempt=manifest.attempt,
                interval=manifest.content.get(INTERVAL, {}),
            )
        except (Failed, CheckpointMismatch) as error:
            touched = str(error)
            passed_over(step, touched)
        finally:
            if not store.shared:
                channel.gather(None)  # every rank of the pod reads from the one directory
            if own is not None:
                store.release(own)
    if touched:
        # Going on would train from a state that is half loaded, and in time remove what could still be saved.
        raise CheckpointMismatch(
            f"{store.place} holds sound checkpoints, but none can be loaded into this program: {touched}. {advice}"
        )
    return Restored(step=0, saved_by=0, rejected=tuple(rejected))


def _manifest(store: Store, channel: Channel, step: int) -> tuple[Manifest | None, str]:
    """The manifest as rank 0 reads it; what is wrong with it otherwise."""
    text, damage = "", ""
    problem: Exception | None = None
    if channel.rank == 0:
        try:
            manifest = store.manifest(step)
            if manifest.step != step:
                raise DamagedError(f"its manifest is that of step {manifest.step}")
            text = manifest.to_json().decode()
        except DamagedError as error:
            damage = str(error)
        except (OSError, StoreUnavailable) as error:
            problem = error
    text, damage = _or_unavailable(channel, problem, [text, damage])[0]
    return (None, damage) if damage else (Manifest.from_json(text.encode()), "")


def _fetch(
    store: Store, channel: Channel, manifest: Manifest, *, node: int, local_rank: int
) -> tuple[Path | None, Path | None, str]:
    """Bring the files to every rank and check them, each once for all ranks or once for each pod.

    Returns what this rank has to release, the directory to load from, and the damage; with damage there is no
    directory.
    """
    names = sorted(manifest.files)
    own: Path | None = None
    damage = ""
    problem: Exception | None = None
    try:
        if store.shared:
            own = store.fetch(manifest.step, names)
            verify(own, manifest, names[channel.rank :: channel.world_size])
        elif local_rank == 0:
            own = store.fetch(manifest.step, names)
            verify(own, manifest, names)
    except DamagedError as error:
        damage = str(error)
    except (OSError, StoreUnavailable) as error:
        problem = error
        if own is not None:
            store.release(own)
    answers = _or_unavailable(channel, problem, [node, local_rank, None if own is None else str(own), damage])
    damages = [answer[3] for answer in answers if answer[3]]
    if damages:
        return own, None, damages[0]
    if own is not None:
        return own, own, ""
    fetched = next((path for where, local, path, _ in answers if where == node and local == 0), None)
    if fetched is None:
        raise StoreUnavailable(f"no rank of pod {node} has LOCAL_RANK 0, which fetches the checkpoints")
    return None, Path(fetched), ""


def _or_unavailable(channel: Channel, problem: Exception | None, value: Any) -> list[Any]:
    try:
        return settle(channel, problem, value)
    except Failed as error:
        raise StoreUnavailable(str(error)) from error
