"""``fairlead registry``: the registry of images with the packages of runs."""

from dataclasses import asdict

import click

from fairlead.cli.imaging import BASE, platform_option
from fairlead.cli.show import as_json, json_option, message
from fairlead.cluster.local.home import Home
from fairlead.control.image.environments import with_base
from fairlead.control.image.registry_settings import RegistrySettings, read_settings, read_target, write_settings
from fairlead.errors import NotFound
from fairlead.specs.overlay import OBJECT_NAME


@click.group()
def registry() -> None:
    """Set the registry to which images with the packages of runs are pushed.

    A run on Kubernetes with `environment` gets an image that is built from its packages without a daemon. Logins are
    those of `docker login`.
    """


@registry.command("set")
@click.argument("url")
@click.option(
    "--base", metavar="IMAGE", default=BASE, show_default=True, help="Image with Python that they are built on."
)
@click.option("--pull-secret", metavar="NAME", help="Secret of each namespace with which nodes pull from URL.")
@platform_option
@json_option
def set_(url: str, base: str, pull_secret: str | None, platform: str, json_: bool) -> None:
    """Push images to URL, a registry and a name such as ghcr.io/acme/environments.

    The base image is looked up now and stays the same until the next `set`. It is the official image of Python or made
    from it, since its Python is expected in /usr/local/bin.
    """
    read_target(url)
    if pull_secret is not None and not (pull_secret and OBJECT_NAME.fullmatch(pull_secret)):
        raise click.UsageError(f"--pull-secret {pull_secret!r} is no name of a Secret.")
    settings = RegistrySettings(url=url, base="", base_name="", python="", platform=platform, pull_secret=pull_secret)
    settings = with_base(settings, base)
    write_settings(Home.open().registry, settings)
    if json_:
        print(as_json(asdict(settings)))
    else:
        message(f"Images go to {url}, on {base} with Python {settings.python} for {platform}.")


@registry.command("show")
@json_option
def show(json_: bool) -> None:
    """Show the registry, the base image and the Secret that are set."""
    settings = read_settings(Home.at().registry)
    if settings is None:
        raise NotFound("No registry is set; `fairlead registry set URL` sets one.")
    if json_:
        print(as_json(asdict(settings)))
        return
    print(f"registry: {settings.url}")
    print(f"base: {settings.base_name}, {settings.base}, Python {settings.python}, {settings.platform}")
    if settings.pull_secret is not None:
        print(f"pull secret: {settings.pull_secret}")


@registry.command("unset")
@json_option
def unset(json_: bool) -> None:
    """Forget the registry; images that were pushed stay there."""
    path = Home.at().registry
    was_set = path.exists()
    path.unlink(missing_ok=True)
    if json_:
        print(as_json({"removed": was_set}))
    else:
        message("No registry is set any more." if was_set else "No registry was set.")
