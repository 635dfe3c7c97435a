"""Saved chats for a measurement: as long as wanted, of messages as long as answers are."""

from pathlib import Path

from mtplx_tui.store import Role, Store

ANSWER = """\
A list is sorted **in place** by `list.sort`, while `sorted` makes a new one and takes anything that can be gone \
through, a generator or the keys of a dictionary for example. Both are stable: items that compare equal keep their \
order, so that a list can be sorted by one key after another, the least important one first.

1. Give `key` a function of one item. It is called once for each item, not once for each comparison.
2. Give `reverse=True` for the opposite order; equal items keep theirs all the same.
3. For the few largest of many, `heapq.nlargest` does less work than sorting all of them does.

```python
def by_length(words: list[str]) -> list[str]:
    # the longest first, and words of one length by the alphabet
    return sorted(words, key=lambda word: (-len(word), word))

print(by_length(["fig", "apple", "pear", "plum", "banana"]))
```

## What it costs

Sorting takes on the order of *n log n* comparisons, and far fewer where parts of the list are in order already, as \
they are in most lists that people have. A list of a million numbers takes well under a second; one of strings takes a \
few times as long, because to compare two of them can mean to look at many characters of both.
"""
"""About 300 tokens with everything in it that answers have: prose, a list, code, a heading."""

LONG, SHORT = 500, 50
"""Messages of the two chats."""
LONG_END, SHORT_END = "endoflong", "endofshort"
"""What their last messages end with."""


def fill(file: Path) -> None:
    """Write the two chats, the short one last, so that it stands first in the list."""
    store = Store(file)
    for messages, end in ((LONG, LONG_END), (SHORT, SHORT_END)):
        session = store.new_session("demo")
        parent: int | None = None
        for number in range(messages):
            role: Role = "user" if number % 2 == 0 else "assistant"
            reason = "stop" if role == "assistant" else None
            text = ANSWER + (f"\n{end}\n" if number == messages - 1 else "")
            parent = store.add_message(session, role, text, finish_reason=reason, parent=parent)
    store.close()
