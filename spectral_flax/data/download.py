"""Files from the network that have to be the ones that were published."""

import contextlib
import hashlib
import http.client
import urllib.request
from collections.abc import Iterator

import tqdm

from spectral_flax.errors import UserError

# What is raised when the network fails, or the disk that the content goes to.
DOWNLOAD_ERRORS = (OSError, http.client.HTTPException)
_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 20


@contextlib.contextmanager
def open_published(url: str, sha256: str, advice: str) -> Iterator[Iterator[bytes]]:
    """Gives the content of a URL, block by block, once the server has answered.

    Raises DOWNLOAD_ERRORS, and UserError with the advice, after the last block, when the content is
    not what was published.
    """
    with urllib.request.urlopen(url, timeout=_CONNECT_SECONDS) as response:
        yield _checked(response, url, sha256, advice)


def _checked(
    response: http.client.HTTPResponse, url: str, sha256: str, advice: str
) -> Iterator[bytes]:
    digest = hashlib.sha256()
    size = response.headers.get("Content-Length")
    name = url.rsplit("/", 1)[-1]
    total = int(size) if size else None
    with tqdm.tqdm(total=total, unit="B", unit_scale=True, desc=name) as bar:
        while block := response.read(_BLOCK):
            digest.update(block)
            yield block
            bar.update(len(block))
    if digest.hexdigest() != sha256:
        raise UserError(
            f"{url} sent a file with SHA-256 {digest.hexdigest()}; expected {sha256}: {advice}"
        )
