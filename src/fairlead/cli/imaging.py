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

if TYPE_CHECKING:
    from fairlead.control.image.content import Image

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
    from fairlead.control.image.base_images import pull_base
    from fairlead.control.image.building import build
    from fairlead.control.image.registry import Registry

    named = read_reference(base_image)
    with TemporaryDirectory(prefix="fairlead-image-") as place, Registry(named) as registry:
        message(f"Looking up {named}.")
        base = pull_base(registry, named, platform, Path(place))
        message(f"Building on {base.name}.")
        yield build(base, Path(place), message)


def to_registry(base_image: str, platform: str, target: str, *, dry: bool) -> str:
    """Build the image and push it; return its name by digest.

    Args:
        target: REGISTRY/NAME, with a tag or without.
        dry: Build only, without a push.
    """
    from fairlead.control.image.building import push
    from fairlead.control.image.registry import Registry

    name = read_reference(target, tag=__version__)
    if name.digest is not None:
        raise click.UsageError(f"--image-to {target}: a digest follows from what is built; give a tag, or neither.")
    with built(base_image, platform) as image:
        if dry:
            return str(name.at(image.digest))
        with Registry(name) as registry:
            message(f"Pushing {name}.")
            return str(push(image, registry, name, message))
