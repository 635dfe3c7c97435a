"""The checks of `engine.verify` that look inside: distributions and states."""
