"""locate: from a name to a checked folder, without asking the network."""

import shutil
from pathlib import Path

import pytest

from engine.errors import ModelBrokenError, ModelNotFoundError
from engine.models.locate import ASSETS, ModelFiles, here, locate, model_store

DEMO = ASSETS / "demo-13m"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model store and an empty hub cache."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return model_store()


def copy_of_demo(folder: Path) -> Path:
    shutil.copytree(DEMO, folder)
    return folder


def in_hub_cache(tmp_path: Path, repo: str) -> Path:
    """A repository as the hub's client caches it."""
    cached = tmp_path / "hub" / ("models--" + repo.replace("/", "--"))
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("abc123")
    return copy_of_demo(cached / "snapshots" / "abc123")


@pytest.mark.parametrize("name", [None, "demo-13m"])
def test_the_bundled_model_is_the_default(name: str | None) -> None:
    assert locate(name) == ModelFiles("demo-13m", DEMO)


def test_a_folder_is_named_after_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_of_demo(tmp_path / "my-model")
    found = ModelFiles("my-model", tmp_path / "my-model")
    assert locate(str(tmp_path / "my-model")) == found
    monkeypatch.chdir(tmp_path / "my-model")
    assert locate(".") == found
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locate("~/my-model") == found


def test_a_model_in_the_store_is_found_by_its_name(store: Path) -> None:
    copy_of_demo(store / "tuned.v2")
    assert locate("tuned.v2") == ModelFiles("tuned.v2", store / "tuned.v2")
    assert "tuned.v2" in here()


def test_a_repository_in_the_hub_cache_is_found_by_its_id(tmp_path: Path) -> None:
    snapshot = in_hub_cache(tmp_path, "some-org/Some.Model-v2")
    assert locate("some-org/Some.Model-v2") == ModelFiles("some-org/Some.Model-v2", snapshot)
    assert "some-org/Some.Model-v2" in here()


def test_a_half_downloaded_repository_says_what_is_missing(tmp_path: Path) -> None:
    (in_hub_cache(tmp_path, "org/name") / "model.safetensors").unlink()
    (tmp_path / "hub/models--org--name/snapshots/abc123/model-mtp.safetensors").unlink()
    with pytest.raises(ModelBrokenError, match=r"no model\*\.safetensors"):
        locate("org/name")
    assert "org/name" not in here()


def test_a_repository_that_is_not_here_is_not_downloaded_but_explained() -> None:
    with pytest.raises(ModelNotFoundError, match="mtplx-tui pull org/name"):
        locate("org/name")


def test_an_unknown_name_lists_what_is_here(store: Path) -> None:
    copy_of_demo(store / "mine")
    with pytest.raises(ModelNotFoundError, match=r"'nope' is here\. There are: demo-13m, smollm2-135m, mine"):
        locate("nope")


@pytest.mark.parametrize(
    "name", ["", " ", "/no/such/place", "~/no/such", "a/b/c", "x\0y", "..\\x", "\x1b[31m", "n" * 5000, "org/..", "-/-"]
)
def test_any_other_name_is_refused_in_one_readable_line(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as refusal:
        locate(name)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 600


def test_a_file_is_not_a_model() -> None:
    with pytest.raises(ModelNotFoundError, match="is a file"):
        locate(str(DEMO / "model.safetensors"))


def test_a_folder_without_a_model_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFoundError, match="holds no model"):
        locate(str(tmp_path / "empty"))
