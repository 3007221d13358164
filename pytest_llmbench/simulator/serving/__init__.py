"""The engine as a server that speaks HTTP, WebSocket and gRPC."""
