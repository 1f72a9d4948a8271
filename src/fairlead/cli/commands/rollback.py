"""``fairlead rollback``: return an endpoint to an earlier revision that served."""

import click

from fairlead.cli.endpoints import await_ready, to_endpoint
from fairlead.cli.names import RunName, find
from fairlead.cli.show import as_json, json_option, message, run_json
from fairlead.cli.target import Target, cluster_options
from fairlead.errors import Conflict
from fairlead.policy.kinds.serving import spec_of
from fairlead.state.endpoint_detail import Revision, detail_of


@click.command()
@click.argument("name", type=RunName())
@click.option("--to", metavar="REVISION", help="The revision, such as r2; by default the previous one that served.")
@click.option("--no-wait", is_flag=True, help="Do not wait for it to take effect.")
@json_option
@cluster_options
def rollback(target: Target, name: str, to: str | None, no_wait: bool, json_: bool) -> int:
    """Roll the endpoint NAME back to an earlier revision, with the spec of that revision."""
    cluster = target.open(is_to_submit=True)
    serving = to_endpoint(find(cluster, name))
    detail = detail_of(serving)
    served = [
        revision
        for revision in detail.revisions
        if revision.ready_at is not None and revision.failed is None and revision.number != detail.asked
    ]
    revision = _chosen(serving.spec.name, served, to)
    changed = cluster.launch(spec_of(revision))
    if not json_:
        message(f"{serving.spec.name} goes back to {revision.name}.")
    code = 0 if no_wait else await_ready(cluster, [changed], json_=json_)
    if json_:
        print(as_json(run_json(cluster.get(changed.uid))))
    return code


def _chosen(name: str, served: list[Revision], to: str | None) -> Revision:
    if not served:
        raise Conflict(f"{name} has no other revision that served; `fairlead status {name} --json` lists them.")
    if to is None:
        return max(served, key=lambda revision: (revision.created_at, revision.number))
    target = next((revision for revision in served if revision.name == to), None)
    if target is None:
        names = ", ".join(revision.name for revision in served)
        raise Conflict(f"{name} has no other revision {to} that served; these did: {names}.")
    return target
