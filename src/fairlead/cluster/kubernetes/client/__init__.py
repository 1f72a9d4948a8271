"""A cluster as people meet it, with their own rights and without the operator."""
