"""What the screen costs the engine, and how fast it answers its user: the real application in pseudo-terminals."""
