"""Runs inside a pod. Standard library only at import time; torch, numpy and fsspec only where they are used."""
