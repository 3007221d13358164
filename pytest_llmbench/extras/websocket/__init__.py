"""OpenAI's Responses over WebSocket: load, one message that is not measured, and the sides of our servers."""

from __future__ import annotations

from pytest_llmbench.registry import Extra, Transport

_HERE = "pytest_llmbench.extras.websocket"

EXTRA = Extra(
    home=_HERE,
    transports=(
        Transport(
            name="websocket",
            title="WebSocket",
            schemes=("ws", "wss"),
            dialects={"openai-responses": f"{_HERE}.openai_responses:ResponsesOverWebSocket"},
            carry=f"{_HERE}.transport:carry",
            ask=f"{_HERE}.transport:ask",
            faces={
                "engine": f"{_HERE}.engine_face:WebSocketFace",
                "uvicorn": f"{_HERE}.engine_face:StampingWebSocket",
                "known_delay": f"{_HERE}.known_delay:WebSocketSide",
            },
        ),
    ),
    packages=("websockets",),
    install="websockets>=13",
)
