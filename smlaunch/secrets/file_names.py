"""Patterns for names of files that hold secrets. Where ordinary files have the same names, the content
decides; for all other names, ``file_contents.find_secret`` does.

Names are compared without regard to case. A pattern that ends in a slash is a folder, excluded as a whole;
``folder/name`` is that name in that folder; other patterns are names of files in any folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from smlaunch.secrets.file_contents import (
    holds_key,
    holds_key_or_bytes,
    holds_more_than_public,
    holds_passwords,
    holds_secret_values,
)

_GITROB = "github.com/michenriksen/gitrob filesignatures.json"
_LEAKY = "github.com/Plazmaz/leaky-repo secrets.csv"
_GITIGNORE = "github.com/github/gitignore Terraform.gitignore"
_TOOL_DOCS = "the tool's own documentation"


class SecretPattern(NamedTuple):
    """One pattern of a secret's name."""

    pattern: str
    kind: str
    """Kind of secret, in words."""
    source: str
    """Where the pattern comes from."""
    content_check: Callable[[bytes], bool] | None = None
    """Whether a file's content is a secret, for names that ordinary files have too. None where the name alone
    decides."""


def _patterns(
    kind: str, source: str, *patterns: str, content_check: Callable[[bytes], bool] | None = None
) -> tuple[SecretPattern, ...]:
    return tuple(SecretPattern(pattern, kind, source, content_check) for pattern in patterns)


SECRET_PATTERNS: tuple[SecretPattern, ...] = (
    *_patterns("SSH keys", _GITROB, ".ssh/", "*.ppk"),
    *_patterns("SSH keys", _TOOL_DOCS, "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_*_sk"),
    *_patterns("SSH keys", _GITROB, "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", content_check=holds_key),
    *_patterns("private keys", _GITROB, "*.pem", "*.keypair", content_check=holds_more_than_public),
    *_patterns("private keys", _TOOL_DOCS, "*.p8", content_check=holds_more_than_public),
    *_patterns("private keys", _GITROB, "*.key", content_check=holds_key_or_bytes),
    *_patterns("key store", _GITROB, "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.ovpn"),
    *_patterns("key store", _GITROB, "*.keystore", "*.keyring", content_check=holds_key_or_bytes),
    *_patterns("key store", _TOOL_DOCS, "*.jceks", "*.keytab", ".gnupg/"),
    *_patterns("passwords", _GITROB, "*.kdb", content_check=holds_passwords),
    *_patterns("passwords", _GITROB, "*.kdbx", "*.agilekeychain", "*.keychain", "*.psafe3", "*.kwallet"),
    *_patterns("passwords", _TOOL_DOCS, ".password-store/"),
    *_patterns("passwords", _LEAKY, "logins.json", "filezilla.xml", "recentservers.xml", "sftp-config.json"),
    *_patterns("passwords", _LEAKY, ".vscode/sftp.json", ".ftpconfig", ".remote-sync.json", ".esmtprc"),
    *_patterns(
        "passwords", _GITROB, ".netrc", "_netrc", "netrc", ".pgpass", ".htpasswd", "htpasswd", ".muttrc"
    ),
    *_patterns("passwords", _GITROB, "etc/shadow"),
    *_patterns("passwords", _TOOL_DOCS, "etc/gshadow", ".my.cnf", ".mylogin.cnf", ".msmtprc", ".fetchmailrc"),
    *_patterns("variables", _GITROB, ".env", ".env/"),
    *_patterns("variables", _TOOL_DOCS, ".env.*", ".envrc"),
    *_patterns(
        "variables", _TOOL_DOCS, ".env?*", content_check=holds_secret_values
    ),  # .env copy, .env-prod, .env1
    *_patterns("variables", _TOOL_DOCS, ".env.py", "*.env", content_check=holds_secret_values),
    *_patterns("AWS credentials", _GITROB, ".aws/", ".s3cfg", ".boto"),
    *_patterns("AWS credentials", _TOOL_DOCS, ".passwd-s3fs", "rootkey.csv", "*accesskeys.csv"),
    *_patterns("Google credentials", _GITROB, "adc.json", ".config/gcloud/"),
    *_patterns("Google credentials", _TOOL_DOCS, "application_default_credentials.json"),
    *_patterns(
        "Google credentials",
        _TOOL_DOCS,
        *("client_secret*.json", "service-account*.json", "service_account*.json"),
        content_check=holds_secret_values,
    ),
    *_patterns("Azure credentials", _TOOL_DOCS, ".azure/"),
    *_patterns("Oracle credentials", _TOOL_DOCS, ".oci/"),
    *_patterns(
        "credentials", _GITROB, "credentials", "credentials.json", "credentials.xml", "credentials.db"
    ),
    *_patterns("credentials", _LEAKY, ".credentials", "secrets.yml"),
    *_patterns(
        "credentials",
        _TOOL_DOCS,
        "credentials.toml",
        "credentials.ini",
        "credentials.yml",
        "credentials.yaml",
    ),
    *_patterns("credentials", _TOOL_DOCS, "secrets.yaml", "secrets.json", "secrets.toml", "secrets.ini"),
    *_patterns(
        "credentials",
        _TOOL_DOCS,
        *("credentials.csv", "auth.json", "secret.yaml", "secret.yml", "secret.json", "secret.toml"),
        content_check=holds_secret_values,
    ),
    *_patterns("Docker credentials", _GITROB, ".docker/", ".dockercfg", "dockercfg"),
    *_patterns("Docker credentials", _TOOL_DOCS, ".dockerconfigjson"),
    *_patterns("Kubernetes credentials", _TOOL_DOCS, ".kube/", "kubeconfig", "*.kubeconfig"),
    *_patterns("git credentials", _LEAKY, ".git-credentials"),
    *_patterns("git credentials", _GITROB, ".gitconfig", ".config/hub"),
    *_patterns("git credentials", _TOOL_DOCS, "gh/hosts.yml"),
    *_patterns("registry credentials", _GITROB, ".npmrc", "npmrc", ".pypirc", ".gem/credentials"),
    *_patterns("Terraform state", _GITIGNORE, "*.tfstate", "*.tfstate.*"),
    *_patterns(
        "Terraform variables", _GITIGNORE, "*.tfvars", "*.tfvars.json", ".terraformrc", "terraform.rc"
    ),
    *_patterns("access tokens", _GITROB, "doctl/config.yaml", ".tugboat", ".trc"),
    *_patterns(
        "access tokens",
        _TOOL_DOCS,
        ".kaggle/",
        "kaggle.json",
        "huggingface/token",
        "huggingface/stored_tokens",
    ),
    *_patterns("access tokens", _TOOL_DOCS, ".vault-token", ".databrickscfg", ".cdsapirc", ".comet.config"),
    *_patterns("history of commands", _GITROB, ".*_history", ".history", ".bash_history"),
)
"""One row for each name. A test compares them with the list in docs/source.md."""

EXAMPLE_FILE_NAMES = frozenset(
    (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")
    + ("example.env", "sample.env", "template.env")
)
"""Files that are made to be shared: they show which variables exist."""

_PATTERN_BY_NAME = {row.pattern: row for row in SECRET_PATTERNS if not set("*/") & set(row.pattern)}
_PATTERN_BY_FOLDER = {row.pattern[:-1]: row for row in SECRET_PATTERNS if row.pattern.endswith("/")}
_PATTERN_BY_PARENT_AND_NAME = {
    row.pattern: row for row in SECRET_PATTERNS if "/" in row.pattern[:-1] and row.pattern[-1] != "/"
}
_GLOB_PATTERNS = [row for row in SECRET_PATTERNS if "*" in row.pattern]
_PATTERN_BY_GLOB_GROUP = {f"g{number}": row for number, row in enumerate(_GLOB_PATTERNS)}


def _glob_regex(pattern: str) -> str:
    """``fnmatch.translate`` names groups in Python 3.10, and no two globs could be combined."""
    return re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".") + r"\Z"


_COMBINED_GLOB_REGEX = re.compile(
    "|".join(f"(?P<{name}>{_glob_regex(row.pattern)})" for name, row in _PATTERN_BY_GLOB_GROUP.items()),
    re.DOTALL,
)


_BACKUP_SUFFIXES = ("~", ".bak", ".backup", ".orig", ".old", ".save", ".swp", ".tmp")
_BACKUP_SUFFIX_REGEX = re.compile("(?:" + "|".join(map(re.escape, _BACKUP_SUFFIXES)) + ")$")
"""Suffixes that editors and people add to the name of a copy."""


def match_secret_name(relative_path: str, is_folder: bool = False) -> SecretPattern | None:
    """Return the pattern of secret files that a name matches, such as ``.env``, ``gh/hosts.yml`` or
    ``*.tfstate``; None without one. ``relative_path``: of the file or folder below the uploaded folder."""
    lower_case_path = relative_path.casefold()
    parent_path, _, name = lower_case_path.rpartition("/")
    parent_and_name = f"{parent_path.rpartition('/')[2]}/{name}"
    if is_folder:  # a pattern is a name (.ssh) or has its parent's name too (.config/gcloud)
        return _PATTERN_BY_FOLDER.get(name) or _PATTERN_BY_FOLDER.get(parent_and_name)
    if name.endswith(_BACKUP_SUFFIXES):  # a copy (.env.bak) is as secret as the file
        return match_secret_name(_BACKUP_SUFFIX_REGEX.sub("", lower_case_path))
    exact_pattern = _PATTERN_BY_NAME.get(name) or _PATTERN_BY_PARENT_AND_NAME.get(parent_and_name)
    if exact_pattern is not None:
        return exact_pattern
    if name in EXAMPLE_FILE_NAMES:  # .env.example matches a glob, and is made to be shared
        return None
    # One regular expression for all globs; the group that matched tells which glob it was.
    glob_match = _COMBINED_GLOB_REGEX.match(name)
    if glob_match is None or glob_match.lastgroup is None:
        return None
    return _PATTERN_BY_GLOB_GROUP[glob_match.lastgroup]
