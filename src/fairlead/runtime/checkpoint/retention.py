"""Chooses which checkpoints may go after one has succeeded. Pure."""

from collections.abc import Collection


def outdated(complete: Collection[int], *, newest: int, keep: int, unusable: Collection[int]) -> list[int]:
    """Steps of complete checkpoints to remove, oldest first.

    Args:
        complete: Steps that have a manifest.
        newest: The one that was just saved; it always stays.
        keep: How many stay, the newest included.
        unusable: Steps that were found damaged, or could not be loaded, since the program started. They count for
            nothing: what they promised was trained again, and a later start must not prefer them.
    """
    usable = sorted((set(complete) - set(unusable)) | {newest})
    earlier = [step for step in usable if step != newest]
    kept = {newest, *earlier[max(len(earlier) - (keep - 1), 0) :]}
    return sorted(step for step in complete if step not in kept)
