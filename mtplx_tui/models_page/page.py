"""The models room's page: the table, what is known of the chosen model, and the downloads."""

from collections.abc import Sequence

from mtplx_tui.charts.bars import meter
from mtplx_tui.charts.numbers import count, percent, seconds, size
from mtplx_tui.glyphs import Glyphs, one_line
from mtplx_tui.layout.frames import framed
from mtplx_tui.layout.spans import Line, Span, cells, fit, merge, wrap
from mtplx_tui.models_page.downloads import Download
from mtplx_tui.models_page.shelf import ModelRow
from mtplx_tui.models_page.view import ModelsView

WIDE = 110
PANEL = 46
FILES = 4
"""Files of a download that are named."""
QUANT, SIZE, HEAD, FITS, STATE = 9, 10, 5, 6, 12
WHERE = {"bundled": "bundled", "stored": "on disk", "cache": "on disk", "partly": "begun", "catalog": "hub"}
VERDICTS = {"yes": "", "tight": "warn", "no": "refuse", "unknown": "muted"}


def models_page(view: ModelsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """`height` lines of `width` cells."""
    wide = width >= WIDE
    below = _below(view, width - 4, wide, glyphs)
    low = min(max(len(below), 2) + 2, height // 2)
    high = height - low
    left = width - PANEL if wide else width
    title = "models" if view.every is None else f"models: {len(view.rows)} of {len(view.every)}, {view.order}"
    hint = "/ filter - o sort - i inspect - u unload"
    page = framed(_table(view, left - 4, high - 2, glyphs), left, high, glyphs, title, hint.replace("-", glyphs.dot))
    if wide:
        row = view.row
        panel = framed(detail(row, PANEL - 4, glyphs) if row else [], PANEL, high, glyphs, "chosen")
        page = [merge([*one, *other]) for one, other in zip(page, panel, strict=True)]
    hint = f"p pause or go on {glyphs.dot} x stop and delete {glyphs.dot} kept when you leave"
    return [*page, *framed(below, width, low, glyphs, "downloads", hint)]


def _table(view: ModelsView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    if view.every is None:
        return [(("reading what is here", "muted"),)]
    rows = view.rows
    if not rows:
        text = f"No model has {one_line(view.find, glyphs)} in its name. / changes the filter."
        return wrap([(text, "muted")], width)
    room = width - 2 - QUANT - SIZE - HEAD - FITS - STATE
    head = f"  {'model':{room}}{'quant':{QUANT}}{'size':>{SIZE - 2}}  {'head':{HEAD}}{'fits':{FITS}}{'state':{STATE}}"
    shown, chosen = max(height - 1, 1), view.place
    start = min(max(chosen - shown // 2, 0), max(len(rows) - shown, 0))
    return [
        ((head, "muted"),),
        *(
            _row(row, view, place == chosen, room, glyphs)
            for place, row in enumerate(rows[start : start + shown], start)
        ),
    ]


def _row(row: ModelRow, view: ModelsView, chosen: bool, room: int, glyphs: Glyphs) -> Line:
    role = "strong" if chosen else "" if row.here else "muted"
    name = end_of(one_line(row.name, glyphs), room - 1, glyphs)
    quant = start_of((row.quantization or "").partition(",")[0].partition(" ")[0], QUANT - 1, glyphs)
    bytes_ = "" if row.size is None else size(row.size)
    head = "" if row.head is None else row.head.partition(",")[0]
    fits = "?" if row.fits == "unknown" else row.fits
    word, look = state_of(row, view, glyphs)
    return merge([
        ("> " if chosen else "* " if row.advised else "  ", "accent strong" if chosen else "bonus"),
        (name + " " * (room - cells(name)), role),
        (f"{quant:{QUANT}}{bytes_:>{SIZE - 2}}  {start_of(head, HEAD - 1, glyphs):{HEAD}}", role),
        (f"{fits:{FITS}}", VERDICTS[row.fits] or role),
        (start_of(word, STATE, glyphs), look or role),
    ])  # fmt: skip


def state_of(row: ModelRow, view: ModelsView, glyphs: Glyphs) -> Span:
    """In a word: what the model does, or where it is."""
    if row.name == view.loaded:
        return ("LOADED", "accent strong")
    item = next((item for item in view.downloads if item.repo == row.name), None)
    if item is None or item.state == "done":
        return (WHERE[row.where], "")
    if item.state == "running":
        share = item.share
        return ("begins", "accent") if share is None else (f"{percent(share):>4} {meter(share, 6, glyphs)}", "accent")
    return (item.state, "error" if item.state == "failed" else "warn")


def detail(row: ModelRow, width: int, glyphs: Glyphs) -> list[Line]:
    """What is known of a model, a fact a line."""
    drafts = "unknown" if row.head is None else "none: it runs without drafts" if row.head == "none" else row.head
    facts = {
        "family": row.family,
        "context": None if row.context is None else f"{row.context:,} tokens",
        "quant": row.quantization,
        "weights": None if row.size is None else size(row.size),
        "caches": _caches(row),
        "needs": _needs(row),
        "head": drafts,
        "tier": row.tier or "unknown",
        "tuned": None if row.tuned_depth is None else f"depth {row.tuned_depth} on this machine",
        "licence": row.licence,
        "where": row.path or WHERE[row.where],
        "come": None if row.come is None else f"{size(row.come)}; d goes on with it",
        "advice": "among the first to try on this machine" if row.advised else None,
        "note": row.problem,
    }
    lines = [*wrap([(one_line(row.name, glyphs), "strong")], width), ()]
    for name, value in facts.items():
        if value is not None:
            first, *rest = wrap([(one_line(value, glyphs), "")], width - 9)
            lines += [((f"{name:9}", "muted"), *first), *(((" " * 9, ""), *line) for line in rest)]
    return lines


def _caches(row: ModelRow) -> str | None:
    if row.kv_bytes_per_token is None:
        return None
    whole = size(row.kv_bytes_per_token * row.fit_context)
    return f"{size(row.kv_bytes_per_token)} a token, {whole} at {count(row.fit_context)}"


def _needs(row: ModelRow) -> str | None:
    words = {"yes": "fits", "tight": "tight", "no": "does NOT fit", "unknown": "not known whether it fits"}[row.fits]
    if row.needed is None:
        return words
    until = f", up to {count(row.longest)} tokens" if row.fits == "tight" and row.longest else ""
    return f"{size(row.needed)} of {size(row.fit_memory)}: {words}{until}"


def _below(view: ModelsView, width: int, wide: bool, glyphs: Glyphs) -> list[Line]:
    lines: list[Line] = []
    for item in view.downloads:
        lines += _download(item, width, glyphs)
    row = view.row
    if not wide and row is not None:
        summary = ": ".join(filter(None, ("chosen", _needs(row))))
        more = [f"head {row.head}" if row.head else "", row.tier or "", row.licence or ""]
        lines.append(((f" {glyphs.dot} ".join(filter(None, [summary, *more])), "muted"),))
    if not view.downloads:
        lines.append((("none; d downloads the chosen model from the hub", "muted"),))
    return [fit(line, width, glyphs.ellipsis) for line in lines]


def _download(item: Download, width: int, glyphs: Glyphs) -> list[Line]:
    name = end_of(one_line(item.repo, glyphs), max(width // 3, 20), glyphs)
    told, share = item.progress, item.share
    if item.state == "failed":
        first, *rest = wrap([(one_line(item.error, glyphs), "error")], width - 2)
        return [((f"{name}  ", ""), ("failed", "error strong")), *(((" " * 2, ""), *line) for line in (first, *rest))]
    if item.state == "done":
        return [((f"{name}  ", ""), ("here, every checksum right", "bonus"))]
    if told is None or share is None:
        return [((f"{name}  ", ""), ("asking the hub" if item.state == "running" else item.state, "muted"))]
    rate = ""
    if item.state == "running" and told["rate"] is not None:
        rate = f"  {size(int(told['rate']))}/s  {seconds(told['eta'])}"
    line: Line = (
        (f"{name}  ", "strong" if item.state == "running" else ""),
        (f"{size(told['done'])} / {size(told['total'])}  ", ""),
        (meter(share, 12, glyphs), "accept"),
        (f" {percent(share)}{rate}", ""),
        (f"  {item.state}" if item.state != "running" else "", "warn"),
    )
    return [line, *(_files(item, told["stage"], glyphs) if item.state == "running" else ())]


def _files(item: Download, stage: str, glyphs: Glyphs) -> Sequence[Line]:
    newest = list(item.files.items())[-FILES:]
    lines: list[Line] = []
    for place, (file, (done, whole)) in enumerate(newest):
        last = place == len(newest) - 1
        come = "done" if done >= whole else f"{size(done)} / {size(whole)}"
        how = "checking" if last and stage == "checking" else come
        lines.append(((f"  {one_line(file, glyphs)}  {how}", "muted"),))
    return lines


def end_of(text: str, room: int, glyphs: Glyphs) -> str:
    """The end of a text, with an ellipsis where its beginning does not fit: names differ at their ends."""
    if cells(text) <= room:
        return text
    keep = text[-max(room - cells(glyphs.ellipsis), 1) :]
    while cells(keep) > room - cells(glyphs.ellipsis):
        keep = keep[1:]
    return glyphs.ellipsis + keep


def start_of(text: str, room: int, glyphs: Glyphs) -> str:
    return "".join(part for part, _ in fit(((text, ""),), room, glyphs.ellipsis))
