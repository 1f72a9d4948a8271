"""The operator: it keeps what is true, works out what follows from it, and elects who acts."""
