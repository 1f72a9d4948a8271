"""The views of the page, one a file: each is a function from a question to an answer, and knows nothing of HTTP."""
