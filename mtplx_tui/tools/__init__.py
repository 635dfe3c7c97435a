"""What the model may call in the chat: safe tools of our own, and how a call goes from its text to its result."""
