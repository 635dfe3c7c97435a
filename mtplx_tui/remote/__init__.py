"""Engines behind an address: Links over HTTP, to our own server and to others that speak OpenAI's API."""
