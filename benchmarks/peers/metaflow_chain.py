"""A chain of steps of 10 ms in Metaflow, each a process whose results lie in files: `metaflow_chain.py STEPS`."""

import itertools
import subprocess
import sys
import time
from pathlib import Path

HEAD = "import time\nfrom metaflow import FlowSpec, step\n\n\nclass Chain(FlowSpec):\n"
STEP = "    @step\n    def {name}(self):\n        time.sleep(0.01)\n        self.next(self.{following})\n\n"
END = "    @step\n    def end(self):\n        pass\n\n\nif __name__ == '__main__':\n    Chain()\n"

length = int(sys.argv[1])
names = ["start", *(f"s{number}" for number in range(1, length)), "end"]
steps = "".join(STEP.format(name=one, following=other) for one, other in itertools.pairwise(names))
Path("chain.py").write_text(HEAD + steps + END)
began = time.perf_counter()
subprocess.run([sys.executable, "chain.py", "--quiet", "run"], check=True, capture_output=True)
print(f"{time.perf_counter() - began:.3f}")
