"""Rules for data: what the caches of a cluster keep, and who is served first by a store that cannot serve all."""
