"""S3 by signed GET requests: AWS Signature Version 4 of requests without a body, and listings.

Credentials are those of botocore where it is installed (profiles, SSO, roles, instance metadata), else of the variables
``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY`` and ``AWS_SESSION_TOKEN`` and of the file of credentials. They stay in
this process. Source of the signature: AWS, "Signature Version 4 signing process". See decision 211.
"""

import configparser
import hashlib
import hmac
import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from fairlead.runtime.data.credentials import StoreKeys
from fairlead.runtime.data.http_client import HttpConnection, Response, parts_of_url
from fairlead.runtime.data.manifest import MOST_ENTRIES, Entry
from fairlead.runtime.errors import DataChanged, Misuse, StoreUnavailable

EMPTY = hashlib.sha256(b"").hexdigest()
LISTING_THREADS = 24
MOST_FOLDERS = 4_000
"""Folders that are listed at the same time as others; with more, a request for each would cost more than pages."""


class S3Credentials(NamedTuple):
    """Keys of an account; without ``key`` requests are not signed."""

    key: str
    secret: str
    token: str | None


class _Signing(NamedTuple):
    """The parts of signatures that all requests of one second have.

    Attributes:
        lines: Header lines behind that of the host, as they are signed.
        text: Text to sign, up to the digest of the request.
        headers: Header lines as they are sent, up to the signature.
    """

    at: int
    region: str | None
    secret: str
    key: bytes
    lines: str
    text: str
    headers: str


class S3Store:
    """Objects below a prefix of a bucket; methods are for any thread."""

    def __init__(self, url: str, profile: str | None = None, keys: StoreKeys | None = None) -> None:
        self.url = url
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if re.fullmatch(r"[a-z0-9][-.a-z0-9]{1,61}[a-z0-9]", bucket) is None:
            raise Misuse(f"data: {url} names no bucket; give s3://BUCKET/PREFIX, where a bucket has lower-case letters")
        self._bucket, self._prefix = bucket, prefix
        self._profile = profile
        self._region = _variable(keys, "AWS_REGION", "AWS_DEFAULT_REGION") or _setting(profile, "region")
        self._endpoint = _variable(keys, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") or _setting(
            profile, "endpoint_url"
        )  # fmt: skip
        self._local = threading.local()
        self._connections: list[HttpConnection] = []
        self._signing: _Signing | None = None
        self._source = _credentials(profile) if keys is None else _of_secret(keys)
        self._place()

    def entries(self) -> list[Entry]:
        """Return the objects below the prefix, those of each folder at the same time.

        Raises:
            Misuse: The prefix is an object, or there is no such bucket.
            StoreUnavailable: The store cannot be reached, or refuses to list.
        """
        root = self._prefix if not self._prefix or self._prefix.endswith("/") else f"{self._prefix}/"
        top, folders = self._list(root, delimiter=True)
        if len(folders) > MOST_FOLDERS:
            top, folders = self._list(root, delimiter=False)
        with ThreadPoolExecutor(LISTING_THREADS) as threads:
            for entries, _ in threads.map(lambda folder: self._list(folder, delimiter=False), folders):
                top += entries
        if not top and root:
            alone, _ = self._list(self._prefix, delimiter=True)
            own = [entry for entry in alone if entry.key == self._prefix]
            if own:
                folder, _, name = self._prefix.rpartition("/")
                self._prefix = folder
                return [Entry(name, own[0].size, own[0].etag)]
        return [Entry(entry.key[len(root) :], entry.size, entry.etag) for entry in top]

    def get(self, entry: Entry, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` of an object, if it is still the one of the manifest.

        Raises:
            DataChanged: The object was changed or removed.
            StoreUnavailable: The store cannot be reached, or refuses.
        """
        if stop <= start:
            return b""
        key, more = self._range(entry, start, stop)
        response = self._request("GET", quote(key, safe="/-._~"), "", more)
        if response.status in (412, 404):
            raise DataChanged(self.url, entry.key, "was removed" if response.status == 404 else "was changed")
        if response.status not in (200, 206):
            raise self._refusal(response, f"read {key}")
        if len(response.body) != stop - start:
            raise DataChanged(self.url, entry.key, f"has {len(response.body)} bytes where {stop - start} were listed")
        return response.body

    def address(self, entry: Entry) -> tuple[str, str, int]:
        """Return the server of the bucket."""
        return self._address

    def get_request(self, entry: Entry, start: int, stop: int, authority: str) -> tuple[str, str]:
        """Return the target and the signed header lines of the request for a range of an object."""
        key, more = self._range(entry, start, stop)
        path = self._root + quote(key, safe="/-._~")
        return path, self._sign("GET", path, "", authority) + more

    def is_usable(self, response: Response, entry: Entry, start: int, stop: int) -> bool:
        """Return whether an answer to ``get_request`` has the bytes of the manifest's object."""
        return response.status == (200 if (start, stop) == (0, entry.size) else 206)

    def _range(self, entry: Entry, start: int, stop: int) -> tuple[str, str]:
        """Return the key of an object, and the header lines for a range of it, if it is that of the manifest."""
        prefix = self._prefix if not self._prefix or self._prefix.endswith("/") else f"{self._prefix}/"
        more = f'If-Match: "{entry.etag}"\r\n'
        if (start, stop) != (0, entry.size):
            more += f"Range: bytes={start}-{stop - 1}\r\n"
        return prefix + entry.key, more

    def close(self) -> None:
        """Close the connections of all threads; one that is in use is closed by its thread."""
        self._local = threading.local()
        while self._connections:
            self._connections.pop().close()

    def _list(self, prefix: str, *, delimiter: bool) -> tuple[list[Entry], list[str]]:
        entries: list[Entry] = []
        folders: list[str] = []
        token = ""
        while True:
            query = {"list-type": "2", "encoding-type": "url", "prefix": prefix}
            if delimiter:
                query["delimiter"] = "/"
            if token:
                query["continuation-token"] = token
            text = "&".join(f"{name}={quote(query[name], safe='-._~')}" for name in sorted(query))
            response = self._request("GET", "", text, "")
            if response.status != 200:
                raise self._refusal(response, "list")
            page = response.body.decode("utf-8", "replace")
            entries += _objects(page)
            folders += [unquote(unescape(name)) for name in _FOLDER.findall(page)]
            if len(entries) > MOST_ENTRIES:
                raise Misuse(f"data: {self.url} has more than {MOST_ENTRIES} objects; join small files into tar files")
            further = _TOKEN.search(page)
            if further is None:
                return entries, folders
            token = unescape(further[1])

    def _request(self, method: str, key: str, query: str, headers: str) -> Response:
        local = self._local
        connection: HttpConnection | None = getattr(local, "connection", None)
        if connection is None or local.address != self._address:
            connection = local.connection = HttpConnection(*self._address)
            self._connections.append(connection)
            local.address = self._address
        path = f"{self._root}{key}"
        signed = self._sign(method, path, query, connection.authority)
        try:
            response = connection.request(method, f"{path}?{query}" if query else path, signed + headers)
        finally:
            if local is not self._local:  # closed meanwhile
                connection.close()
        region = response.headers.get("x-amz-bucket-region")
        if response.status in (301, 307, 400) and region and region != self._region and not self._endpoint:
            self._region = region  # the bucket is elsewhere, which its own store says
            self._place()
            return self._request(method, key, query, headers)
        return response

    def _place(self) -> None:
        region = self._region or "us-east-1"
        if self._endpoint:
            scheme, host, port, path = parts_of_url(self._endpoint)
            self._root = f"{path.rstrip('/')}/{self._bucket}/"
        elif "." in self._bucket:  # no certificate of the store covers it
            scheme, host, port = "https", f"s3.{region}.amazonaws.com", 443
            self._root = f"/{self._bucket}/"
        else:
            scheme, host, port, self._root = "https", f"{self._bucket}.s3.{region}.amazonaws.com", 443, "/"
        self._address = (scheme, host, port)

    def _sign(self, method: str, path: str, query: str, authority: str) -> str:
        own = self._source()
        if own is None:
            return ""
        now = int(time.time())
        held = self._signing
        if held is None or held.at != now or held.secret != own.secret or held.region != self._region:
            held = self._signing = _signing(own, self._region, now)
        request = f"{method}\n{path}\n{query}\nhost:{authority}\n{held.lines}".encode()
        digest = hashlib.sha256(request).hexdigest()
        signature = hmac.digest(held.key, f"{held.text}{digest}".encode(), "sha256").hex()
        return f"{held.headers}{signature}\r\n"

    def _refusal(self, response: Response, action: str) -> StoreUnavailable | Misuse:
        """Return the error of an answer, without anything of the request."""
        match = re.search(rb"<Code>([A-Za-z0-9]{1,60})</Code>", response.body)
        code = match[1].decode() if match else str(response.status)
        where = f"{self._address[0]}://{self._address[1]}:{self._address[2]}"
        if code == "NoSuchBucket":
            return Misuse(f"data: there is no bucket {self._bucket} at {where}; correct the URL")
        if code in ("ExpiredToken", "TokenRefreshRequired"):
            return StoreUnavailable(f"data: the credentials for {self.url} have expired; sign in again ({code})")
        if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "XAdminUserNotFound"):  # the last is versitygw's
            return StoreUnavailable(f"data: {where} does not know these credentials ({code}); correct `credentials`")
        if response.status == 301 or code in ("AuthorizationHeaderMalformed", "IncorrectRegion"):
            return StoreUnavailable(f"data: the bucket {self._bucket} is in another region; set AWS_REGION to it")
        if response.status in (401, 403):
            if self._source() is None:
                return StoreUnavailable(
                    f"data: the bucket {self._bucket} does not let everybody {action}, and there are no credentials "
                    f"({code}); sign in, or name a secret with keys by `credentials`"
                )
            return StoreUnavailable(
                f"data: these credentials have no right to {action} in the bucket {self._bucket} ({code}); ask its "
                "owner, or name a secret with other keys by `credentials`"
            )
        return StoreUnavailable(f"data: {where} answers {code} to the request to {action}")


def _signing(own: S3Credentials, region: str | None, at: int) -> _Signing:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
    day, place = stamp[:8], region or "us-east-1"
    key = f"AWS4{own.secret}".encode()
    for part in (day, place, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    names = "host;x-amz-content-sha256;x-amz-date" + (";x-amz-security-token" if own.token else "")
    lines = f"x-amz-content-sha256:{EMPTY}\nx-amz-date:{stamp}\n"
    headers = f"x-amz-content-sha256: {EMPTY}\r\nx-amz-date: {stamp}\r\n"
    if own.token:
        lines += f"x-amz-security-token:{own.token}\n"
        headers += f"x-amz-security-token: {own.token}\r\n"
    scope = f"{day}/{place}/s3/aws4_request"
    account = f"Credential={own.key}/{scope}, SignedHeaders={names}, Signature="
    return _Signing(
        at=at,
        region=region,
        secret=own.secret,
        key=key,
        lines=f"{lines}\n{names}\n{EMPTY}",
        text=f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n",
        headers=f"{headers}Authorization: AWS4-HMAC-SHA256 {account}",
    )


_CONTENT = re.compile(r"<Contents>(.*?)</Contents>", re.DOTALL)
_FOLDER = re.compile(r"<CommonPrefixes><Prefix>(.*?)</Prefix></CommonPrefixes>", re.DOTALL)
_TOKEN = re.compile(r"<NextContinuationToken>(.*?)</NextContinuationToken>", re.DOTALL)
_KEY = re.compile(r"<Key>(.*?)</Key>", re.DOTALL)
_SIZE = re.compile(r"<Size>(\d{1,18})</Size>")
_ETAG = re.compile(r"<ETag>(.*?)</ETag>", re.DOTALL)


def _objects(page: str) -> Iterator[Entry]:
    for part in _CONTENT.findall(page):
        key, size, etag = _KEY.search(part), _SIZE.search(part), _ETAG.search(part)
        if key is None or size is None or etag is None:
            raise StoreUnavailable("data: a listing has an object without a key, a size or an ETag")
        tag = unescape(etag[1]).strip('"')
        if not re.fullmatch(r"[\x21\x23-\x7e]{1,200}", tag):
            raise StoreUnavailable(
                f"data: the store has no usable ETag for {ascii(unescape(key[1]))[:120]}, so changes would not be "
                "noticed; upload it again through the store"
            )
        yield Entry(unquote(unescape(key[1])), int(size[1]), tag)


def _credentials(profile: str | None) -> Any:
    """Return a function for the current credentials, which returns None where there are none."""
    if not profile and os.environ.get("AWS_ACCESS_KEY_ID") and os.environ.get("AWS_SECRET_ACCESS_KEY"):
        own = S3Credentials(
            os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], os.environ.get("AWS_SESSION_TOKEN")
        )
        return lambda: own
    key, secret = _setting(profile, "aws_access_key_id"), _setting(profile, "aws_secret_access_key")
    if key and secret:
        listed = S3Credentials(key, secret, _setting(profile, "aws_session_token"))
        return lambda: listed
    try:
        import botocore.session
    except ImportError:
        return lambda: None
    refreshed = botocore.session.Session(profile=profile).get_credentials()

    def current() -> S3Credentials | None:
        if refreshed is None:
            return None
        frozen = refreshed.get_frozen_credentials()
        return S3Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    return current


def _of_secret(keys: StoreKeys) -> Any:
    """Return a function for the current credentials of a secret, which are never others of this machine.

    Raises:
        Misuse: It has none.
    """
    names = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
    keys.need(*names)

    def current() -> S3Credentials:
        key, secret = keys.need(*names)
        return S3Credentials(key, secret, keys.get("AWS_SESSION_TOKEN"))

    return current


def _variable(keys: StoreKeys | None, *names: str) -> str | None:
    """Return the first of these variables that a secret has, or else this process."""
    of_secret = (None if keys is None else keys.get(name) for name in names)
    return next(filter(None, of_secret), None) or next(filter(None, map(os.environ.get, names)), None)


def _setting(profile: str | None, name: str) -> str | None:
    """Return a setting of a profile from the files of the AWS tools; None if it is not there."""
    profile = profile or os.environ.get("AWS_PROFILE") or "default"
    for variable, default, section in (
        ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", profile),
        ("AWS_CONFIG_FILE", "~/.aws/config", profile if profile == "default" else f"profile {profile}"),
    ):
        reader = configparser.RawConfigParser()
        try:
            reader.read(os.path.expanduser(os.environ.get(variable) or default), encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError):
            continue
        if reader.has_option(section, name):
            return reader.get(section, name)
    return None
