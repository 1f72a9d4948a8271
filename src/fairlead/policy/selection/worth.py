"""Computes the worth of a second of a job's progress, the measure used for order and sharing.

With d = 1 / (GPUs x remaining time), the density of shortest-service-first, a second of a job is worth GPUs x d^s. At s
= 1 that is 1 / remaining time: the sum over running jobs is the completion rate, and nothing else counts. At s = 0 it
is GPUs: only throughput counts, and short jobs get no preference. Per GPU the order is that of shortest service for
every s; s only weighs a large gang against several small ones if not all of them fit, and, with sharing, how much a
short job may be slowed to let more work pass.
"""

from fairlead.policy.selection.jobs import Job

# Between 0.6 and 0.85 the averages on the public traces change by less than 0.8 % without sharing
# (docs/decisions/0010-queue-order-and-sharing.md).
SHARPNESS = 0.6

# An estimate may give no remaining time for a job that still runs.
LEAST_REMAINING_S = 1.0


def worth(job: Job) -> float:
    """Return the worth of a second of the job at full speed; always positive."""
    work_gpu_s = job.num_gpus * max(job.remaining_s, LEAST_REMAINING_S)
    return float(job.weight * job.num_gpus * work_gpu_s**-SHARPNESS)
