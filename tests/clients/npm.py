"""Packages from npm, each in a folder of its own."""

import json
import os
import subprocess
from pathlib import Path

USERS = dict(os.environ)
"""As the user has it, npm's cache included."""


def installed(folder: Path, *packages: str) -> Path:
    """Install `packages`, each with its version, into a new folder; the answer is the folder of their programs."""
    folder.mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    command = ["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", *packages]
    subprocess.run(command, cwd=folder, env=USERS, check=True, timeout=600)
    return folder / "node_modules" / ".bin"
