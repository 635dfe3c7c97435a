"""The settings: what each is, where its value comes from and when it holds, and how the room draws them.

No Textual here.
"""
