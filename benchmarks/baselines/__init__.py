"""What ours is measured against: published traces with their replay rules, and other schedulers, re-implemented."""
