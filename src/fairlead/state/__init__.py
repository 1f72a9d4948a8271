"""The observed state and the plan for it: the values that policies, loops and clusters exchange. No I/O."""
