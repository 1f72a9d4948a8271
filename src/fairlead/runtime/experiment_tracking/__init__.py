"""Forwards a run's metrics to MLflow, Weights & Biases and TensorBoard, in a process separate from the ranks.

No code here runs in a rank, and no code of the shim waits for a network.
"""
