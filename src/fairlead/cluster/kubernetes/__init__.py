"""Fairlead on Kubernetes: kinds, pods and everything beside them as pure functions, and the adapter that uses them."""
