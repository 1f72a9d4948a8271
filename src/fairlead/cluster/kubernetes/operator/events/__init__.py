"""Records what happened as Events."""
