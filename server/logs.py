"""The server's log: nothing that came from outside can look like a line of its own, or reach a terminal's controls."""

import logging
import re

LONGEST_LINE = 1000

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def shown(text: str, most: int = 100) -> str:
    """Text from a client as part of a line: control characters escaped, and cut to `most` characters."""
    cut = text if len(text) <= most else text[:most] + "…"
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), cut)


class _OneLine(logging.Filter):
    """Escapes a record's message, and sets its traceback in: messages of exceptions may quote what a client sent."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = shown(record.getMessage(), LONGEST_LINE), ()
        if record.exc_info and not record.exc_text:
            lines = logging.Formatter().formatException(record.exc_info).split("\n")
            record.exc_text = "\n".join("  " + shown(line, LONGEST_LINE) for line in lines)
        return True


log = logging.getLogger("server")
_uvicorn = logging.getLogger("uvicorn.error")


def prepare() -> None:
    """Make the server's loggers safe, and silent where the program has set up no log."""
    _uvicorn.setLevel(logging.ERROR)  # a warning for each malformed request would let anybody fill the disk
    for logger in (log, _uvicorn):
        if not any(isinstance(one, _OneLine) for one in logger.filters):
            logger.addFilter(_OneLine())
            # Without a handler, Python writes warnings to stderr, which is the middle of somebody's screen.
            logger.addHandler(logging.NullHandler())
