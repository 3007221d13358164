"""The dialects other than OpenAI's chat, one module each."""
