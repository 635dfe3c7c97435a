"""Markdown to lines of spans.

Written for a chat: single newlines break lines (models mean them), HTML is text, a link's address is always in sight,
images are named and never fetched, and no input makes it fail. Textual's own Markdown makes some 34 widgets of one
answer, Rich's drops HTML and fails on some nestings; this makes lines only, at a cost that can be paid ten times a
second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from mtplx_tui.glyphs import Glyphs
from mtplx_tui.layout.code import highlight
from mtplx_tui.layout.spans import Line, Span, cells, merge, width_of, wrap
from mtplx_tui.layout.table import table_lines

MIN_WIDTH = 10
"""Quotes and lists nested so deep that less would be left for their text are drawn without another indent."""

_PARSER = MarkdownIt("commonmark", {"html": False, "maxNesting": 40}).enable(["strikethrough", "table"])


def parse(source: str, env: dict[str, Any]) -> list[Token]:
    """Tokens of the source; link definitions found on the way are left in `env`."""
    return _PARSER.parse(source, env)


def block_starts(tokens: Sequence[Token]) -> list[int]:
    """The source line on which each top-level block begins."""
    return [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]


def code_blocks(source: str) -> list[str]:
    """The contents of a Markdown text's code blocks, in order."""
    return [token.content for token in parse(source, {}) if token.type in ("fence", "code_block")]


def lines_of(tokens: Sequence[Token], width: int, glyphs: Glyphs) -> list[Line]:
    """Every block, with one empty line between neighbours."""
    return _Layout(glyphs).blocks(SyntaxTreeNode(tokens).children, max(width, MIN_WIDTH))


@dataclass(frozen=True, slots=True)
class _Layout:
    glyphs: Glyphs

    def blocks(self, nodes: Sequence[SyntaxTreeNode], width: int, tight: bool = False) -> list[Line]:
        lines: list[Line] = []
        for node in nodes:
            if lines and not tight:
                lines.append(())
            lines += self.block(node, width)
        return lines

    def block(self, node: SyntaxTreeNode, width: int) -> list[Line]:
        match node.type:
            case "heading":
                return wrap(_with(self.inline(node.children), "heading"), width)
            case "fence" | "code_block":
                language = node.info.split(maxsplit=1)[0] if node.type == "fence" and node.info.strip() else ""
                return fence(node.content.removesuffix("\n"), language, width, self.glyphs)
            case "hr":
                return [((self.glyphs.rule * width, "rule"),)]
            case "blockquote":
                bar: Span = (f"{self.glyphs.bar} ", "quote")
                return self.indented(bar, bar, node.children, width)
            case "bullet_list":
                return self.items(node, width, lambda _: f"{self.glyphs.bullet} ")
            case "ordered_list":
                start = int(node.attrs.get("start", 1))
                digits = len(str(start + len(node.children) - 1))
                return self.items(node, width, lambda index: f"{start + index:>{digits}}. ")
            case "table":
                rows = [
                    [self.inline(cell.children) for cell in row.children]
                    for part in node.children
                    for row in part.children
                ]
                return table_lines(rows, width, self.glyphs)
            case _:
                return wrap(self.inline([node] if node.type == "inline" else node.children), width)

    def items(self, node: SyntaxTreeNode, width: int, mark: Callable[[int], str]) -> list[Line]:
        """A list is tight where none of its paragraphs stands alone, as CommonMark says."""
        tight = all(child.type != "paragraph" or child.hidden for item in node.children for child in item.children)
        lines: list[Line] = []
        for index, item in enumerate(node.children):
            if lines and not tight:
                lines.append(())
            first = mark(index)
            lines += self.indented((first, "bullet"), (" " * cells(first), ""), item.children, width, tight)
        return lines

    def indented(
        self, first: Span, rest: Span, nodes: Sequence[SyntaxTreeNode], width: int, tight: bool = False
    ) -> list[Line]:
        """Blocks behind a prefix: `first` on the first line, `rest` on the others."""
        room = width - cells(first[0])
        if room < MIN_WIDTH:
            return self.blocks(nodes, width, tight)
        body = self.blocks(nodes, room, tight) or [()]
        return [
            merge([first if y == 0 else rest, *line]) if line or y == 0 or rest[1] else ()
            for y, line in enumerate(body)
        ]

    def inline(self, nodes: Sequence[SyntaxTreeNode], role: str = "") -> list[Span]:
        spans: list[Span] = []
        for node in nodes:
            match node.type:
                case "inline":
                    spans += self.inline(node.children, role)
                case "softbreak" | "hardbreak":
                    spans.append(("\n", role))
                case "code_inline":
                    spans.append((node.content, _join(role, "code")))
                case "strong" | "em":
                    spans += self.inline(node.children, _join(role, node.type))
                case "s":
                    spans += self.inline(node.children, _join(role, "strike"))
                case "link":
                    label = self.inline(node.children, _join(role, "link"))
                    spans += label
                    address = str(node.attrs.get("href", ""))
                    if address and address != "".join(text for text, _ in label):
                        spans.append((f" ({address})", _join(role, "muted")))
                case "image":
                    spans.append((f"[image: {node.content}] ({node.attrs.get('src', '')})", _join(role, "muted")))
                case _:
                    spans.append((node.content, role))
        return spans


def fence(code: str, language: str, width: int, glyphs: Glyphs) -> list[Line]:
    """Code in a frame, its language in the frame's top edge; long lines are folded, not cut."""
    return [fence_top(language, width, glyphs), *fence_body(highlight(code, language), width, glyphs),
            fence_bottom(width, glyphs)]  # fmt: skip


def fence_top(language: str, width: int, glyphs: Glyphs) -> Line:
    left, right, _, _, across, _ = glyphs.box
    name = f" {language[: max(width - 6, 0)]} " if language else ""
    return merge([(left, "frame"), (name, "muted"), (across * (width - 2 - cells(name)) + right, "frame")])


def fence_bottom(width: int, glyphs: Glyphs) -> Line:
    _, _, left, right, across, _ = glyphs.box
    return ((left + across * (width - 2) + right, "frame"),)


def fence_body(lines: Sequence[Line], width: int, glyphs: Glyphs) -> list[Line]:
    edge = glyphs.box[-1]
    body: list[Line] = []
    for line in lines:
        for piece in wrap(line, width - 4, keep_indent=True):
            pad = " " * max(width - 4 - width_of(piece), 0)
            body.append(((f"{edge} ", "frame"), *piece, (f"{pad} {edge}", "frame")))
    return body


def _with(spans: Sequence[Span], role: str) -> list[Span]:
    return [(text, _join(role, own)) for text, own in spans]


def _join(outer: str, inner: str) -> str:
    return f"{outer} {inner}".strip()
