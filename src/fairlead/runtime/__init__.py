"""Code that runs inside a pod. Imports only the standard library at import time; torch, numpy and fsspec on use."""
