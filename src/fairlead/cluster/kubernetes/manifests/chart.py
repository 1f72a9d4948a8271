"""A Helm chart of the same objects that `install` applies; some fields are values, the rest is literal.

Helm parses files below ``templates`` as Go templates, so double braces in an object, such as those in an alert's text,
are written as a template that prints them. Files below ``crds`` are used literally; Helm creates these kinds, and never
changes existing ones.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml
from fairlead.cluster.kubernetes.names import GATEWAY_NAMESPACE

OBJECTS, KINDS = "templates/fairlead.yaml", "crds/fairlead.yaml"
_MARK = re.compile(r"['\"]?@@(\w+)@@['\"]?")
_BRACES = re.compile(r"\{\{|\}\}")


def render_chart(settings: InstallSettings) -> dict[str, str]:
    """Return the files of a chart by path; with its default values it renders the objects of these settings."""
    objects = render_install(settings)
    kinds = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    values: dict[str, Any] = {
        "image": settings.image,
        "replicas": settings.replicas,
        "policy": settings.policy,
        "createNamespace": True,
    }
    templates = [_template(each) for each in objects if each["kind"] != "CustomResourceDefinition"]
    return {
        "Chart.yaml": to_yaml([_chart(settings)]),
        "values.yaml": _VALUES_HEAD + to_yaml([values]),
        "values.schema.json": json.dumps(_schema(), indent=2) + "\n",
        OBJECTS: "---\n".join(templates),
        KINDS: to_yaml(kinds),
    }


_VALUES_HEAD = """\
# image: an image with Fairlead. replicas: of the operator; one leads. policy: by which runs that wait are started.
# createNamespace: false where the namespace is there already, as with `helm install --create-namespace`.
"""


def _chart(settings: InstallSettings) -> dict[str, Any]:
    return {
        "apiVersion": "v2",
        "name": "fairlead",
        "description": "Takes machine-learning work to Kubernetes and keeps it running true",
        "type": "application",
        "version": settings.version,
        "appVersion": settings.version,
        "kubeVersion": ">=1.31.0-0",
    }


def _schema() -> dict[str, Any]:
    """Return the schema by which Helm validates values; a parent chart passes ``global``."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "required": ["image", "replicas", "policy", "createNamespace"],
        "properties": {
            "image": {"type": "string", "minLength": 1},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 9},
            "policy": {"type": "string", "minLength": 1},
            "createNamespace": {"type": "boolean"},
            "global": {"type": "object"},
        },
    }


def _template(content: Mapping[str, Any]) -> str:
    written = _BRACES.sub(lambda found: '{{ "' + found[0] + '" }}', to_yaml([_with_marks(content)]))
    written = _MARK.sub(lambda found: _VALUES[found[1]], written)
    if content["kind"] == "Namespace" and content["metadata"]["name"] != GATEWAY_NAMESPACE:
        return f"{{{{- if .Values.createNamespace }}}}\n{written}{{{{- end }}}}\n"
    return written


_VALUES = {
    "image": "{{ .Values.image | quote }}",
    "replicas": "{{ .Values.replicas }}",
    "policy": "{{ .Values.policy | quote }}",
}


def _with_marks(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Deployment with marks in place of values; objects of other kinds unchanged."""
    if content["kind"] != "Deployment":
        return content
    spec = content["spec"]
    pod = spec["template"]["spec"]
    containers = [{**each, "image": "@@image@@", "args": _args(each["args"])} for each in pod["containers"]]
    template = {**spec["template"], "spec": {**pod, "containers": containers}}
    counted = {"replicas": "@@replicas@@"} if content["metadata"]["name"] == OPERATOR else {}
    return {**content, "spec": {**spec, **counted, "template": template}}


def _args(args: list[str]) -> list[str]:
    """Return the arguments with a mark for the policy, if they have one."""
    return ["@@policy@@" if before == "--policy" else each for before, each in zip(["", *args], args, strict=False)]
