"""`mtplx-tui doctor`: what on this machine is in the way, and how to mend it."""

import dataclasses

from mtplx_tui import exit_codes
from mtplx_tui.commands import common
from mtplx_tui.commands.common import JsonOption


def doctor(as_json: JsonOption = False) -> int:
    """Find what is in the way on this machine, and how to mend it.

    It looks at the device, the terminal and the program's files. Exit code 1 where something keeps the program from
    working.
    """
    from mtplx_tui import doctor

    findings = doctor.examine()
    problems = any(finding.level == "problem" for finding in findings)
    if as_json:
        common.print_json({"ok": not problems, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            print(f"{finding.level:8} {finding.name:12} {finding.text}")
            if finding.fix:
                print(f"{'':21} fix: {finding.fix}")
    return exit_codes.NOT_PASSED if problems else exit_codes.OK
