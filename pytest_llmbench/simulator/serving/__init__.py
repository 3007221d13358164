"""The engine as a server: HTTP, WebSocket, gRPC."""
