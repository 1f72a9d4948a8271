"""``fairlead install --render``: everything that puts Fairlead onto a cluster, as YAML."""

import click

from fairlead import __version__


@click.command()
@click.option("--render", "only_render", is_flag=True, help="Print the objects and change nothing.")
@click.option("--namespace", default="fairlead-system", show_default=True, help="The operator's own namespace.")
@click.option("--image", default=f"fairlead:{__version__}", show_default=True, help="An image with fairlead installed.")
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(1, 9), help="One leads, others wait.")
def install(only_render: bool, namespace: str, image: str, replicas: int) -> int:
    """Print what to apply: `fairlead install --render | kubectl apply --server-side -f -`."""
    from fairlead.cluster.kubernetes.install import InstallSettings, render_install
    from fairlead.cluster.kubernetes.manifests import to_yaml

    if not only_render:
        raise click.UsageError("only --render is there yet; pipe it into `kubectl apply --server-side -f -`.")
    settings = InstallSettings(namespace=namespace, image=image, replicas=replicas)
    print(to_yaml(render_install(settings)), end="")
    return 0
