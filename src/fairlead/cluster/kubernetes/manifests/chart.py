"""A Helm chart of the same objects that `install` applies; some fields are values, the rest is literal.

Helm parses files below ``templates`` as Go templates, so double braces in an object, such as those in an alert's text,
are written as a template that prints them. Files below ``crds`` are used literally; Helm creates these kinds, and never
changes existing ones. Values that are objects or lists are written as JSON, which YAML includes, so that no template
depends on its indentation.

See decision 39.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fairlead.cluster.kubernetes.manifests.install import InstallSettings, render_install
from fairlead.cluster.kubernetes.manifests.roles import OPERATOR
from fairlead.cluster.kubernetes.manifests.spec_objects import to_yaml
from fairlead.cluster.kubernetes.names import DOMAIN, GATEWAY_NAMESPACE
from fairlead.specs.formats.schema import branch_schema
from fairlead.specs.pod_fields import POD, Branch, FieldTree, Items

OBJECTS, KINDS = "templates/fairlead.yaml", "crds/fairlead.yaml"
_MARK = re.compile(r"['\"]?@@(\w+)@@['\"]?")
_FIELD = re.compile(r"^( *)(\w+): '?@@(\w+\.\w+)@@'?\n", re.MULTILINE)
_FURTHER_ITEMS = re.compile(r"^( *)- '?@@(\w+\.\w+)@@'?\n", re.MULTILINE)
_FURTHER_KEYS = re.compile(r"^( *)'?@@(\w+\.\w+)@@'?: \"\"\n", re.MULTILINE)
_SPEC_FIELDS = ("priorityClassName", "affinity", "nodeSelector", "tolerations", "imagePullSecrets")
"""Values that are fields of the pod of the same name."""
_BRACES = re.compile(r"\{\{|\}\}")


def render_chart(settings: InstallSettings) -> dict[str, str]:
    """Return the files of a chart by path; with its default values it renders the objects of these settings."""
    objects = render_install(settings)
    kinds = [content for content in objects if content["kind"] == "CustomResourceDefinition"]
    values: dict[str, Any] = {
        "image": settings.image,
        "replicas": settings.replicas,
        "policy": settings.policy,
        "createNamespace": True,
        **{_section(content): _pod_values(content) for content in objects if content["kind"] == "Deployment"},
    }
    templates = [_template(content) for content in objects if content["kind"] != "CustomResourceDefinition"]
    return {
        "Chart.yaml": to_yaml([_chart(settings)]),
        "values.yaml": _VALUES_HEAD + to_yaml([values]),
        "values.schema.json": json.dumps(_schema(objects), indent=2) + "\n",
        OBJECTS: "---\n".join(templates),
        KINDS: to_yaml(kinds),
    }


_VALUES_HEAD = """\
# image: an image with Fairlead. replicas: of the operator; one leads. policy: by which runs that wait are started.
# createNamespace: false where the namespace is there already, as with `helm install --create-namespace`.
# The rest is of the pods of each Deployment. Labels and variables are added to those that they have.
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


def _section(deployment: Mapping[str, Any]) -> str:
    """Return the name of a Deployment's values, which is that of its container."""
    name: str = deployment["spec"]["template"]["spec"]["containers"][0]["name"]
    return name


def _pod_values(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a Deployment's pods, as they are without Helm."""
    pod = deployment["spec"]["template"]["spec"]
    return {
        "resources": pod["containers"][0]["resources"],
        "priorityClassName": pod.get("priorityClassName", ""),
        "affinity": pod["affinity"],
        "nodeSelector": {},
        "tolerations": [],
        "imagePullSecrets": [],
        "podAnnotations": {},
        "podLabels": {},
        "extraEnv": [],
    }


def _schema(objects: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema by which Helm validates values; a parent chart passes ``global``."""
    pods = {_section(content): _pod_schema(content) for content in objects if content["kind"] == "Deployment"}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "additionalProperties": False,
        "required": ["image", "replicas", "policy", "createNamespace", *pods],
        "properties": {
            "image": {"type": "string", "minLength": 1},
            "replicas": {"type": "integer", "minimum": 0, "maximum": 9},
            "policy": {"type": "string", "minLength": 1},
            "createNamespace": {"type": "boolean"},
            "global": {"type": "object"},
            **pods,
        },
    }


def _pod_schema(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a Deployment's values, whose types are those of the same fields of specs.

    Labels that select the pods and variables that the program reads stay as they are.
    """
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    own = {"not": {"pattern": rf"^(app\.kubernetes\.io|([a-z0-9.-]+\.)?{re.escape(DOMAIN)})/"}}
    variables = branch_schema(_field("spec", "containers", "env"))
    variables["items"]["properties"]["name"]["not"] = {"enum": [variable["name"] for variable in container["env"]]}
    properties = {
        "resources": branch_schema(_field("spec", "containers", "resources")),
        **{name: branch_schema(_field("spec", name)) for name in _SPEC_FIELDS},
        "podAnnotations": branch_schema(_field("metadata", "annotations")),
        "podLabels": {**branch_schema(_field("metadata", "labels")), "propertyNames": own},
        "extraEnv": variables,
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _field(*path: str) -> Branch:
    """Return the type of a field of a pod, or of its containers."""
    branch: Branch = POD
    for name in path:
        branch = branch.item if isinstance(branch, Items) else branch
        assert isinstance(branch, FieldTree)
        branch = branch.fields[name]
    return branch


def _template(content: Mapping[str, Any]) -> str:
    written = _BRACES.sub(lambda match: '{{ "' + match[0] + '" }}', to_yaml([_with_marks(content)]))
    for pattern, template in _TEMPLATES:
        written = pattern.sub(template, written)
    written = _MARK.sub(lambda match: _VALUES[match[1]], written)
    if content["kind"] == "Namespace" and content["metadata"]["name"] != GATEWAY_NAMESPACE:
        return f"{{{{- if .Values.createNamespace }}}}\n{written}{{{{- end }}}}\n"
    return written


_TEMPLATES = (
    (_FIELD, r"{{- with .Values.\3 }}\n\1\2: {{ toJson . }}\n{{- end }}\n"),
    (_FURTHER_ITEMS, r"{{- range .Values.\2 }}\n\1- {{ toJson . }}\n{{- end }}\n"),
    (_FURTHER_KEYS, r"{{- range $key, $value := .Values.\2 }}\n\1{{ toJson $key }}: {{ toJson $value }}\n{{- end }}\n"),
)
"""A field whose value may be empty, in which case it is left out, and items and keys after those that are there."""

_VALUES = {
    "image": "{{ .Values.image | quote }}",
    "replicas": "{{ .Values.replicas }}",
    "policy": "{{ .Values.policy | quote }}",
}


def _with_marks(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a Deployment with marks in place of values; objects of other kinds unchanged."""
    if content["kind"] != "Deployment":
        return content
    section, spec = _section(content), content["spec"]
    template = spec["template"]
    (container,) = template["spec"]["containers"]
    container = {
        **container,
        "image": "@@image@@",
        "args": _args(container["args"]),
        "env": [*container["env"], f"@@{section}.extraEnv@@"],
        "resources": f"@@{section}.resources@@",
    }
    template = {
        "metadata": {
            **template["metadata"],
            "labels": {**template["metadata"]["labels"], f"@@{section}.podLabels@@": ""},
            "annotations": f"@@{section}.podAnnotations@@",
        },
        "spec": {
            **template["spec"],
            "containers": [container],
            **{spec_field: f"@@{section}.{spec_field}@@" for spec_field in _SPEC_FIELDS},
        },
    }
    counted = {"replicas": "@@replicas@@"} if content["metadata"]["name"] == OPERATOR else {}
    return {**content, "spec": {**spec, **counted, "template": template}}


def _args(args: list[str]) -> list[str]:
    """Return the arguments with a mark for the policy, if they have one."""
    return ["@@policy@@" if before == "--policy" else value for before, value in zip(["", *args], args, strict=False)]
