"""The dialects other than OpenAI's chat and completions, one module each."""
