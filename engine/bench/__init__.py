"""Measurements of this engine against plain decoding and mlx-lm. BENCH.md, one folder up, says how to read them."""
