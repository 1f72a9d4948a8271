"""Names of files that usually hold credentials, which go neither to a cluster nor into stored code.

See decision 159.
"""

import fnmatch
import re

DIRECTORIES = (".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".ssh")
FILES = (
    ".env", ".env.*", ".envrc", ".git-credentials", ".htpasswd", ".netrc", "_netrc", ".npmrc", ".pgpass", ".pypirc",
    ".vault-token", "*.key", "*.keystore", "*.kubeconfig", "*.p12", "*.pem", "*.pfx", "client_secret*.json",
    "application_default_credentials.json", "credentials.json", "id_dsa*", "id_ecdsa*", "id_ed25519*", "id_rsa*",
    "kubeconfig", "*service-account*.json", "*service_account*.json", "*serviceaccount*.json", "secrets.toml",
)  # fmt: skip
EXAMPLES = (".env.dist", ".env.example", ".env.sample", ".env.template")

# Thousands of names are asked for with each submission, so most patterns are compared without a regular expression.
_WHOLE = frozenset(pattern for pattern in FILES if "*" not in pattern)
_BEGINNINGS = tuple(pattern[:-1] for pattern in FILES if pattern.find("*") == len(pattern) - 1)
_ENDS = tuple(pattern[1:] for pattern in FILES if pattern.rfind("*") == 0)
_JSON = ".json"
_OTHER = re.compile(
    "|".join(map(fnmatch.translate, (pattern for pattern in FILES if "*" in pattern and pattern.endswith(_JSON))))
)


def is_secret(name: str, *, is_directory: bool) -> bool:
    """Return whether a file or directory of this name usually holds credentials."""
    name = name.lower()
    if is_directory:
        return name in DIRECTORIES
    return (
        name in _WHOLE
        or name.endswith(_ENDS)
        or (name.startswith(_BEGINNINGS) and name not in EXAMPLES)
        or (name.endswith(_JSON) and _OTHER.match(name) is not None)
    )


def git_pathspecs() -> tuple[str, ...]:
    """Return the pathspecs of all files of a git repository but these."""
    names = (*FILES, *(f"{directory}/**" for directory in DIRECTORIES))
    return ":(top)", *(f":(top,exclude,icase,glob)**/{name}" for name in names)
