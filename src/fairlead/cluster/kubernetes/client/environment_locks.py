"""Stores the lock of a run's environment with its object, whose `image` has exactly that.

Objects have no `environment`: a command replaces it by the image that it pushed. The lock is an annotation, which also
names the image, so that it does not outlive a change of that. Trials have the image in their specs, and the lock is
that of their parent, which a thousand copies would only repeat.
"""

import base64
import gzip
import io
import json
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fairlead.cluster.kubernetes import names
from fairlead.cluster.kubernetes.api.client import ApiError, Client
from fairlead.cluster.kubernetes.kinds import is_parent_kind, objects_path
from fairlead.errors import Conflict
from fairlead.policy.kinds.table import map_runs, runs_of
from fairlead.specs.environment import NOT_MADE_IN_PODS
from fairlead.specs.pipeline import Pipeline
from fairlead.specs.training import Training
from fairlead.specs.workload import Spec
from fairlead.untrusted_json import parse_object

ENVIRONMENT = f"{names.DOMAIN}/environment"
MOST_PACKED = 96 * 1024
"""Of a lock that goes into an annotation; all annotations of an object may have 256 KiB."""
MOST_BYTES = 4 << 20


def with_image(spec: Spec) -> tuple[Spec, dict[str, str]]:
    """Return a spec with images in place of environments, and the annotations with their lock.

    Raises:
        Conflict: An environment has no image yet.
    """
    environments = [run.environment for run in runs_of(spec) if run.environment is not None]
    if not environments:
        return spec, {}
    first = environments[0]
    if not all(environment.image for environment in environments):
        raise Conflict(f"{spec.name}: environment: {NOT_MADE_IN_PODS}.")

    def replaced(run: Training) -> Training:
        if run.environment is None:
            return run
        return replace(run, image=run.environment.image, environment=None)

    packed = base64.b64encode(gzip.compress(first.lock.encode(), mtime=0)).decode()
    annotations = (
        {ENVIRONMENT: json.dumps({"image": first.image, "lock": packed})} if len(packed) <= MOST_PACKED else {}
    )
    with_images = map_runs(spec, replaced)
    if isinstance(with_images, Pipeline) and with_images.environment is not None:
        # Its driver follows from its object, which has the image in place of the key.
        assert with_images.driver is not None, "a pipeline of a cluster has one"
        with_images = replace(with_images, image=with_images.driver.image, environment=None)
    return with_images, annotations


def read_lock(client: Client, content: Mapping[str, Any]) -> str | None:
    """Return the lock of a workload's image from its object or its parent's; None without one."""
    spec, metadata = content.get("spec") or {}, content["metadata"]
    run = spec.get("trial") or spec
    image = run.get("image")
    if image is None:
        return None
    lock = _lock_in(metadata, image)
    if lock is not None:
        return lock
    owners = [owner for owner in metadata.get("ownerReferences") or () if is_parent_kind(owner.get("kind"))]
    for owner in owners[:1]:
        try:
            parent = client.get(objects_path(owner["kind"], metadata["namespace"], owner["name"]))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return None
        return _lock_in(parent["metadata"], image)
    return None


def _lock_in(metadata: Mapping[str, Any], image: str) -> str | None:
    """Return the lock of an annotation, if it is that of an image; None also if Fairlead did not write it."""
    try:
        record = parse_object((metadata.get("annotations") or {}).get(ENVIRONMENT) or "", max_bytes=2 * MOST_PACKED)
        if record["image"] != image:
            return None
        with gzip.GzipFile(fileobj=io.BytesIO(base64.b64decode(record["lock"]))) as file:
            return file.read(MOST_BYTES).decode()
    except (ValueError, KeyError, TypeError, OSError, EOFError, RecursionError, zlib.error):
        return None
