"""Commands that are typed into the message box: `/name argument`. No Textual here."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """`argument` is its name for the help; empty where there is none. `action` names what the chat does."""

    name: str
    argument: str
    help: str
    action: str


COMMANDS = (
    Command("attach", "FILE", "put a text, code or PDF file into the message; says how many tokens it has", "attach"),
    Command("bench", "", "the bench room", "room"),
    Command("chat", "", "the chat", "room"),
    Command("copy", "", "copy the whole chat as Markdown", "copy"),
    Command("dashboard", "", "the dashboard", "room"),
    Command("editor", "", "write the message in $EDITOR", "editor"),
    Command("export", "md|json", "write this chat to a file", "export"),
    Command("fork", "", "go on in a copy of this chat", "fork"),
    Command("help", "", "what the keys do and the figures mean", "help"),
    Command("history", "", "search earlier messages of yours", "history"),
    Command("models", "", "the models room", "room"),
    Command("new", "", "new chat; the old one stays saved", "new"),
    Command("quit", "", "leave; chats are saved", "quit"),
    Command("rename", "NAME", "name this chat", "rename"),
    Command("sessions", "", "saved chats", "sessions"),
    Command(
        "set",
        "NAME VALUE",
        "a setting of this chat: temperature 0.2; no value: the model's own; no name: list them",
        "set",
    ),
    Command("settings", "", "the settings room", "room"),
    Command("system", "TEXT", "the system prompt of this chat; no text: none", "system"),
    Command("think", "on|off", "whether the model may think before it answers", "think"),
    Command("tools", "FOLDER|off", "let the model calculate, see the time, read a folder's files", "tools"),
    Command("tune", "", "the tune room", "room"),
)
_NAMES = {command.name: command for command in COMMANDS}


def parse(text: str) -> tuple[Command | None, str] | None:
    """(the command, its argument) of a message that is one; None for every other message.

    A name may be cut short where only one begins so. The command is None where there is none of that name. Two slashes
    begin a message with one.
    """
    if not text.startswith("/") or text.startswith("//"):
        return None
    name, _, argument = text[1:].partition(" ")
    name = name.strip()
    begun = [command for command in COMMANDS if name and command.name.startswith(name)]
    return _NAMES.get(name, begun[0] if len(begun) == 1 else None), argument.strip()


def as_message(text: str) -> str:
    """The text that is sent: of two slashes at its beginning one is left."""
    return text[1:] if text.startswith("//") else text


def matching(text: str) -> list[Command]:
    """The commands that what is typed so far can become; none once an argument begins, or for a message."""
    if not text.startswith("/") or text.startswith("//") or " " in text or "\n" in text:
        return []
    return [command for command in COMMANDS if command.name.startswith(text[1:])]


def completed(text: str) -> str:
    """The text with its command's name written out as far as there is only one way to go on."""
    names = [command.name for command in matching(text)]
    if not names:
        return text
    shared = names[0]
    for name in names[1:]:
        while not name.startswith(shared):
            shared = shared[:-1]
    only = len(names) == 1
    return f"/{shared}{' ' if only and _NAMES[shared].argument else ''}"
