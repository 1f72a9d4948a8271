"""Callbacks for training frameworks. Each module imports its framework, so no other code may import it."""
