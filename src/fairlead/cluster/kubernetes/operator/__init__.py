"""What the operator keeps and does: what is true, what follows from it, and who acts."""
