"""The ledger of a cluster: who held which part of which node, recorded by the leading operator."""
