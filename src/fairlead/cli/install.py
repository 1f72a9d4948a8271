"""``fairlead install --render``: everything that puts Fairlead onto a cluster, as YAML."""

import click

from fairlead import __version__


@click.command()
@click.option("--render", "only_render", is_flag=True, help="Print the objects and change nothing.")
@click.option("--namespace", default="fairlead-system", show_default=True, help="The operator's own namespace.")
@click.option("--image", default=f"fairlead:{__version__}", show_default=True, help="An image with fairlead installed.")
@click.option(
    "--replicas",
    default=2,
    show_default=True,
    type=click.IntRange(0, 9),
    help="One leads, others wait; 0 for an operator elsewhere.",
)
@click.option("--fewer-rules", is_flag=True, help="For Kubernetes 1.31, to which some rules cost too much.")
def install(only_render: bool, namespace: str, image: str, replicas: int, fewer_rules: bool) -> int:
    """Print what to apply: `fairlead install --render | kubectl apply --server-side -f -`."""
    from fairlead.cluster.kubernetes.install import InstallSettings, render_install
    from fairlead.cluster.kubernetes.manifests import to_yaml

    if not only_render:
        raise click.UsageError("only --render is there yet; pipe it into `kubectl apply --server-side -f -`.")
    settings = InstallSettings(namespace=namespace, image=image, replicas=replicas, fewer_rules=fewer_rules)
    print(to_yaml(render_install(settings)), end="")
    return 0
