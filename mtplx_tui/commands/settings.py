"""`mtplx-tui settings`: what is kept for the next start, and what a running server may change at once."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mtplx_tui import exit_codes, paths
from mtplx_tui.commands import common, complete
from mtplx_tui.commands.common import CommandFailedError, JsonOption, UsageError

if TYPE_CHECKING:
    import httpx

    from mtplx_tui.saved_settings import Loaded, Setting

NEXT = {
    "server": "from the next start on; a running server takes it with --live",
    "screen": "from the next start on, or at once from the settings screen",
    "start": "from the next start on",
}

LiveOption = Annotated[
    bool, typer.Option("--live", help="In the server that runs here, until it ends; not in the file.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="In the server there, until it ends; not in the file.")
]
KeyFileOption = Annotated[
    Path | None, typer.Option("--key-file", metavar="FILE", help="That server's key, in a file that only you can read.")
]
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As `mtplx-tui settings` lists it.", autocompletion=complete.settings),
]

settings = typer.Typer(help="Show and change what is kept from one start to the next.", rich_markup_mode=None)


@settings.callback(invoke_without_command=True)
def listed(
    context: typer.Context,
    live: LiveOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """List all settings, with their values and where these come from.

    They are kept in one file, which may be edited by hand. Options of a command win over it.
    """
    if context.invoked_subcommand is not None:
        if live or url or key_file or as_json:
            raise UsageError(f"Write options after {context.invoked_subcommand}.")
        return exit_codes.OK
    if _is_live(live, url, key_file):
        with _server(url, key_file) as server:
            return _print_live(_ask(server, "GET"), as_json, f"{server.base_url}")
    loaded = _loaded()
    from mtplx_tui.saved_settings import SETTINGS

    rows = [_row(setting, loaded) for setting in SETTINGS]
    if as_json:
        common.print_json({"file": str(paths.settings_file()), "notes": loaded.notes, "settings": rows})
    else:
        print(f"{paths.settings_file()}\n")
        print("\n".join(_table(rows)))
    return exit_codes.OK


@settings.command("get", epilog=exit_codes.HELP)
def get(
    name: NameArgument,
    live: LiveOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print the value of one setting."""
    from mtplx_tui.saved_settings import in_words, setting

    known = setting(name)
    if _is_live(live, url, key_file):
        _check_live(known)
        with _server(url, key_file) as server:
            row = next(row for row in _ask(server, "GET") if row["name"] == known.name)
    else:
        row = _row(known, _loaded())
    if as_json:
        common.print_json(row)
    else:
        print(in_words(row["value"]))
    return exit_codes.OK


@settings.command("set", epilog=exit_codes.HELP, context_settings={"ignore_unknown_options": True})
def set_(
    name: NameArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="Of several names, write commas between them.")],
    live: LiveOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Keep a value for the next start, or with --live or --url give it to a running server at once."""
    from mtplx_tui.saved_settings import parse, setting

    return _change(setting(name), parse(name, value), _is_live(live, url, key_file), url, key_file, as_json)


@settings.command("unset", epilog=exit_codes.HELP)
def unset(
    name: NameArgument,
    live: LiveOption = False,
    url: UrlOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take a setting back to its default."""
    from mtplx_tui.saved_settings import setting

    return _change(setting(name), None, _is_live(live, url, key_file), url, key_file, as_json)


def _change(known: "Setting", value: Any, live: bool, url: str | None, key_file: Path | None, as_json: bool) -> int:
    """Set a value, or where it is None take it back, and say what holds then and from when."""
    from mtplx_tui.saved_settings import in_words, save

    if live:
        _check_live(known)
        with _server(url, key_file) as server:
            row = next(row for row in _ask(server, "PATCH", {known.name: value}) if row["name"] == known.name)
            where = f"in the server at {server.base_url}, until it ends"
    else:
        loaded = save(paths.settings_file(), {known.name: value})
        _say(loaded)
        row = _row(known, loaded)
        where = f"{NEXT[known.applies]} ({paths.settings_file()})"
    if as_json:
        common.print_json(row)
    else:
        print(f"{known.name} is {in_words(row['value'])} {where}")
    return exit_codes.OK


def _loaded() -> "Loaded":
    from mtplx_tui.saved_settings import load

    loaded = load(paths.settings_file())
    _say(loaded)
    return loaded


def _say(loaded: "Loaded") -> None:
    for note in loaded.notes:
        common.say(note)


def _row(setting: "Setting", loaded: "Loaded") -> dict[str, Any]:
    source = "file" if setting.name in loaded.saved.model_fields_set else "default"
    return asdict(setting) | {"value": getattr(loaded.saved, setting.name), "source": source}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    from mtplx_tui.saved_settings import in_words

    lines: list[str] = []
    section = None
    for row in rows:
        if row["section"] != section:
            section = row["section"]
            lines += ["", section] if lines else [section]
        lines.append(f"  {row['name']:<19}{in_words(row['value']):<14} {row['source']:<8} {row['allowed']}")
    return lines


def _print_live(rows: list[dict[str, Any]], as_json: bool, url: str) -> int:
    from mtplx_tui.saved_settings import in_words

    if as_json:
        common.print_json({"url": url, "settings": rows})
        return exit_codes.OK
    for row in rows:
        source = "default" if row["value"] == row["default"] else "set"
        is_own = row["value"] is None and row["effective"] is not None
        own = f"the model's is {in_words(row['effective'])}" if is_own else ""
        print(f"{row['name']:<21}{in_words(row['value']):<14} {source:<8} {own}".rstrip())
    return exit_codes.OK


def _is_live(live: bool, url: str | None, key_file: Path | None) -> bool:
    if key_file is not None and not (live or url):
        raise UsageError("--key-file is for a running server: add --live, or --url URL.")
    return live or url is not None


def _check_live(setting: "Setting") -> None:
    if setting.applies != "server":
        raise UsageError(f"{setting.name} is no setting of a running server; leave --live and --url out to keep it.")


def _server(url: str | None, key_file: Path | None) -> "httpx.Client":
    """A client of the server that is meant."""
    from mtplx_tui.remote import http

    if url is None:
        from mtplx_tui.running import servers

        found = servers()
        if not found:
            raise CommandFailedError("No server runs here. Start one with mtplx-tui serve, or name one with --url.")
        if len(found) > 1:
            raise UsageError(f"Several servers run here: {', '.join(each.url for each in found)}. Choose with --url.")
        url = found[0].url
    return http.client(http.base_url(url), http.read_key(key_file))


def _ask(server: "httpx.Client", method: str, changes: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The server's settings, after some changes where they are given. Raises UsageError or CommandFailedError."""
    import httpx

    from mtplx_tui.remote import http
    from mtplx_tui.remote.settings import PATH

    try:
        response = server.request(method, PATH, json=changes)
        if response.status_code == 400:
            raise UsageError(http.refusal(response))
        if response.status_code != 200:
            raise CommandFailedError(f"{server.base_url}: {http.refusal(response)}")
        rows: list[dict[str, Any]] = response.json()["settings"]
    except (httpx.HTTPError, OSError) as error:
        raise CommandFailedError(f"{server.base_url}: {http.trouble(error)}.") from error
    except (ValueError, LookupError, TypeError) as error:
        raise CommandFailedError(f"{server.base_url} does not answer as a server of ours does.") from error
    return rows
