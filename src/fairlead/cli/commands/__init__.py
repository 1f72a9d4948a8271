"""One file a command: parse, call one function, show."""
