"""The OpenAPI document of a replica, generated from the routes that it serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlead.runtime.serving.predictor import Predictor, TensorSpec
from fairlead.runtime.serving.settings import Settings
from fairlead.runtime.serving.tensors import DTYPES

OPENAPI = "3.1.0"
_SUMMARIES = {
    "server_metadata": "Name, version and extensions of the server",
    "live": "Answer while the process lives",
    "ready": "Answer 200 once the model is loaded and warm, until the server is asked to stop",
    "model_metadata": "Inputs and outputs of the model",
    "model_ready": "As the server's own readiness, of the model",
    "infer": "Predict, with tensors as JSON or, after Inference-Header-Content-Length bytes of JSON, binary",
    "list_models": "Models that generate text",
    "show_model": "A model that generates text",
    "completions": "Continue a text",
    "chat_completions": "Continue a conversation",
    "metrics_text": "Metrics in Prometheus's text format",
    "openapi": "This document",
}
_PROBLEMS = {"infer": (400, 404, 408, 413, 429, 500, 503), "completions": (400, 404, 408, 413, 429, 500, 503)}
_PROBLEMS["chat_completions"] = _PROBLEMS["completions"]
_TEXT, _TRUTH = {"type": "string"}, {"type": "boolean"}


def describe(routes: Mapping[str, tuple[str, str]], settings: Settings, predictor: Predictor | None) -> dict[str, Any]:
    """Return the OpenAPI document.

    Args:
        routes: Method and handler of each path.
        predictor: Its inputs and outputs are named in the document; None before it is loaded.
    """
    paths: dict[str, Any] = {}
    for path, (method, name) in routes.items():
        operation: dict[str, Any] = {
            "summary": _SUMMARIES[name],
            "operationId": name + ("_of_version" if "{version}" in path else ""),
            "responses": _responses(path, name),
        }
        for parameter, value in (("model", settings.service), ("version", settings.revision)):
            if f"{{{parameter}}}" in path:
                schema = {"type": "string", "const": value}
                operation.setdefault("parameters", []).append(
                    {"name": parameter, "in": "path", "required": True, "schema": schema}
                )
        if method == "POST":
            operation["requestBody"] = _body(name, predictor)
        paths[path] = {method.lower(): operation}
    info = {"title": settings.service, "version": settings.revision}
    return {"openapi": OPENAPI, "info": info, "paths": paths, "components": {"schemas": _schemas(predictor)}}


def _body(name: str, predictor: Predictor | None) -> dict[str, Any]:
    schema = {"infer": "InferRequest", "completions": "Completion", "chat_completions": "ChatCompletion"}[name]
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    if name == "infer":
        content["application/octet-stream"] = {}
    return {"required": True, "content": content}


def _responses(path: str, name: str) -> dict[str, Any]:
    error = "OpenAIError" if path.startswith("/v1/") else "Error"
    success: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if name == "infer":
        success = {
            "application/json": {"schema": {"$ref": "#/components/schemas/InferResponse"}},
            "application/octet-stream": {},
        }
    elif name == "metrics_text":
        success = {"text/plain": {"schema": _TEXT}}
    elif name in ("completions", "chat_completions"):
        success["text/event-stream"] = {"schema": _TEXT}
    responses: dict[str, Any] = {"200": {"description": "Success", "content": success}}
    problems: tuple[int, ...] = _PROBLEMS.get(name, ())
    if not problems and name not in ("live", "server_metadata", "metrics_text", "openapi"):
        problems = (404, 503)
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{error}"}}}
    for status in problems:
        responses[str(status)] = {"description": "No result; the message says why", "content": content}
    return responses


def _schemas(predictor: Predictor | None) -> dict[str, Any]:
    sampling = {
        "model": _TEXT,
        "max_tokens": {"type": "integer", "minimum": 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "stream": _TRUTH,
    }
    message = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["system", "developer", "user", "assistant"]}, "content": _TEXT},
    }
    return {
        "Error": {"type": "object", "required": ["error"], "properties": {"error": _TEXT}},
        "OpenAIError": {
            "type": "object",
            "required": ["error"],
            "properties": {"error": {"type": "object", "required": ["message", "type"]}},
        },
        "InferRequest": {
            "type": "object",
            "additionalProperties": False,
            "required": ["inputs"],
            "properties": {
                "id": _TEXT,
                "model_name": _TEXT,
                "parameters": {"type": "object", "properties": {"binary_data_output": _TRUTH}},
                "inputs": {"type": "array", "minItems": 1, "items": _input(predictor.inputs if predictor else None)},
                "outputs": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": _name(predictor.outputs if predictor else None),
                            "parameters": {"type": "object", "properties": {"binary_data": _TRUTH}},
                        },
                    },
                },
            },
        },
        "InferResponse": {
            "type": "object",
            "required": ["model_name", "model_version", "outputs"],
            "properties": {
                "model_name": _TEXT,
                "model_version": _TEXT,
                "id": _TEXT,
                "outputs": {"type": "array", "items": {"type": "object", "required": ["name", "datatype", "shape"]}},
            },
        },
        "Completion": {
            "type": "object",
            "required": ["model", "prompt"],
            "properties": {**sampling, "prompt": _TEXT},
        },
        "ChatCompletion": {
            "type": "object",
            "required": ["model", "messages"],
            "properties": {**sampling, "messages": {"type": "array", "minItems": 1, "items": message}},
        },
    }


def _input(specs: Mapping[str, TensorSpec] | None) -> dict[str, Any]:
    whole = {"type": "integer", "minimum": 1}
    return {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "properties": {
            "name": _name(specs),
            "shape": {"type": "array", "items": whole, "minItems": 1},
            "datatype": {"enum": sorted({spec.datatype for spec in specs.values()}) if specs else list(DTYPES)},
            "data": {"type": "array"},
            "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer", "minimum": 0}}},
        },
    }


def _name(specs: Mapping[str, TensorSpec] | None) -> dict[str, Any]:
    return {"enum": list(specs)} if specs else _TEXT
