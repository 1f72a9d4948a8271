"""``fairlead image``: build the container image of operator and web page."""

from pathlib import Path

import click

from fairlead import __version__
from fairlead.cli.imaging import base_option, built, platform_option
from fairlead.cli.show import as_json, json_option, message
from fairlead.control.image.archives import write_archive
from fairlead.control.image.references import read_reference


@click.group()
def image() -> None:
    """Build the container image of the operator and the web page."""


@image.command("build")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", default=f"fairlead:{__version__}", show_default=True, help="Name of the image in FILE.")
@base_option
@platform_option
@json_option
def build_(file: Path, name: str, base_image: str, platform: str, json_: bool) -> None:
    """Write the image to FILE, an OCI archive, for `docker load`, `ctr images import` or a tool that copies images.

    It needs no daemon. The image has Fairlead and its pinned and hashed packages, on a base image from its registry.
    The build is reproducible, byte for byte, with the same Python; one of the image's version compiles its modules.
    """
    named = read_reference(name)
    with built(base_image, platform) as made:
        write_archive(made, named, file)
        size = file.stat().st_size
        if json_:
            print(as_json({"file": str(file), "name": str(named), "digest": made.digest, "bytes": size}))
        message(f"{file} has {named}, {made.digest}, {size / 1e6:.0f} MB.")
