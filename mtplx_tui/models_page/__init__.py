"""The models: which are here and which there are, their downloads, and how the room draws them. No Textual here."""
