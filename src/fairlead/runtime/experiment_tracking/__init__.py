"""Sends a run's metrics on to MLflow, Weights & Biases and TensorBoard, in a process beside the ranks.

Nothing here runs in a rank, and nothing of the shim's waits for a network.
"""
