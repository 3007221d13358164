"""The measured path over gRPC: the connections of HTTP/1.1 speak HTTP/2, one call at a time on each."""
