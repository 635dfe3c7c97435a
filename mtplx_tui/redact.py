"""Taking out of a text what is nobody's business: keys, names of the user and the machine, and what was said in chats.

A line of a log is kept only where it has a shape that the program itself writes, and what it quotes is left out: that
is where values stand. What is left is compared with the saved chats.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

OUT = "[removed]"
SHORTEST_SECRET = 6
WORDS = 4
"""So many words of a chat in a row give a line away."""
MOST_CHARS = 400
"""Of a line of the log; a longer one is cut."""

SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_PATTERNS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), rf"\1 {OUT}"),
    (re.compile(r"(?i)([\w-]*(?:api[_-]?key|token|secret|passw(?:or)?d|authorization|cookie)[\w-]*[\"']?\s*[=:]\s*)\S+"),
     rf"\1{OUT}"),
    (re.compile(r"://[^\s/@]+@"), f"://{OUT}@"),
    (re.compile(r"\b(?:sk|pk|hf|ghp|gho|github_pat|xox[a-z]|AKIA|AIza|glpat)[-_]?[A-Za-z0-9_-]{12,}"), OUT),
    (re.compile(r"(?<![\w/.-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{24,}(?![\w/.-])"), OUT),
    (re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b"), OUT),
)  # fmt: skip
"""Headers, assignments, addresses with a password, keys by their beginning, long words that mix digits and letters,
and mail addresses."""

_ENTRY = re.compile(r"(?P<head>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: )(?P<said>.*)")
_FRAME = re.compile(r'\s+File ("[^"]*"|[\w./<>-]+), line \d+(, in [\w.<>]+)?')
_ERROR = re.compile(r"(?P<head>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)(?:: |$))(?P<said>.*)")
_PLAIN = ("Traceback (most recent call last):", "Fatal Python error", "Current thread", "Thread 0x", "During handling")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|«[^»]*»|“[^”]*”|(?<!\w)['\"`].*")
"""Also what was opened and never closed, to the end of the line."""


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """Values of variables whose names say that they are secret."""
    return {value for name, value in environment.items() if SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET}


class Redactor:
    """Takes out secrets and names.

    Args:
        secrets: texts that must not be seen, wherever they stand. home: the user's folder; `~` takes its place.
        names: of the user and the machine.
    """

    def __init__(self, secrets: Iterable[str], home: Path, names: Iterable[str]) -> None:
        self._secrets = sorted((text for text in secrets if len(text) >= SHORTEST_SECRET), key=len, reverse=True)
        self._home = str(home)
        words = [re.escape(name) for name in names if len(name) > 2 and name not in ("root", "localhost")]
        self._names = re.compile(rf"(?i)(?<![a-z0-9])(?:{'|'.join(words)})(?![a-z0-9])") if words else None

    def text(self, text: str) -> str:
        """The text without what is secret; what is not stays as it was."""
        for secret in self._secrets:
            text = text.replace(secret, OUT)
        if len(self._home) > 1:
            text = text.replace(self._home, "~")
        if self._names is not None:
            text = self._names.sub(OUT, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def log(self, lines: Iterable[str], chats: Iterable[str]) -> list[str]:
        """The lines of a log that say what the program did, without what was said to it or by it."""
        kept = [self._line(line.rstrip("\n")) for line in lines]
        given_away = _shared(kept, chats)
        return [f"[a line with words of a chat {OUT}]" if number in given_away else line
                for number, line in enumerate(kept)]  # fmt: skip

    def _line(self, line: str) -> str:
        if line.startswith(_PLAIN):
            return self.text(line)
        if _FRAME.fullmatch(line):
            return self.text(line)
        shaped = _ENTRY.fullmatch(line) or _ERROR.fullmatch(line)
        if shaped is None:
            return f"[a line of {len(line)} characters {OUT}]" if line.strip() else ""
        said = _QUOTED.sub("'...'", shaped["said"])
        return self.text(shaped["head"] + said[:MOST_CHARS])


def _shared(lines: list[str], chats: Iterable[str]) -> set[int]:
    """Numbers of lines with words of a chat; the chats, which may be many, are gone through once."""
    places: dict[tuple[str, ...], set[int]] = {}
    low = [" ".join(_words(line)) for line in lines]
    for number, line in enumerate(low):
        for run in _runs(line.split()):
            places.setdefault(run, set()).add(number)
    found: set[int] = set()
    for said in chats:
        words = _words(said)
        if len(words) >= WORDS:
            for run in _runs(words):
                found |= places.get(run, set())
        elif len(whole := " ".join(words)) >= SHORTEST_SECRET:
            found |= {number for number, line in enumerate(low) if whole in line}
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _runs(words: list[str]) -> Iterable[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(WORDS)), strict=False)
