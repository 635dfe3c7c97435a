"""The HTTP face of the engine: OpenAI-compatible endpoints on this machine's loopback."""
