"""Programs of the server and the sites of a federation, which start Flower's own; nothing here trains or aggregates."""
