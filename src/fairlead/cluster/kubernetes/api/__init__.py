"""Speaking with an API server: requests, streams and watches as plain data, and what its objects say."""
