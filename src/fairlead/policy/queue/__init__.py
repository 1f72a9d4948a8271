"""Decides the order of pending runs: priorities, quotas, shares, promised starts and the reasons for waiting."""
