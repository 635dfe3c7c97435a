"""Charts as pure functions: figures in, lines of text out. No Textual, so that they are tested in microseconds."""
