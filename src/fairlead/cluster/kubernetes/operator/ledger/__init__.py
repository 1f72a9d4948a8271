"""The ledger of a cluster: who held which part of which node, written down by the operator that leads."""
