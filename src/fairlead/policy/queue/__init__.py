"""Decides who of those that wait comes next: order, quotas, shares, promised starts and why each waits."""
