"""Memory of model states under ZeRO (Rajbhandari et al., arXiv 1910.02054), in bytes.

Sec. 3.1: 2 bytes of parameters, 2 of gradients and K = 12 of optimizer states (fp32 master copy, momentum, variance)
for each parameter with mixed precision and Adam. Sec. 5: which of them each stage divides by the number of GPUs.
"""

PARAMETER, GRADIENT, OPTIMIZER = 2, 2, 12


def model_states(parameters: int, gpus: int, stage: int) -> float:
    """Bytes on each GPU by the paper's sec. 5.1 to 5.3; stage 0 is plain data parallelism."""
    kept = (PARAMETER, GRADIENT, OPTIMIZER)
    whole = {0: kept, 1: kept[:2], 2: kept[:1], 3: ()}[stage]
    sharded = sum(kept) - sum(whole)
    return parameters * (sum(whole) + sharded / gpus)


def deepspeed_zero2(parameters: int, gpus: int, *, offload: bool = False) -> int:
    """Bytes on each GPU that DeepSpeed's ``estimate_zero2_model_states_mem_needs`` publishes.

    It has gradients in fp32 as well, 16 bytes sharded beside 4 that are not; with ``offload`` 2 bytes stay.
    """
    return 2 * parameters if offload else 4 * parameters + int(16 * parameters / gpus)


def deepspeed_zero3(
    parameters: int, largest_layer: int, gpus: int, *, offload: bool = False, offload_parameters: bool = False
) -> int:
    """Bytes on each GPU that DeepSpeed's ``estimate_zero3_model_states_mem_needs`` publishes.

    Args:
        largest_layer: Parameters of the largest layer, which is gathered in fp16 with its gradient.
        offload: Whether the optimizer is on the CPU.
        offload_parameters: Whether parameters are there too.
    """
    gathered = 4 * largest_layer
    if offload and offload_parameters:
        return gathered
    return gathered + int((2 if offload else 18) * parameters / gpus)
