"""The server of a replica: loads a user's predictor, and answers the Open Inference Protocol and OpenAI's routes.

Run as ``python -m fairlead.runtime.serving [module:Class]``. Only this package of the runtime imports aiohttp, numpy
and prometheus-client (the extra ``serve``). It knows only its own name, not services, revisions or gateways: routing
and the number of replicas are decided elsewhere.

settings -> predictor (load, warm up) -> http_server (routes) -> inference_protocol | completions -> batching |
generation, which share the one predict thread.
"""
