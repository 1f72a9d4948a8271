"""Tells whether a GPU can be partitioned in a way, by the tables of ``fairlead.policy.gpu.mig``."""

from collections.abc import Iterable

from fairlead.policy.gpu.mig import MigInstance, Partitionable


def why_illegal(model: Partitionable, layout: Iterable[MigInstance]) -> str | None:
    """Return why a GPU cannot be partitioned like this, as what follows its name; None when it can."""
    taken: dict[int, MigInstance] = {}
    media: MigInstance | None = None
    for instance in layout:
        profile = model.profiles.get(instance.profile)
        if profile is None:
            return f"has no profile {instance.profile}; it has {', '.join(model.profiles)}"
        if instance.start not in profile.starts:
            starts = ", ".join(str(start) for start in profile.starts)
            return f"has no {instance.profile} that begins at slice {instance.start}; one may begin at {starts}"
        for at in model.slices(instance):
            if at in taken:
                return f"has one slice {at}, on which both {taken[at].profile} and {instance.profile} would lie"
            taken[at] = instance
        if profile.has_media and media is not None:
            return f"has one set of media engines, which both {media.profile} and {instance.profile} would take"
        media = instance if profile.has_media else media
    return None
