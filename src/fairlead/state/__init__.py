"""What is true now, and what is to be done next: the values that policies, loops and clusters exchange. No I/O."""
