"""Downloads from a hub on this machine: they go on where they were stopped, and refuse what is unsafe or wrong."""

import errno
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_stand_in import COMMIT, HubStandIn, served

from engine import downloads
from engine import hub as hub_module
from engine.downloads import Progress, download
from engine.hub import HubError, UnsafeModelError, look_up, partly_here, remove
from engine.models.locate import here, locate

DEMO = Path(hub_module.__file__).parent / "assets" / "demo-13m"
REPO = "maker/model-4bit"
WEIGHTS = "model.safetensors"
SIZE = 3_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[HubStandIn]:
    with served() as hub:
        yield hub


@pytest.fixture
def hub(server: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubStandIn:
    """A hub with one model, and an empty cache for it."""
    fresh = HubStandIn()
    fresh.url = server.url
    server.go.set()
    server.__dict__.update(fresh.__dict__)
    server.repos[REPO] = {
        "config.json": b'{"model_type": "qwen3_5"}',
        "tokenizer.json": b"{}",
        "empty.json": b"",
        "added_tokens.json": b"",
        "README.md": b"not needed",
        "pytorch_model.bin": b"not wanted",
        WEIGHTS: random.Random(1).randbytes(SIZE),
    }
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(downloads, "WAIT_S", 0.0)
    return server


def pull(repo: str = REPO, revision: str | None = None, tell: Callable[[Progress], None] = lambda _: None) -> Path:
    return download(look_up(repo, revision), tell)


def weights_asked(hub: HubStandIn) -> list[int]:
    return [start for name, start in hub.asked if name == WEIGHTS]


def parts(tmp_path: Path) -> list[int]:
    return [part.stat().st_size for part in tmp_path.rglob("*.incomplete")]


def test_only_what_a_model_needs_comes_and_other_programs_find_it(hub: HubStandIn, tmp_path: Path) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    folder = pull()
    assert {file.name for file in folder.iterdir()} == {"config.json", "tokenizer.json", "added_tokens.json", WEIGHTS}
    assert (folder / WEIGHTS).read_bytes() == hub.repos[REPO][WEIGHTS]
    assert try_to_load_from_cache(REPO, WEIGHTS) == str(folder / WEIGHTS)
    assert [repo.repo_id for repo in scan_cache_dir(tmp_path / "hub").repos] == [REPO]
    assert REPO in here()
    asked = len(hub.asked)
    assert pull() == folder
    assert len(hub.asked) == asked + 1, "what is here is not asked for again, but for the config that is looked at"


def test_a_real_model_can_be_located_and_removed(hub: HubStandIn, tmp_path: Path) -> None:
    hub.repos[REPO] = {file.name: file.read_bytes() for file in DEMO.iterdir() if file.is_file()}
    folder = pull()
    assert locate(REPO).path == folder
    freed = remove(REPO)
    assert freed > SIZE
    assert list((tmp_path / "hub").glob("models--*")) == []
    with pytest.raises(HubError, match="not in the hub's cache"):
        remove(REPO)


def test_progress_grows_to_the_whole_and_ends_there(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "TELL_S", 0.0)
    told: list[Progress] = []
    pull(tell=told.append)
    done = [progress.done for progress in told]
    assert done == sorted(done)
    assert (done[-1], told[-1].total) == (look_up(REPO).size, look_up(REPO).size)
    assert {progress.stage for progress in told if progress.file == WEIGHTS} == {"downloading", "checking"}
    assert len([p for p in told if p.file == WEIGHTS and 0 < p.file_done < p.file_size]) > 3
    assert any(progress.rate and progress.eta is not None for progress in told)


class Stop(Exception):
    pass


@pytest.mark.parametrize("ranges", [True, False])
def test_a_stopped_download_goes_on_where_it_was(
    hub: HubStandIn, tmp_path: Path, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "TELL_S", 0.0)

    def stop(progress: Progress) -> None:
        if progress.file == WEIGHTS and progress.file_done > SIZE // 2:
            raise Stop

    with pytest.raises(Stop):
        pull(tell=stop)
    (half,) = parts(tmp_path)
    assert SIZE // 2 < half < SIZE
    assert REPO not in here(), "half a model is none"
    assert partly_here()[REPO] >= half
    hub.ranges = ranges
    assert (pull() / WEIGHTS).read_bytes() == hub.repos[REPO][WEIGHTS]
    assert weights_asked(hub) == [0, half]
    assert partly_here() == {}


def test_a_killed_download_goes_on_where_it_was(hub: HubStandIn, tmp_path: Path) -> None:
    hub.hold_after = 2_000_000
    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub")}
    argv = [sys.executable, "-m", "mtplx_tui", "pull", REPO]
    child = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert hub.holding.wait(60)
    reached(tmp_path, 1_500_000)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (half,) = parts(tmp_path)
    hub.hold_after = None
    hub.go.set()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert weights_asked(hub) == [0, half]
    assert REPO in here()


def reached(tmp_path: Path, size: int) -> None:
    """Wait until so much of the file is on the disk."""
    import time

    deadline = time.monotonic() + 30
    while not any(part >= size for part in parts(tmp_path)):
        assert time.monotonic() < deadline, parts(tmp_path)
        time.sleep(0.01)


def test_a_connection_that_breaks_is_taken_up_again(hub: HubStandIn) -> None:
    hub.cut = [1_000_000, 500_000]
    assert (pull() / WEIGHTS).read_bytes() == hub.repos[REPO][WEIGHTS]
    assert len(weights_asked(hub)) == 3
    assert weights_asked(hub)[1] > 0


def test_a_connection_that_always_breaks_is_given_up(hub: HubStandIn, tmp_path: Path) -> None:
    hub.cut = [0] * 50
    with pytest.raises(HubError, match="can not be reached"):
        pull()
    assert len(weights_asked(hub)) == downloads.TRIES


@pytest.mark.parametrize(("name", "word"), [(WEIGHTS, "SHA-256"), ("tokenizer.json", "SHA-1")])
def test_a_wrong_checksum_removes_the_file_and_says_so(hub: HubStandIn, tmp_path: Path, name: str, word: str) -> None:
    hub.falsified = {name}
    with pytest.raises(HubError, match=f"{name} of {REPO} is not what .* {word}"):
        pull()
    assert parts(tmp_path) == []
    assert REPO not in here()
    hub.falsified = set()
    assert (pull() / name).read_bytes() == hub.repos[REPO][name]


def test_a_leftover_that_is_too_long_begins_anew(hub: HubStandIn, tmp_path: Path) -> None:
    listing = look_up(REPO)
    blobs = hub_module.folder_of(REPO) / "blobs"
    blobs.mkdir(parents=True)
    for file in listing.files:
        (blobs / f"{file.digest}.incomplete").write_bytes(b"x" * (file.size + 1))
    assert (pull() / WEIGHTS).read_bytes() == hub.repos[REPO][WEIGHTS]


def test_a_disk_without_room_is_said_before(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from shutil import disk_usage

    monkeypatch.setattr(downloads, "MARGIN", disk_usage("/").free * 1000)
    with pytest.raises(HubError, match=r"needs 3\.0 MB more .* to spare"):
        pull()
    assert weights_asked(hub) == []


def test_a_disk_that_fills_up_keeps_what_has_come(hub: HubStandIn, small_disk: Path) -> None:
    with pytest.raises(HubError, match=r"is full, and .* what has come is kept") as full:
        pull()
    assert isinstance(full.value.__cause__, OSError)
    assert full.value.__cause__.errno == errno.ENOSPC
    (part,) = parts(small_disk)
    assert part > 1_000_000
    subprocess.run(["mount", "-o", "remount,size=9m", small_disk], check=True)
    assert (pull() / WEIGHTS).read_bytes() == hub.repos[REPO][WEIGHTS]
    assert weights_asked(hub) == [0, part]


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache on a file system of two megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("this system lets no file system be mounted")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(place))
    monkeypatch.setattr(downloads, "MARGIN", -SIZE)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_limit_on_file_sizes_is_told_as_a_full_disk(hub: HubStandIn, tmp_path: Path) -> None:
    def no_large_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub")}
    argv = [sys.executable, "-m", "mtplx_tui", "pull", REPO]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, preexec_fn=no_large_files, timeout=60)
    assert done.returncode == 3
    assert "is full" in done.stderr
    assert "what has come is kept" in done.stderr


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (401, None, ["does not know", "hf auth login", "HF_TOKEN"]),
        (401, "GatedRepo", ["is gated", f"/{REPO}", "hf auth login"]),
        (403, "GatedRepo", ["is gated", "HF_TOKEN"]),
        (403, None, ["does not give", "403"]),
        (404, "RepoNotFound", ["There is no", "Check the name"]),
        (404, "RevisionNotFound", ["no revision"]),
        (429, None, ["429", "come back later"]),
        (500, None, ["answers 500"]),
    ],
)
def test_what_the_hub_refuses_is_told_with_the_way_on(
    hub: HubStandIn, status: int, code: str | None, words: list[str]
) -> None:
    hub.status, hub.code = status, code
    with pytest.raises(HubError) as refused:
        pull()
    for word in words:
        assert word in str(refused.value)


def test_no_network_is_told_with_the_address(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"http://127\.0\.0\.1:9 can not be reached .* HF_ENDPOINT"):
        pull()


def test_a_token_of_the_environment_goes_with_each_request(hub: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.tokens = {"hf_right"}
    with pytest.raises(HubError, match="hf auth login"):
        pull()
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert pull().is_dir()


CODE = b'{"model_type": "x", "auto_map": {"AutoModel": "modeling_x.X"}}'


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({"config.json": b"{}", "pytorch_model.bin": b"x"}, UnsafeModelError, "only as pickle"),
        ({"config.json": b"{}", "model.pt": b"x"}, UnsafeModelError, "only as pickle"),
        ({"config.json": CODE, WEIGHTS: b"x", "modeling_x.py": b"x"}, UnsafeModelError, "its own code"),
        ({"config.json": b'{"model_file": "m.py"}', WEIGHTS: b"x"}, UnsafeModelError, "its own code"),
        ({"config.json": b"{}", "model.gguf": b"x"}, HubError, "has no safetensors"),
        ({WEIGHTS: b"x"}, HubError, "no config.json"),
        ({"config.json": b"[]", WEIGHTS: b"x"}, HubError, "holds no object"),
        ({"config.json": b"{", WEIGHTS: b"x"}, HubError, "no JSON"),
    ],
)
def test_what_is_unsafe_or_no_model_is_refused_before_its_weights(
    hub: HubStandIn, tmp_path: Path, files: dict[str, bytes], error: type[HubError], words: str
) -> None:
    hub.repos["maker/bad"] = files
    with pytest.raises(error, match=words):
        pull("maker/bad")
    assert [name for name, _ in hub.asked if name != "config.json"] == []
    assert not (tmp_path / "hub").exists()


def test_scripts_beside_a_model_that_does_not_need_them_are_left_out(hub: HubStandIn) -> None:
    hub.repos[REPO] |= {"convert.py": b"x", "sub/../../evil.safetensors": b"x", "mtp/weights.safetensors": b"head"}
    folder = pull()
    assert not (folder / "convert.py").exists()
    assert (folder / "mtp" / "weights.safetensors").read_bytes() == b"head"
    assert {name for name, _ in hub.asked if "evil" in name} == set()


def test_a_revision_has_a_ref_of_its_own(hub: HubStandIn, tmp_path: Path) -> None:
    assert pull(revision="v1").name == COMMIT
    assert (hub_module.folder_of(REPO) / "refs" / "v1").read_text() == COMMIT
    for wrong in ("../../x", "-x", ""):
        with pytest.raises(HubError, match="how a revision is called"):
            look_up(REPO, wrong)


def test_two_at_once_do_not_write_the_same_file(hub: HubStandIn) -> None:
    listing = look_up(REPO)
    with downloads._alone(listing), pytest.raises(HubError, match="another process"):
        download(listing)


def test_a_copy_that_shares_the_commit_stays(hub: HubStandIn) -> None:
    hub.repos["maker/copy"] = hub.repos[REPO]
    assert pull().name == pull("maker/copy").name == COMMIT
    remove("maker/copy")
    assert REPO in here()
    assert "maker/copy" not in here()


def test_what_was_only_begun_can_be_removed(hub: HubStandIn, tmp_path: Path) -> None:
    hub.falsified = {WEIGHTS}
    with pytest.raises(HubError):
        pull()
    assert hub_module.folder_of(REPO).is_dir()
    remove(REPO)
    assert not hub_module.folder_of(REPO).exists()


@pytest.mark.parametrize("name", ["demo-13m", ".", "..", "../x", "a/../b", "a/b/c", "/tmp", "a--b/c", ""])
def test_nothing_but_a_repository_of_the_cache_is_removed(hub: HubStandIn, name: str) -> None:
    with pytest.raises(HubError, match="not in the hub's cache"):
        remove(name)
