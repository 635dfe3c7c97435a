"""Text to lines: wrapping, Markdown and code, as pure functions over spans. No Textual here."""
