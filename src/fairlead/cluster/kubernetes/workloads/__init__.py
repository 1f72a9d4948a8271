"""Objects of workloads, and the requests that make and change them: the part that operator and clients share."""
