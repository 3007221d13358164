"""Records of requests on their way from the event loop to columns, and requests on their way to it."""
