"""The shapes that carry meaning, in unicode and in ascii, and the cleaning of text that others wrote."""

import re
from dataclasses import dataclass
from typing import Literal

GlyphName = Literal["unicode", "ascii"]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of shapes. Each is one cell wide, except `ellipsis` and `arrow`, which may be longer.

    Attributes:
        accepted, refused, unused, bonus: the fate of a draft at each depth of a verify step.
        eighths: bar pieces, from an eighth of a cell to a whole one. levels: column heights, lowest first.
        box: corners top left, top right, bottom left, bottom right, then horizontal and vertical.
        hidden: stands for a character that must not reach the terminal; empty means its control picture.
    """

    name: GlyphName
    accepted: str
    refused: str
    unused: str
    bonus: str
    eighths: str
    levels: str
    meter_full: str
    meter_empty: str
    folded: str
    unfolded: str
    quote: str
    bar: str
    cursor: str
    ellipsis: str
    rule: str
    dot: str
    bullet: str
    arrow: str
    down: str
    newline: str
    box: tuple[str, str, str, str, str, str]
    cross: str
    thumb: str
    hidden: str


UNICODE = Glyphs(
    name="unicode", accepted="■", refused="x", unused="·", bonus="+",
    eighths="▏▎▍▌▋▊▉█", levels="▁▂▃▄▅▆▇█", meter_full="▓", meter_empty="░",
    folded="▸", unfolded="▾", quote="┊", bar="▌", cursor="▊", ellipsis="…", rule="─", dot="·", bullet="•",
    arrow="→", down="↓", newline="⏎", box=("┌", "┐", "└", "┘", "─", "│"), cross="┼", thumb="▐", hidden="",
)  # fmt: skip

ASCII = Glyphs(
    name="ascii", accepted="#", refused="x", unused=".", bonus="+",
    eighths="#", levels="_.-=+*#", meter_full="#", meter_empty=".",
    folded=">", unfolded="v", quote=":", bar="|", cursor="_", ellipsis="...", rule="-", dot="-", bullet="*",
    arrow="->", down="v", newline="\\", box=("+", "+", "+", "+", "-", "|"), cross="+", thumb="#", hidden="?",
)  # fmt: skip


def glyph_set(name: GlyphName) -> Glyphs:
    """The set of that name."""
    return ASCII if name == "ascii" else UNICODE


# C0 and C1 controls (ESC and with it every escape sequence), DEL, line separators, the bidirectional overrides that
# can show a line in another order than it has, lone surrogates, which no terminal's encoding can carry, and what stands
# for a broken character.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffd]")


def clean(text: str, glyphs: Glyphs = UNICODE) -> str:
    """Text that others wrote, fit for the screen: each unsafe character becomes one visible character.

    Newlines stay, CR LF counts as one, tabs become spaces. Only what is drawn passes through here; what is stored
    or sent to the model stays as it was.
    """
    text = text.replace("\r\n", "\n")
    if "\t" in text:
        text = text.expandtabs(4)
    return mask(text, glyphs)


def mask(text: str, glyphs: Glyphs = UNICODE) -> str:
    """The same, character for character: tabs and newlines stay as they are."""
    return _UNSAFE.sub(lambda match: glyphs.hidden or _picture(match[0]), text)


def one_line(text: str, glyphs: Glyphs = UNICODE) -> str:
    """The same for one line: newlines become a visible mark."""
    return clean(text, glyphs).replace("\n", glyphs.newline)


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"
