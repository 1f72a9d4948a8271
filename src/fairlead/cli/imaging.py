"""Builds Fairlead's image for commands that need it, with progress messages."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fairlead import __version__
from fairlead.cli.show import message
from fairlead.control.image.references import read_reference
from fairlead.deferred import deferred

if TYPE_CHECKING:
    from fairlead.control.image import base_images
    from fairlead.control.image import building as image_building
    from fairlead.control.image import registry as image_registry
    from fairlead.control.image.content import Image
else:
    base_images = deferred("fairlead.control.image.base_images")
    image_building = deferred("fairlead.control.image.building")
    image_registry = deferred("fairlead.control.image.registry")

Command = TypeVar("Command", bound=Callable[..., Any])

# Copies from fairlead.control.image.building, which is imported only for a build; a test checks that they are equal.
BASE, PLATFORMS = "python:3.12-slim", ("linux/amd64", "linux/arm64")

base_option = click.option(
    "--base-image",
    metavar="IMAGE",
    default=BASE,
    show_default=True,
    help="Image with Python 3.11 to 3.14 that Fairlead's is built on.",
)
platform_option = click.option(
    "--platform", type=click.Choice(PLATFORMS), default=PLATFORMS[0], show_default=True, help="Platform of the nodes."
)


@contextmanager
def built(base_image: str, platform: str) -> Iterator["Image"]:
    """Build the image for the duration of the block; its files are removed afterwards."""
    named = read_reference(base_image)
    with TemporaryDirectory(prefix="fairlead-image-") as place, image_registry.Registry(named) as registry:
        message(f"Looking up {named}.")
        base = base_images.pull_base(registry, named, platform, Path(place))
        message(f"Building on {base.name}.")
        yield image_building.build(base, Path(place), message)


def to_registry(base_image: str, platform: str, target: str, *, dry: bool) -> str:
    """Build the image and push it; return its name by digest.

    Args:
        target: REGISTRY/NAME, with a tag or without.
        dry: Build only, without a push.
    """
    name = read_reference(target, tag=__version__)
    if name.digest is not None:
        raise click.UsageError(f"--image-to {target}: a digest follows from what is built; give a tag, or neither.")
    with built(base_image, platform) as image:
        if dry:
            return str(name.at(image.digest))
        with image_registry.Registry(name) as registry:
            message(f"Pushing {name}.")
            return str(image_building.push(image, registry, name, message))
