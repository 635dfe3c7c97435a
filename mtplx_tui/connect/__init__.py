"""What other programs must be told to use our server."""
