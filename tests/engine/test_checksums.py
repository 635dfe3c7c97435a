"""What lies in the hub's cache against what the hub promised of it."""

import hashlib
from pathlib import Path

import pytest

from engine.checksums import check
from engine.hub import HubError, folder_of

REPO = "maker/model"
CONFIG, WEIGHTS = b'{"model_type": "llama"}', bytes(range(256)) * 9000


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository as the hub's client lays it out: two snapshots that share the weights."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    folder = folder_of(REPO)
    git = hashlib.sha1(b"blob %d\0" % len(CONFIG) + CONFIG).hexdigest()
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / git).write_bytes(CONFIG)
    (folder / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()).write_bytes(WEIGHTS)
    for commit in ("a", "b"):
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to(folder / "blobs" / git)
        (snapshot / "model.safetensors").symlink_to(folder / "blobs" / hashlib.sha256(WEIGHTS).hexdigest())
    return folder


def test_each_file_is_read_once_and_what_is_not_as_promised_is_named(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    whole = len(CONFIG) + len(WEIGHTS)
    checked = check(REPO, lambda done, total: told.append((done, total)))
    assert (checked.files, checked.nbytes, checked.wrong, checked.unknown) == (2, whole, (), ())
    assert told == sorted(told)
    assert told[-1] == (whole, whole)
    (folder / "snapshots" / "b" / "notes.txt").write_text("of another program")
    (folder / "blobs" / hashlib.sha256(WEIGHTS).hexdigest()).write_bytes(WEIGHTS[1:])
    (folder / "snapshots" / "a" / "config.json").resolve().unlink()
    checked = check(REPO)
    assert set(checked.wrong) == {
        ("config.json", "it is missing"),
        ("model.safetensors", "its SHA-256 is not the one that the hub gave"),
    }
    assert checked.unknown == ("notes.txt",)


def test_what_is_not_here_can_not_be_checked_and_a_stop_passes_through(folder: Path) -> None:
    with pytest.raises(HubError, match="'maker/none' is not in the hub's cache"):
        check("maker/none")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(REPO, stop)
