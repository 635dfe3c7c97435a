"""Serving several clients at once, ours and mlx-lm's server by turns, over real HTTP from a process of its own."""
