"""Downloads in processes of their own, one at a time: a pause is a stop, since a download goes on where it was."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from mtplx_tui.runs.job import Job

State = Literal["queued", "running", "paused", "done", "failed"]


@dataclass(slots=True)
class Download:
    """One model that comes, or came.

    Attributes:
        progress: what `pull` told last, as `engine.downloads.Progress` has it. files: (done, size) of those it named.
        error: why it failed.
    """

    repo: str
    state: State = "queued"
    progress: dict[str, Any] | None = None
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    error: str = ""
    job: Job | None = None

    @property
    def share(self) -> float | None:
        """Of its bytes, 0 to 1; None while that is not known."""
        told = self.progress
        return told["done"] / told["total"] if told and told["total"] else None

    def look(self) -> None:
        """Take in what its process has said since."""
        job = self.job
        if job is None:
            return
        with suppress(IndexError, ValueError, TypeError, KeyError):
            told = json.loads(job.lines[-1])
            self.files[told["file"]] = (told["file_done"], told["file_size"])
            self.progress = told
        if job.state in ("done", "failed"):
            self.state, self.error, self.job = job.state, job.error, None


class Downloads:
    """The queue. All methods belong to the UI thread, and none waits.

    Args:
        start: begins a download in a process of its own.
    """

    def __init__(self, start: Callable[[str], Job]) -> None:
        self._start = start
        self.items: list[Download] = []

    def of(self, repo: str) -> Download | None:
        return next((item for item in self.items if item.repo == repo), None)

    def add(self, repo: str) -> None:
        """Queue a download; one that failed or was paused is queued again."""
        item = self.of(repo)
        if item is None:
            self.items.append(Download(repo))
        elif item.state in ("paused", "failed", "done"):
            item.state, item.error = "queued", ""
        self.look()

    def pause(self, repo: str) -> None:
        """Stop it, or take it out of the queue; what came stays."""
        item = self.of(repo)
        if item is not None and item.state in ("running", "queued"):
            self._stop(item)
            item.state = "paused"
            self.look()

    def drop(self, repo: str) -> Job | None:
        """Stop it and forget it; gives its process, which needs a moment to end."""
        item = self.of(repo)
        if item is None:
            return None
        job = item.job
        self._stop(item)
        self.items.remove(item)
        self.look()
        return job

    def stop(self) -> None:
        """End all; each goes on where it was when it is begun again."""
        for item in self.items:
            self._stop(item)

    @property
    def busy(self) -> bool:
        """Whether one runs or waits."""
        return any(item.state in ("running", "queued") for item in self.items)

    def look(self) -> list[Download]:
        """Take in what the running one has said, and begin the next where it has ended; gives those that ended."""
        running = [item for item in self.items if item.state == "running"]
        for item in running:
            item.look()
        if not any(item.state == "running" for item in running):
            waiting = next((item for item in self.items if item.state == "queued"), None)
            if waiting is not None:
                waiting.job = self._start(waiting.repo)
                waiting.state = "running"
        return [item for item in running if item.state != "running"]

    def _stop(self, item: Download) -> None:
        if item.job is not None:
            item.job.stop()
            item.job = None
