"""One connection to the Hub: requests that either give a stream of bytes, fail for good, or may be tried again.

`huggingface_hub` is imported here alone, and only when something is asked of the Hub. Of its own it would report which
program uses it and what runs around it; requests are made without that.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote

from engine import __version__
from engine.base.errors import FreetokenError, NetworkError, NotFoundError, UsageError
from engine.files.hub.client import Client, Response, library_of
from engine.files.hub.patience import Passing
from engine.files.hub.place import Place

TOKEN_REMEDY = "Log in with: hf auth login, or set HF_TOKEN to a token from huggingface.co/settings/tokens."
_BUSY_STATUS = (408, 425, 429, 500, 502, 503, 504)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_LENGTH = re.compile(r"\d{1,18}", re.ASCII)
_SECONDS = re.compile(r"\d{1,9}", re.ASCII)
_RATE_LIMIT = re.compile(r"r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,9})", re.ASCII)  # "api";r=0;t=55: nothing left for 55 s


@dataclass(frozen=True)
class Hub:
    """Where the Hub is and how it is asked; all of it as the user has set up `huggingface_hub`.

    `timeout` in seconds is how long a connection may stay silent. `offline`: nothing may be asked, only `cache` read.
    """

    endpoint: str
    cache: Path
    offline: bool
    timeout: float
    token: str | None = field(repr=False)
    client: Client = field(repr=False)

    @property
    def place(self) -> Place:
        return Place.of(self.endpoint)

    @property
    def host(self) -> str:
        """What errors call it."""
        return str(self.place)

    def api_url(self, repo: str, revision: str) -> str:
        """Where the list of a repository's files is."""
        return f"{self.endpoint}/api/models/{repo}/revision/{quote(revision, safe='')}?blobs=true"

    def file_url(self, repo: str, commit: str, path: str) -> str:
        """Where the content of a file is."""
        return f"{self.endpoint}/{repo}/resolve/{commit}/{quote(path)}"


@dataclass(frozen=True)
class Answer:
    """A successful answer: `chunks` are the file's bytes `start .. stop`, of `total`, as far as the server tells.

    Whoever reads them to the end leaves the connection for the next request.
    """

    start: int
    stop: int | None
    total: int | None
    chunks: Iterator[bytes]


def connect() -> Hub:
    """The Hub as the environment and the files of `huggingface_hub` describe it. Nothing is asked of it yet.

    Raises UsageError for a description that makes no sense.
    """
    try:
        from huggingface_hub import constants, get_session, get_token
    except ValueError as error:
        raise UsageError(
            f"huggingface_hub cannot read its environment variables: {error}.", "Look at those that begin with HF_."
        ) from None

    endpoint = constants.ENDPOINT
    try:
        Place.of(endpoint)
    except ValueError:
        shown = endpoint.rpartition("@")[2]  # what comes before it may be a password
        raise UsageError(
            f"HF_ENDPOINT is {shown!r}, which is no address.", "Set it to https://..., or unset it."
        ) from None
    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not token.isascii():
        raise UsageError("The token of the Hub has letters that no token has.", TOKEN_REMEDY)
    try:
        client = get_session()
    except Exception as error:  # what an HTTP library raises for a proxy that is no address has no class in common
        raise UsageError(
            f"The proxy that is set up here cannot be used: {error}.",
            "Look at HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.",
        ) from None
    return Hub(
        endpoint=endpoint,
        cache=Path(constants.HF_HUB_CACHE),
        offline=constants.HF_HUB_OFFLINE,
        timeout=float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
        token=token,
        client=client,
    )


@contextlib.contextmanager
def request(
    hub: Hub, url: str, repo: str, what: str, start: int | None = None, stop: int | None = None
) -> Iterator[Answer]:
    """Asks for `url`, or for the bytes from `start` (to `stop`) of it; `what` of `repo` names it in errors.

    A server may ignore the range: then `start` of the answer is 0. The token goes to the Hub's own host alone, which
    the client sees to when it is sent elsewhere for the bytes.

    Errors: Passing for what another try may mend, also while the bytes come; NotFoundError for what is not there,
    NetworkError for what is refused.
    """
    if hub.offline:
        raise NetworkError(
            f"{what} is not on this machine, and HF_HUB_OFFLINE forbids to fetch it.", "Unset HF_HUB_OFFLINE."
        )
    headers = {"user-agent": f"freetoken/{__version__}", "accept-encoding": "identity"}
    if hub.token:
        headers["authorization"] = f"Bearer {hub.token}"
    if start is not None:
        headers["range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
    library = library_of(hub.client)
    try:
        with hub.client.stream("GET", url, headers=headers, timeout=hub.timeout, follow_redirects=True) as response:
            _check_status(hub, response, repo, what)
            yield _answer(response, start or 0)
    except library.TimeoutException:
        raise Passing(f"{Place.of(url)} was silent for {hub.timeout:g} s") from None
    except library.ConnectError as error:
        raise Passing(f"{Place.of(url)} cannot be reached ({error})") from None
    except library.ProxyError as error:
        raise Passing(f"the proxy refuses the connection ({error})") from None
    except library.HTTPError as error:
        raise Passing(f"the connection was cut ({str(error) or type(error).__name__})") from None


def _answer(response: Response, asked: int) -> Answer:
    """Checks what an answer says of itself: a range that was not asked for would be written to the wrong place."""
    chunks = response.iter_raw()  # as they come: bytes that wait for more are lost when the connection is
    if response.headers.get("content-encoding", "identity") != "identity":
        raise Passing("the server compresses what was to come as it is")
    if response.status_code != 206:
        length = _length(response.headers)
        return Answer(0, length, length, chunks)
    match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if not match or int(match[1]) != asked:
        raise Passing(f"the server sent {response.headers.get('content-range', 'no range')!a:.60} for byte {asked} on")
    return Answer(asked, int(match[2]) + 1, None if match[3] == "*" else int(match[3]), chunks)


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length", "")
    return int(text) if _LENGTH.fullmatch(text) else None


def _check_status(hub: Hub, response: Response, repo: str, what: str) -> None:
    """Raises for every status but 200 and 206."""
    status = response.status_code
    if status in (200, 206):
        return
    if status in _BUSY_STATUS:
        raise Passing(f"{response.url.host} answers {status} ({_phrase(status)})", _wait(response.headers))
    if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise NetworkError(
            f"{response.url.host} says that {what} ends before the byte that the Hub's list has of it (status 416).",
            "Another try would get the same: pull again once the repository is mended.",
        )
    if not Place.of(str(response.url)).is_on(hub.place):
        # an address elsewhere is valid for a while; asking the Hub again gives a fresh one
        raise Passing(f"{response.url.host}, where the Hub keeps it, answers {status}")
    raise _refusal(hub, response, repo, what)


def _refusal(hub: Hub, response: Response, repo: str, what: str) -> FreetokenError:
    """The error for an answer that another try would only get again."""
    status = response.status_code
    code = response.headers.get("x-error-code", "")
    said = response.headers.get("x-error-message", "")
    page = f"{hub.place.url}/{repo}"
    if code == "GatedRepo":
        return NetworkError(
            f"{repo} is gated: its owner wants the terms accepted before {what} can be fetched.",
            f"Accept them at {page}. {TOKEN_REMEDY}",
        )
    if status == 401 and said == "Invalid credentials in Authorization header":
        return NetworkError("The Hub does not take the token that is set up here.", TOKEN_REMEDY)
    if code == "RevisionNotFound":
        return NotFoundError(f"{what} has no such revision.", f"{page}/tree/main lists its branches and tags.")
    if code == "EntryNotFound":
        return NotFoundError(f"The Hub has no {what}.", f"Look at {page}/tree/main.")
    if status in (401, 404) and not code and what.endswith(f" of {repo}"):  # a file of a list that the Hub gave
        return NotFoundError(
            f"The Hub at {hub.host} lists {what}, and answers {status} ({_phrase(status)}) when asked for it.",
            f"Look at {page}/tree/main. If the repository is private: {TOKEN_REMEDY}",
        )
    if status in (401, 404):
        return NotFoundError(
            f"{repo} is not on the Hub at {hub.host}, or it is private.",
            f"Check the name. If it is private: {TOKEN_REMEDY}",
        )
    reason = f": {said!a:.200}" if said else ""
    return NetworkError(
        f"The Hub refuses {what} with status {status} ({_phrase(status)}){reason}.", f"Look at {page}. {TOKEN_REMEDY}"
    )


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "no known status"


def _wait(headers: Mapping[str, str]) -> float:
    """Seconds that a busy server asks to wait, 0 if it does not say: `Retry-After`, or the Hub's own `RateLimit`."""
    text = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    limit = _RATE_LIMIT.search(headers.get("ratelimit", ""))
    return float(limit[1]) if limit else 0.0
