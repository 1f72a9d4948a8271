"""The data of a site, and the model."""

from typing import Any

import numpy as np


def load(partition: int, num_partitions: int) -> tuple[Any, Any]:
    """Return the images and the digits of a site: every so manyth of all, in a fixed order."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    own = np.random.default_rng(0).permutation(len(images))[partition::num_partitions]
    return images[own] / 16.0, digits[own]


def loss_and_gradient(weights: list[Any], images: Any, digits: Any) -> tuple[float, list[Any]]:
    """Return the cross-entropy and its gradient."""
    logits = images @ weights[0] + weights[1]
    logits -= logits.max(axis=1, keepdims=True)
    error = np.exp(logits)
    error /= error.sum(axis=1, keepdims=True)
    loss = -np.log(error[np.arange(len(digits)), digits] + 1e-12).mean()
    error[np.arange(len(digits)), digits] -= 1.0
    return float(loss), [images.T @ error / len(digits), error.mean(axis=0)]
