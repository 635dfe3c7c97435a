"""`mtplx-tui doctor`: what on this machine is in the way, and how to mend it."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import JsonOption, UsageError


def doctor(
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write findings, versions, settings and the log's end into a zip file."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Find what is in the way on this machine, and how to mend it.

    It looks at the device, the terminal and the program's files. Exit code 1 where something keeps the program from
    working. A bundle is for whoever looks into a fault: no keys, no names and nothing of any chat are in it.
    """
    from mtplx_tui import doctor

    if bundle is not None and bundle.exists():
        raise UsageError(f"{bundle} is there already, and nothing was written. Give another name.")
    findings = doctor.examine()
    problems = any(finding.level == "problem" for finding in findings)
    parts: list[str] = []
    if bundle is not None:
        from mtplx_tui.bundle import write

        parts = write(bundle, findings)
    if as_json:
        written = {} if bundle is None else {"bundle": {"file": str(bundle.absolute()), "parts": parts}}
        listed = [dataclasses.asdict(finding) for finding in findings]
        common.print_json({"ok": not problems, "findings": listed, **written})
    else:
        for finding in findings:
            print(f"{finding.level:8} {finding.name:12} {finding.text}")
            if finding.fix:
                print(f"{'':21} fix: {finding.fix}")
        if bundle is not None:
            print(f"\n{bundle} holds {', '.join(parts)}. Look at it before you send it.")
    return exit_codes.NOT_PASSED if problems else exit_codes.OK
