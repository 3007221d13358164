"""The measured path over HTTP/2: the connections of HTTP/1.1, each with several requests at a time."""
