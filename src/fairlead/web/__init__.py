"""The page of a cluster in a browser, rendered here and kept up to date. It reads only, and decides nothing."""
