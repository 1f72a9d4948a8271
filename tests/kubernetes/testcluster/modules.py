"""Writes the go.mod and go.sum of one Kubernetes version: `python -m tests.kubernetes.testcluster.modules 1.37.2`.

A developer's tool, run once for each version that is added; what it writes is committed. Kubernetes cannot be required
like other modules: its own go.mod replaces some 30 staging modules by directories, so each must be named here again.
"""

import json
import subprocess
import sys

from tests.kubernetes.testcluster.binaries import MODULES, NEWEST, OF_A_VERSION, PACKAGES

COREDNS = "v1.13.1"
"""The newest that asks for no newer module than Kubernetes does: with it, both are built from the same packages."""

HEAD = """\
// The programs of the test cluster, for tests/kubernetes/testcluster. Written by its modules.py; see there.
module fairlead/testcluster

go {go}

tool (
{tools}
)

require k8s.io/kubernetes v{version}
{requires}

replace (
{replaces}
)
"""


def main() -> None:
    version = sys.argv[1]
    place = MODULES / f"v{version}"
    place.mkdir(parents=True, exist_ok=True)
    kubernetes = _json("go", "mod", "download", "-json", f"k8s.io/kubernetes@v{version}")
    described = _json("go", "mod", "edit", "-json", str(kubernetes["GoMod"]))
    staging = [r["Old"]["Path"] for r in described["Replace"] if r["New"]["Path"].startswith("./staging/")]
    minor = version.split(".", 1)[1]
    programs = [program for program in PACKAGES if program != "coredns"] if version == NEWEST else OF_A_VERSION
    (place / "go.mod").write_text(
        HEAD.format(
            go="1.26.0",
            version=version,
            requires=f"require github.com/coredns/coredns {COREDNS}" if version == NEWEST else "",
            tools="\n".join(f"\t{PACKAGES[program]}" for program in programs),
            replaces="\n".join(f"\t{path} => {path} v0.{minor}" for path in staging),
        )
    )
    subprocess.run(["go", "mod", "tidy"], cwd=place, check=True, timeout=600)


def _json(*command: str) -> dict[str, list[dict[str, dict[str, str]]]]:
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, timeout=600).stdout))


if __name__ == "__main__":
    main()
