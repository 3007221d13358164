"""HTTP/2 without a socket: what calls of gRPC and requests of HTTP/2 have in common."""
