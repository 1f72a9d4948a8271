"""Watch caches of a cluster, and the snapshot that is made of them. Nothing here changes the cluster."""
