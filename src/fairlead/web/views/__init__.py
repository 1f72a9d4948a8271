"""The views of the page, one a file: each is a function from a request to its content, independent of HTTP."""
