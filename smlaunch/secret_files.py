"""Files that hold secrets, by their names. Where a name is also that of ordinary files, what is in the file
decides; where it says nothing, ``secret_contents.secret_in`` does.

Names are compared without regard to case. A pattern ending in a slash is a folder, left out as a whole;
``folder/name`` is that name in that folder; the others are names of files, in any folder.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import NamedTuple

from smlaunch.secret_contents import (
    holds_key,
    holds_key_or_bytes,
    holds_more_than_public,
    holds_passwords,
    holds_values,
)

_GITROB = "github.com/michenriksen/gitrob filesignatures.json"
_LEAKY = "github.com/Plazmaz/leaky-repo secrets.csv"
_GITIGNORE = "github.com/github/gitignore Terraform.gitignore"
_OWN = "the tool's own documentation"


class Sign(NamedTuple):
    """``what``: the word for it. ``source``: who says so. ``holds``: for a name that ordinary files have too,
    whether a file's content is a secret; None where the name alone decides."""

    pattern: str
    what: str
    source: str
    holds: Callable[[bytes], bool] | None = None


def _signs(
    what: str, source: str, *patterns: str, holds: Callable[[bytes], bool] | None = None
) -> tuple[Sign, ...]:
    return tuple(Sign(pattern, what, source, holds) for pattern in patterns)


SIGNS: tuple[Sign, ...] = (
    *_signs("SSH keys", _GITROB, ".ssh/", "*.ppk"),
    *_signs("SSH keys", _OWN, "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_*_sk"),
    *_signs("SSH keys", _GITROB, "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", holds=holds_key),
    *_signs("private keys", _GITROB, "*.pem", "*.keypair", holds=holds_more_than_public),
    *_signs("private keys", _OWN, "*.p8", holds=holds_more_than_public),
    *_signs("private keys", _GITROB, "*.key", holds=holds_key_or_bytes),
    *_signs("key store", _GITROB, "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.ovpn"),
    *_signs("key store", _GITROB, "*.keystore", "*.keyring", holds=holds_key_or_bytes),
    *_signs("key store", _OWN, "*.jceks", "*.keytab", ".gnupg/"),
    *_signs("passwords", _GITROB, "*.kdb", holds=holds_passwords),
    *_signs("passwords", _GITROB, "*.kdbx", "*.agilekeychain", "*.keychain", "*.psafe3", "*.kwallet"),
    *_signs("passwords", _OWN, ".password-store/"),
    *_signs("passwords", _LEAKY, "logins.json", "filezilla.xml", "recentservers.xml", "sftp-config.json"),
    *_signs("passwords", _LEAKY, ".vscode/sftp.json", ".ftpconfig", ".remote-sync.json", ".esmtprc"),
    *_signs("passwords", _GITROB, ".netrc", "_netrc", "netrc", ".pgpass", ".htpasswd", "htpasswd", ".muttrc"),
    *_signs("passwords", _GITROB, "etc/shadow"),
    *_signs("passwords", _OWN, "etc/gshadow", ".my.cnf", ".mylogin.cnf", ".msmtprc", ".fetchmailrc"),
    *_signs("variables", _GITROB, ".env", ".env/"),
    *_signs("variables", _OWN, ".env.*", ".envrc"),
    *_signs("variables", _OWN, ".env?*", holds=holds_values),  # .env copy, .env-prod, .env1
    *_signs("variables", _OWN, ".env.py", "*.env", holds=holds_values),
    *_signs("AWS credentials", _GITROB, ".aws/", ".s3cfg", ".boto"),
    *_signs("AWS credentials", _OWN, ".passwd-s3fs", "rootkey.csv", "*accesskeys.csv"),
    *_signs("Google credentials", _GITROB, "adc.json", ".config/gcloud/"),
    *_signs("Google credentials", _OWN, "application_default_credentials.json"),
    *_signs(
        "Google credentials",
        _OWN,
        *("client_secret*.json", "service-account*.json", "service_account*.json"),
        holds=holds_values,
    ),
    *_signs("Azure credentials", _OWN, ".azure/"),
    *_signs("Oracle credentials", _OWN, ".oci/"),
    *_signs("credentials", _GITROB, "credentials", "credentials.json", "credentials.xml", "credentials.db"),
    *_signs("credentials", _LEAKY, ".credentials", "secrets.yml"),
    *_signs(
        "credentials", _OWN, "credentials.toml", "credentials.ini", "credentials.yml", "credentials.yaml"
    ),
    *_signs("credentials", _OWN, "secrets.yaml", "secrets.json", "secrets.toml", "secrets.ini"),
    *_signs(
        "credentials",
        _OWN,
        *("credentials.csv", "auth.json", "secret.yaml", "secret.yml", "secret.json", "secret.toml"),
        holds=holds_values,
    ),
    *_signs("Docker credentials", _GITROB, ".docker/", ".dockercfg", "dockercfg"),
    *_signs("Docker credentials", _OWN, ".dockerconfigjson"),
    *_signs("Kubernetes credentials", _OWN, ".kube/", "kubeconfig", "*.kubeconfig"),
    *_signs("git credentials", _LEAKY, ".git-credentials"),
    *_signs("git credentials", _GITROB, ".gitconfig", ".config/hub"),
    *_signs("git credentials", _OWN, "gh/hosts.yml"),
    *_signs("registry credentials", _GITROB, ".npmrc", "npmrc", ".pypirc", ".gem/credentials"),
    *_signs("Terraform state", _GITIGNORE, "*.tfstate", "*.tfstate.*"),
    *_signs("Terraform variables", _GITIGNORE, "*.tfvars", "*.tfvars.json", ".terraformrc", "terraform.rc"),
    *_signs("access tokens", _GITROB, "doctl/config.yaml", ".tugboat", ".trc"),
    *_signs(
        "access tokens", _OWN, ".kaggle/", "kaggle.json", "huggingface/token", "huggingface/stored_tokens"
    ),
    *_signs("access tokens", _OWN, ".vault-token", ".databrickscfg", ".cdsapirc", ".comet.config"),
    *_signs("history of commands", _GITROB, ".*_history", ".history", ".bash_history"),
)
"""One row per name; docs/source.md lists them all, and a test compares."""

EXAMPLES = frozenset(
    (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")
    + ("example.env", "sample.env", "template.env")
)
"""Made to be shared: they show which variables there are."""

_NAMES = {sign.pattern: sign for sign in SIGNS if not set("*/") & set(sign.pattern)}
_FOLDERS = {sign.pattern[:-1]: sign for sign in SIGNS if sign.pattern.endswith("/")}
_INSIDE = {sign.pattern: sign for sign in SIGNS if "/" in sign.pattern[:-1] and sign.pattern[-1] != "/"}
_GLOBS = {f"g{number}": sign for number, sign in enumerate(s for s in SIGNS if "*" in s.pattern)}
_ANY_GLOB = re.compile(
    "|".join(f"(?P<{name}>{translate(sign.pattern)})" for name, sign in _GLOBS.items()), re.DOTALL
)


_COPIES = ("~", ".bak", ".backup", ".orig", ".old", ".save", ".swp", ".tmp")
_COPY = re.compile("(?:" + "|".join(map(re.escape, _COPIES)) + ")$")
"""What editors and people add to the name of a file that they keep a copy of."""


def named_secret(relative: str, is_folder: bool = False) -> Sign | None:
    """What the name of a file says, or of a folder. ``relative``: its path in what is sent."""
    path = relative.casefold()
    folder, _, name = path.rpartition("/")
    inside = f"{folder.rpartition('/')[2]}/{name}"
    if is_folder:
        return _FOLDERS.get(name) or _FOLDERS.get(inside)
    if name.endswith(_COPIES):
        return named_secret(_COPY.sub("", path))
    found = _NAMES.get(name) or _INSIDE.get(inside)
    if found is not None:
        return found
    if name in EXAMPLES:
        return None
    match = _ANY_GLOB.match(name)
    return _GLOBS[match.lastgroup] if match is not None and match.lastgroup is not None else None
