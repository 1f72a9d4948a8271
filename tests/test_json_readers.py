"""JSON from elsewhere goes through ``untrusted_json``; each other reader says here why its text can be trusted."""

import ast
from collections import Counter
from pathlib import Path

import fairlead

SOURCE = Path(fairlead.__file__).parent
READS = {"load", "loads", "JSONDecoder"}
DATABASE = "columns of the database, which Fairlead alone writes"
STATE = "a file in the state directory that Fairlead alone writes"
ENVIRONMENT = "a variable that Fairlead sets for this very process"
OWN_PROCESS = "in the process of the run whose own files these are; nobody else waits for it"
COMMAND = "in a command of the user, of the user's own file or of a server that the user chose"
TRUSTED = {
    "untrusted_json.py": "the reader itself",
    "cli/templates/pipeline.py": "a program for users, which reads what its own step wrote",
    "cluster/kubernetes/api/credentials.py": "the answer of the user's own credential plugin",
    "cluster/kubernetes/api/paging.py": "the metadata of an event that was cut, which is as long as a line may be",
    "cluster/kubernetes/api/shallow.py": "the API server's answers, of which too deep parts are marked",
    "cluster/kubernetes/engines/pod_template.py": "a variable that was rendered just before",
    "cluster/kubernetes/manifests/validation.py": "sentences of this program",
    "cluster/local/code/keeping.py": STATE,
    "cluster/local/code/snapshots.py": STATE,
    "cluster/local/code/trees.py": STATE,
    "cluster/local/model_tables.py": DATABASE,
    "cluster/local/pod_files.py": DATABASE,
    "cluster/local/store.py": DATABASE,
    "cluster/records.py": DATABASE,
    "control/fleets/journal.py": DATABASE,
    "control/image/base_images.py": COMMAND,
    "control/image/registry.py": COMMAND,
    "control/image/registry_logins.py": COMMAND,
    "control/model_config.py": COMMAND,
    "control/pass_counts.py": "the supervisor's answer on a socket of this user",
    "control/pipelines/artefacts.py": OWN_PROCESS,
    "control/pipelines/drift.py": OWN_PROCESS,
    "control/pipelines/drift_watch.py": OWN_PROCESS,
    "control/pipelines/in_pod.py": ENVIRONMENT,
    "control/pipelines/journal.py": OWN_PROCESS,
    "control/pipelines/object_place.py": OWN_PROCESS,
    "control/pipelines/pod_children.py": OWN_PROCESS,
    "control/pipelines/result_files.py": OWN_PROCESS,
    "control/pipelines/results.py": DATABASE,
    "control/served_requests.py": COMMAND,
    "control/step_tracing.py": COMMAND,
    "gateway/demand.py": STATE,
    "gateway/in_cluster.py": "the API server's answers on the one ConfigMap that the operator writes",
    "gateway/prefix_affinity.py": "a bounded body, with RecursionError caught",
    "gateway/routes.py": "the routes that the operator or the supervisor writes",
    "runtime/archives.py": OWN_PROCESS,
    "runtime/channels.py": OWN_PROCESS,
    "runtime/checkpoint/manifest.py": OWN_PROCESS,
    "runtime/data/cache.py": OWN_PROCESS,
    "runtime/data/layout.py": OWN_PROCESS,
    "runtime/data/manifest.py": OWN_PROCESS,
    "runtime/data/positions.py": OWN_PROCESS,
    "runtime/data/sources.py": ENVIRONMENT,
    "runtime/checkpoint/randomness.py": OWN_PROCESS,
    "runtime/elastic/boards.py": OWN_PROCESS,
    "runtime/federation/flower_app.py": OWN_PROCESS,
    "runtime/federation/server.py": OWN_PROCESS,
    "runtime/federation/settings.py": ENVIRONMENT,
    "runtime/experiment_tracking/exporter.py": OWN_PROCESS,
    "runtime/experiment_tracking/mlflow_rest.py": OWN_PROCESS,
    "runtime/experiment_tracking/target.py": ENVIRONMENT,
    "runtime/hook/fairlead_collectives.py": "what PyTorch in this process has written",
    "runtime/inpod.py": ENVIRONMENT,
    "runtime/launcher.py": "a socket of this user in the state directory",
    "runtime/metric_lines.py": OWN_PROCESS,
    "runtime/parallelism/split.py": ENVIRONMENT,
    "runtime/ray_cluster.py": ENVIRONMENT,
    "runtime/reporting.py": OWN_PROCESS,
    "runtime/serving/inference_protocol.py": "a bounded body, with RecursionError caught",
    "runtime/serving/settings.py": ENVIRONMENT,
    "runtime/shell_limits.py": ENVIRONMENT,
    "runtime/shim.py": ENVIRONMENT,
    "runtime/step_files.py": OWN_PROCESS,
    "runtime/steps.py": OWN_PROCESS,
    "specs/formats/serialization.py": "specs of the database, with RecursionError caught",
    "specs/overlay.py": "a text that was read and checked when the value was made",
    "specs/sweep.py": "values that Fairlead wrote into a label of its own run",
}


def readers() -> Counter[str]:
    """Return how often each module calls ``json.load`` or ``json.loads``, by any name for the module."""
    found: Counter[str] = Counter()
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in READS:
                if isinstance(node.value, ast.Name) and "json" in node.value.id:
                    found[path.relative_to(SOURCE).as_posix()] += 1
            elif isinstance(node, ast.ImportFrom) and node.module == "json" and READS & {a.name for a in node.names}:
                found[path.relative_to(SOURCE).as_posix()] += 1
    return found


def test_json_from_elsewhere_has_one_reader() -> None:
    bare = {name for name in readers() if name not in TRUSTED}
    assert not bare, (
        f"{', '.join(sorted(bare))}: use fairlead.untrusted_json, or say in TRUSTED why the text is trusted"
    )
