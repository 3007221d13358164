"""What the engine speaks beside HTTP with events: gRPC, and the Responses API over WebSocket."""
