"""gRPC without a socket: the messages of a call, and dialects of them."""
