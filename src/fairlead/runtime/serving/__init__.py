"""The server of a replica: loads a user's predictor, and answers the Open Inference Protocol and OpenAI's routes.

Run as ``python -m fairlead.runtime.serving [module:Class]``. Here, and nowhere else in the runtime, aiohttp, numpy and
prometheus-client are imported (the extra ``serve``). Knows nothing of services, revisions or gateways beyond its own
name: who gets requests, and how many replicas there are, is decided elsewhere.

settings -> predictor (load, warm up) -> http_server (routes) -> inference_protocol | completions -> batching |
generation, which share the one predict thread.
"""
