"""HTTP/2 without a socket: what gRPC calls and HTTP/2 requests share."""
