"""Files that go into a message: their text, read on request of the user and shown as a chip until it is sent."""

from pathlib import Path

MOST_BYTES = 20_000_000
MOST_PAGES = 2000


class AttachError(Exception):
    """A file can not go into a message; the text can be shown to a user."""


def read(path: str) -> tuple[str, str]:
    """(name, text) of a text, code or PDF file. Slow for large PDFs. Raises AttachError."""
    file = Path(path.strip().strip("'\"")).expanduser()
    try:
        if not file.is_file():
            raise AttachError(f"There is no file {str(file)!r}.")
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise AttachError(f"{file.name} has {size / 1e6:.0f} MB; at most {MOST_BYTES / 1e6:.0f} are taken.")
        data = file.read_bytes()
    except OSError as error:
        raise AttachError(f"{file} can not be read: {error.strerror or error}.") from error
    text = _pdf(file.name, data) if data.startswith(b"%PDF-") else _text(file.name, data)
    if not text.strip():
        raise AttachError(f"{file.name} has no text in it.")
    return file.name, text


def as_sent(name: str, text: str) -> str:
    """What stands in the message for a file: its name and its text in a fence that its own text can not end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{name}:\n{fence}\n{text.rstrip()}\n{fence}\n"


def _text(name: str, data: bytes) -> str:
    for encoding in ("utf-8-sig", "utf-16") if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ("utf-8-sig",):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\x00" not in text:
            return text
    raise AttachError(f"{name} is no text (UTF-8 or UTF-16) and no PDF.")


def _pdf(name: str, data: bytes) -> str:
    import io

    from pypdf import PdfReader

    try:
        reader = PdfReader(io.BytesIO(data))
        if len(reader.pages) > MOST_PAGES:
            raise AttachError(f"{name} has {len(reader.pages)} pages; at most {MOST_PAGES} are taken.")
        return "\n\n".join(page.extract_text() for page in reader.pages)
    except AttachError:
        raise
    except Exception as error:  # a broken PDF can fail in any way
        raise AttachError(f"{name} can not be read as a PDF: {error}.") from error
