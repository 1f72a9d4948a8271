"""Reads the keys of a store from the secret that `credentials` of a data set names, by their usual names.

Keys stay in this process: they are in no description of data, no message and no cache. See decision 252.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairlead.errors import RuntimeFault
from fairlead.runtime.errors import Misuse
from fairlead.runtime.secret_entries import read_entries

REREAD_S = 60.0
"""Seconds after which the entries are read again, as those of temporary credentials are replaced under a run."""
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "s3": {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token",
           "AWS_ENDPOINT_URL": "endpoint_url"},
    "az": {"AZURE_STORAGE_ACCOUNT_NAME": "account_name", "AZURE_STORAGE_ACCOUNT_KEY": "account_key",
           "AZURE_STORAGE_CONNECTION_STRING": "connection_string", "AZURE_STORAGE_SAS_TOKEN": "sas_token",
           "AZURE_STORAGE_CLIENT_ID": "client_id", "AZURE_STORAGE_CLIENT_SECRET": "client_secret",
           "AZURE_STORAGE_TENANT_ID": "tenant_id"},
    "hf": {"HF_TOKEN": "token"},
}  # fmt: skip
"""Arguments of s3fs, adlfs and huggingface_hub by the variables that the stores' own tools read."""


class StoreKeys:
    """The entries of a secret as texts, read again while a run uses them; for any thread."""

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Read them for the first time.

        Args:
            directory: Directory of the entries; its name is that of the secret.

        Raises:
            Misuse: There is no such secret, or it has no entries.
        """
        self.name = Path(directory).name
        self._directory, self._clock = directory, clock
        self._read_at = clock()
        self._entries = self._read()

    def get(self, variable: str) -> str | None:
        """Return an entry without white space around it; None if there is none, or if it is no text."""
        if self._clock() - self._read_at >= REREAD_S:
            self._read_at = self._clock()
            # Where it was removed meanwhile, what was read goes on to be used, as variables of ranks are.
            with contextlib.suppress(Misuse):
                self._entries = self._read()
        content = self._entries.get(variable)
        try:
            return None if content is None else content.decode().strip() or None
        except UnicodeDecodeError:
            return None

    def need(self, *variables: str) -> tuple[str, ...]:
        """Return entries that the store cannot do without.

        Raises:
            Misuse: The secret has not all of them.
        """
        values = [self.get(variable) for variable in variables]
        present = tuple(value for value in values if value is not None)
        if len(present) < len(variables):
            missing = ", ".join(variable for variable, value in zip(variables, values, strict=True) if value is None)
            raise Misuse(f"data: the secret `{self.name}` of `credentials` has no {missing}; set it with these entries")
        return present

    def options(self, scheme: str) -> dict[str, Any]:
        """Return the arguments of fsspec's file system of a scheme.

        Raises:
            Misuse: The secret has nothing that this store reads.
        """
        if scheme == "gs":
            names = [name for name in self._entries if name.endswith(".json")]
            if len(names) != 1:
                raise Misuse(
                    f"data: the secret `{self.name}` of `credentials` needs one entry with the key of a service "
                    f"account, such as `key.json`; it has {len(names)} that end in .json"
                )
            return {"token": str(Path(self._directory, names[0]))}
        known = _OPTIONS.get("s3" if scheme == "s3a" else "az" if scheme == "abfs" else scheme, {})
        options: dict[str, Any] = {
            option: value for variable, option in known.items() if (value := self.get(variable)) is not None
        }
        if not options:
            raise Misuse(
                f"data: the secret `{self.name}` of `credentials` has nothing for {scheme}://, which reads "
                f"{', '.join(known) or 'no secret'}"
            )
        return options

    def scrub(self, message: str) -> str:
        """Return a message of another library without any value of the secret."""
        for content in self._entries.values():
            text = content.decode("utf-8", "replace").strip()
            message = message.replace(text, "(hidden)") if text else message
        return message

    def _read(self) -> dict[str, bytes]:
        try:
            return read_entries(self.name, self._directory)
        except RuntimeFault as error:
            raise Misuse(f"data: {error}; `credentials` names it") from error
