"""Chooses the checkpoints to remove after one has succeeded. Pure."""

from collections.abc import Collection


def outdated(complete: Collection[int], *, newest: int, keep: int, unusable: Collection[int]) -> list[int]:
    """Return the steps of complete checkpoints to remove, oldest first.

    Args:
        complete: Steps that have a manifest.
        newest: The step that was just saved; it is always kept.
        keep: Number of checkpoints to keep, including the newest.
        unusable: Steps that were found damaged, or could not be loaded, since the program started. They do not count:
        their steps were trained again, and a later attempt must not prefer them.
    """
    usable = sorted((set(complete) - set(unusable)) | {newest})
    earlier = [step for step in usable if step != newest]
    retained = {newest, *earlier[max(len(earlier) - (keep - 1), 0) :]}
    return sorted(step for step in complete if step not in retained)
