"""One file per command: parse arguments, call one function, print the result."""
