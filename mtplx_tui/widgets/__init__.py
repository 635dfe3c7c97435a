"""Widgets, and the plain modules that lay out their lines."""
