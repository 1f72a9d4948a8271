"""Multiplies matrices on the GPUs of a node for some time, and checks every product.

The entries are -1, 0 or 1, so all sums are small whole numbers, which half precision holds exactly in any order of
addition: a right product has no error at all. The first product of each GPU is checked on the CPU by Freivalds' method
("Probabilistic machines can use less running time", IFIP Congress 1977): for vectors of random signs x, A (B x) must be
C x. Each further product must equal the first in every bit.
"""

import threading
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SIZE = 8192
VECTORS = 8
"""Vectors of random signs; a wrong row stays unseen with a probability of at most 2 to the power of minus this."""
PRODUCTS = 16
"""Products between two looks at the clock."""
WARM_S = 0.1
"""The share of the time that is not measured, as clocks and temperatures have not settled."""
SLOW_FACTOR = 1.15
"""A GPU is slow if a product takes this many times as long as on the median of its model, as for links."""
LEAST_PEERS = 4
"""GPUs of a model of which one can be named as slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnResult:
    """The products of one GPU.

    Attributes:
        device: Its number on the node.
        model: Its name, as its driver has it.
        tflops: Operations in 10^12 a second, of multiplications and additions.
        num_products: Products that were checked.
        num_wrong: Products that differ from the right one.
    """

    device: int
    model: str
    tflops: float
    num_products: int
    num_wrong: int


def burn(seconds: float, *, device: str = "cuda", size: int = SIZE) -> list[BurnResult]:
    """Return the results of all GPUs of this process, which work at the same time.

    Args:
        seconds: Above 0.
        device: A kind of device of torch; with "cpu" there is one.
        size: Rows and columns of the matrices, at most 8192.

    Raises:
        ImportError: Torch is not there.
        RuntimeError: Torch sees no GPU, or one of them fails.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU")
    num = torch.cuda.device_count() if device == "cuda" else 1
    results: list[BurnResult | None] = [None] * num
    errors: list[RuntimeError] = []

    def work(number: int) -> None:
        try:
            results[number] = _burn_one(number, device, seconds, size)
        except RuntimeError as error:  # of torch; raised in the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(num)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [result for result in results if result is not None]


def slow_gpus(results: list[tuple[int, BurnResult]]) -> dict[tuple[int, int], float]:
    """Return how many times as long a product takes on each slow GPU as on the median of its model.

    Args:
        results: Results with the number of the pod of each.

    Returns:
        Factors by pod and device.
    """
    by_model: dict[str, list[tuple[int, BurnResult]]] = {}
    for pod, result in results:
        by_model.setdefault(result.model, []).append((pod, result))
    slow = {}
    for peers in by_model.values():
        if len(peers) < LEAST_PEERS:
            continue
        typical = median(result.tflops for _, result in peers)
        for pod, result in peers:
            factor = typical / result.tflops if result.tflops > 0 else float("inf")
            if factor >= SLOW_FACTOR:
                slow[pod, result.device] = factor
    return slow


def _burn_one(number: int, device: str, seconds: float, size: int) -> BurnResult:
    import torch

    name = f"{device}:{number}" if device == "cuda" else device
    generator = torch.Generator().manual_seed(1 + number)
    precision = torch.float16 if device == "cuda" else torch.float32
    a, b = (torch.randint(-1, 2, (size, size), generator=generator).to(precision) for _ in range(2))
    on_a, on_b = a.to(name), b.to(name)
    first = on_a @ on_b
    num_wrong = torch.zeros((), dtype=torch.int64, device=name)
    product = torch.empty_like(first)
    began = since = time.monotonic()
    num_products = num_timed = 0
    while True:
        for _ in range(PRODUCTS):
            torch.mm(on_a, on_b, out=product)
            num_wrong += (product != first).any()
        _wait(name)
        now = time.monotonic()
        num_products += PRODUCTS
        if now - began < WARM_S * seconds:
            since, num_timed = now, 0
        else:
            num_timed += PRODUCTS
        if now - began >= seconds:
            break
    wrong = int(num_wrong.item())
    if not _is_right(a, b, first.cpu()):
        wrong = num_products + 1 - wrong  # those that equal the first are as wrong
    timed_s = max(time.monotonic() - since, 1e-9)
    model = torch.cuda.get_device_name(number) if device == "cuda" else device
    tflops = 2.0 * size**3 * num_timed / timed_s / 1e12
    return BurnResult(device=number, model=model, tflops=tflops, num_products=num_products + 1, num_wrong=wrong)


def _wait(name: str) -> None:
    import torch

    if name != "cpu":
        torch.cuda.synchronize(name)


def _is_right(a: "torch.Tensor", b: "torch.Tensor", product: "torch.Tensor") -> bool:
    """Return whether a product is right, by vectors of random signs, on the CPU."""
    import torch

    x = torch.randint(0, 2, (b.shape[1], VECTORS), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    expected: Any = a.double() @ (b.double() @ x)
    return bool(torch.equal(product.double() @ x, expected))
