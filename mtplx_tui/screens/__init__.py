"""Screens: one module each, with its style sheet beside it."""
