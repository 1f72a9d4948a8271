"""The driver of a pipeline for a pod that kwok plays: `played_driver.py TOLD`, with the variables of its pod.

TOLD is the file in which kubelet would keep what the operator tells; see `PlayedDrivers` of ``pipeline_rounds``.
"""

import sys
from unittest import mock

from fairlead.control.pipelines import in_pod

if __name__ == "__main__":
    with mock.patch.object(in_pod, "FAMILY_FILE", sys.argv[1]):
        sys.exit(in_pod.main())
