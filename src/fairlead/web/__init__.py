"""The web page of a cluster, rendered on the server and kept up to date. Read-only; makes no decisions."""
