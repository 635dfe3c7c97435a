"""A model on the hub: what a download would bring, and why one is refused before a byte of its weights is fetched."""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError
from engine.models.headers import SIDECARS

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub.hf_api import RepoSibling

NAME = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
REVISION = re.compile(r"[\w][\w./-]*", re.ASCII)
NEEDED = (
    "*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip
"""Files of a repository's top folder that a model needs; SIDECARS come with them."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TIMEOUT_S = 20.0
TOKEN_WAY = "log in with `hf auth login`, or set HF_TOKEN"


class HubError(EngineError):
    """A model could not be got from the hub; what has come of it so far is kept."""


class UnsafeModelError(HubError):
    """The repository's weights could only be had by running code of its own."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository.

    Attributes:
        name: its path there. size: bytes. digest: SHA-256 in hex where `sha256`, else git's SHA-1 of the blob.
    """

    name: str
    size: int
    digest: str
    sha256: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """What a download of a repository brings.

    Attributes:
        revision: as it was asked for. commit: what that is now, in hex.
    """

    repo: str
    revision: str
    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def is_repository(name: str) -> bool:
    """Whether this is how a hub repository is called: `org/name`."""
    return NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def look_up(repo: str, revision: str | None = None) -> Listing:
    """Ask the hub what is there, and refuse what must not be downloaded. HF_ENDPOINT and HF_TOKEN are honoured.

    Raises:
        HubError: the hub can not be reached, has no such repository, or does not give it to us.
        UnsafeModelError: its weights are pickles, or it wants its own code to be run.
    """
    from huggingface_hub import HfApi

    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise HubError(f"{revision!a} is not how a revision is called; give a branch, a tag or a commit.")
    with told(repo, revision):
        info = HfApi().model_info(repo, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    siblings = info.siblings or []
    names = [sibling.rfilename for sibling in siblings]
    _refuse_pickles(repo, names)
    if info.sha is None or "config.json" not in names:
        raise HubError(f"{repo} has no config.json, so it is no model that can be loaded.")
    _refuse_code(repo, _config(repo, info.sha), names)
    files = tuple(_file(repo, sibling) for sibling in siblings if _needed(sibling.rfilename))
    return Listing(repo, revision or "main", info.sha, files)


@contextmanager
def told(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn what the hub's client raises inside into a HubError that says what to do."""
    import httpx2
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    where = endpoint()
    try:
        yield
    except GatedRepoError as error:
        raise HubError(f"{repo} is gated: accept its terms at {where}/{repo}, then {TOKEN_WAY}.") from error
    except RevisionNotFoundError as error:
        raise HubError(f"{repo} has no revision {revision!a}. Leave --revision out for the newest.") from error
    except (RepositoryNotFoundError, HfHubHTTPError) as error:
        raise HubError(_said(error.response.status_code, repo, where)) from error
    except HFValidationError as error:
        raise HubError(f"{repo!a} is not how a repository is called; give it as org/name.") from error
    except OfflineModeIsEnabled as error:
        raise HubError("HF_HUB_OFFLINE is set, so nothing is downloaded. Unset it and try again.") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise HubError(f"{where} can not be reached ({reason}). Check the connection, and HF_ENDPOINT.") from error


@contextmanager
def opened(repo: str, file: str, commit: str, start: int = 0) -> "Iterator[httpx2.Response]":
    """The answer to a request for a file from byte `start` on; its body has not been read.

    Raises what the hub's client raises; `told` turns it into words.
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    # the client drops our token where it is sent on to another host
    headers = {**build_hf_headers(), "Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
    url = hf_hub_url(repo, file, revision=commit, endpoint=endpoint())
    with get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as response:
        hf_raise_for_status(response)
        yield response


def endpoint() -> str:
    """Where the hub is: HF_ENDPOINT, or huggingface.co."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def hub_cache() -> Path:
    """The hub's cache on this machine, which other programs use as well."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def folder_of(repo: str) -> Path:
    """A repository's folder in the cache, whether it is there or not."""
    return hub_cache() / f"models--{repo.replace('/', '--')}"


def cached() -> dict[str, Path]:
    """Repositories that lie in the cache, whole or not, with their folders; what `remove` takes."""
    folders = sorted(hub_cache().glob("models--*--*"))
    return {folder.name.removeprefix("models--").replace("--", "/", 1): folder for folder in folders}


def partly_here() -> dict[str, int]:
    """Repositories of which a download was begun and not ended, with the bytes that came of them."""
    return {
        repo: sum(blob.stat().st_size for blob in (folder / "blobs").iterdir())
        for repo, folder in cached().items()
        if any((folder / "blobs").glob("*.incomplete"))
    }


def remove(repo: str) -> int:
    """Delete a repository from the cache, with what was begun of it; gives the bytes that this freed.

    Raises HubError where none of that name is there, OSError where it can not be deleted.
    """
    folder = folder_of(repo)
    if not is_repository(repo) or not folder.is_dir():
        raise HubError(f"{repo!a} is not in the hub's cache, {hub_cache()}.")
    size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    # the hub's own `delete_revisions` goes by commit, and takes copies of a repository that share it along
    shutil.rmtree(folder)
    return size


def _said(status: int, repo: str, where: str) -> str:
    if status == 401:
        return (
            f"{where} does not give {repo} to somebody it does not know: it is private or gated, or there is none of "
            f"that name. Check the name; if it is right, {TOKEN_WAY}."
        )
    if status == 403:
        return f"{where} does not give {repo} to this account (403). Ask for access at {where}/{repo}, or {TOKEN_WAY}."
    if status == 404:
        return f"There is no {repo} at {where}. Check the name; if it is private, {TOKEN_WAY}."
    if status == 429:
        return f"{where} asks to come back later (429). Try again in a few minutes; what has come is kept."
    return f"{where} answers {status} for {repo}. Try again later; what has come is kept."


def _refuse_pickles(repo: str, names: Sequence[str]) -> None:
    if any(name.endswith(".safetensors") for name in names):
        return
    pickles = sorted(name for name in names if any(fnmatch(name, pattern) for pattern in PICKLES))
    if pickles:
        raise UnsafeModelError(
            f"{repo} has its weights only as pickle ({pickles[0]}), which can run code and is never downloaded. "
            "Look for a safetensors version of it."
        )
    raise HubError(f"{repo} has no safetensors, so there are no weights that this engine could read.")


def _refuse_code(repo: str, config: dict[str, Any], names: Sequence[str]) -> None:
    scripts = sorted(name for name in names if name.endswith(".py"))
    if config.get("model_file") is not None:
        raise UnsafeModelError(
            f"{repo} wants its own code to be run (model_file in its config.json), which is refused. "
            "Look for a version of it for an architecture that mlx-lm has."
        )
    if config.get("auto_map") and scripts:
        raise UnsafeModelError(
            f"{repo} wants its own code to be run ({scripts[0]}, by auto_map in its config.json), which is refused. "
            "Look for a version of it without remote code."
        )


def _config(repo: str, commit: str) -> dict[str, Any]:
    with told(repo, commit), opened(repo, "config.json", commit) as response:
        text = response.read()
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HubError(f"{repo} has a config.json that is no JSON, so nothing else of it was downloaded.") from error
    if not isinstance(config, dict):
        raise HubError(f"{repo} has a config.json that holds no object, so nothing else of it was downloaded.")
    return config


def _needed(name: str) -> bool:
    return name in SIDECARS or ("/" not in name and any(fnmatch(name, pattern) for pattern in NEEDED))


def _file(repo: str, sibling: "RepoSibling") -> HubFile:
    digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob_id
    length = 64 if sibling.lfs else 40
    if sibling.size is None or digest is None or not re.fullmatch(f"[0-9a-f]{{{length}}}", digest):
        raise HubError(f"{endpoint()} does not tell size and checksum of {sibling.rfilename} in {repo}.")
    return HubFile(sibling.rfilename, sibling.size, digest, sha256=sibling.lfs is not None)
