"""Which directory of the user goes with a run, and the way there: ConfigMaps that the run owns.

A ``workdir`` that is given is taken along. Without one the image has the program; and a run that names no image either
takes the directory of its file, since its program can be nowhere else.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.people.uploads import Uploads
from fairlead.cluster.kubernetes.rendering.workdir import WORKDIR, Archive, pack, part_names, render_parts
from fairlead.errors import ClusterError, Conflict, NotAllowed
from fairlead.policy.quantities import plural, say_memory
from fairlead.specs.training import Training
from fairlead.state.snapshot import Workload

HERE = "."
KEEPER = "fairlead-upload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Luggage:
    """What was chosen.

    Attributes:
        spec: With ``workdir`` as it is kept; that of another person says the same.
        directory: Whose files are taken along; None for none.
        sentence: What is taken along, for people.
        note: The same for a plan; None when nothing was asked for.
    """

    spec: Training
    directory: Path | None = None
    sentence: str | None = None
    note: str | None = None


def choose(spec: Training, directory: Path) -> Luggage:
    """What goes along with a spec whose file is in ``directory``.

    Raises:
        Conflict: It is not there, or too large.
    """
    if spec.workdir is None and spec.image is not None:
        return Luggage(spec=spec)
    place = Path(directory.absolute(), Path(spec.workdir or HERE).expanduser())
    if not place.is_dir():
        if spec.workdir is not None and Path(spec.workdir).is_absolute() and spec.image is not None:
            return Luggage(spec=spec, note=f"{spec.workdir} is not here, so it is taken for a directory of the image")
        raise Conflict(
            f"{spec.name}: workdir: there is no directory {place}. Correct `workdir`; an absolute path that is not "
            "here means a directory of the image, and then `image` has to be given."
        )
    archive = pack(place)
    size = f"{plural(archive.num_files, 'file')} of {place.resolve()}, {say_memory(len(archive.content))} when packed"
    return Luggage(
        spec=replace(spec, workdir=spec.workdir or HERE),
        directory=place,
        sentence=f"Taking along {size}.",
        note=f"{size}, are taken along",
    )


def send(
    client: Client,
    spec: Training,
    directory: Path,
    submit: Callable[[Training, Mapping[str, str]], Workload],
) -> Workload:
    """Send the files, submit the run, and make the files its own.

    Whoever is killed before the run is there leaves files that nothing owns, for a later run to see to, and no run that
    waits for files for ever.
    """
    archive, uploads = pack(directory), Uploads(client, spec.team)
    uploads.collect(time.time())
    with _explained(spec.team):
        uploads.begin(archive.annotation, time.time())
        _put(client, spec.team, archive, None)
    workload = submit(spec, {WORKDIR: archive.annotation})
    with _explained(spec.team):
        # Once more as a whole: another run's end may have taken them away meanwhile.
        _put(client, spec.team, archive, workload)
        uploads.end(archive.annotation)
    return workload


def _put(client: Client, namespace: str, archive: Archive, workload: Workload | None) -> None:
    """Apply each part; an owner by a manager of its own, so that runs that share files each keep theirs."""
    manager = KEEPER if workload is None else f"fairlead-run-{workload.uid[:13]}"
    for name, body in zip(part_names(archive.annotation), render_parts(archive, namespace, workload), strict=True):
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        client.apply(path, body, manager=manager)


@contextmanager
def _explained(namespace: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        if error.status == 403:
            raise NotAllowed(
                f"Your account may not keep files in the namespace {namespace!r}, so the working directory cannot "
                f"be taken along: {error.said}. Ask for the role fairlead-user there, or build the files into the "
                "image and leave `workdir` out."
            ) from error
        if error.status == 404:
            raise ClusterError(
                f"There is no namespace {namespace!r}. Create it, apply a Team of that name, or choose another "
                "with `--namespace`."
            ) from error
        raise
