"""The engine's interfaces beside OpenAI's HTTP endpoints: gRPC, the Responses API over WebSocket, other APIs
and documents."""
