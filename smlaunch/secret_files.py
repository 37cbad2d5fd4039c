"""Files that hold secrets: by their names, and where the name says nothing by what is in them.

Names are compared without regard to case. A pattern ending in a slash is a folder, left out as a whole;
``folder/name`` is that name in that folder; the others are names of files, in any folder.
"""

from __future__ import annotations

import codecs
import re
from fnmatch import translate
from typing import NamedTuple

_GITROB = "github.com/michenriksen/gitrob filesignatures.json"
_LEAKY = "github.com/Plazmaz/leaky-repo secrets.csv"
_GITIGNORE = "github.com/github/gitignore Terraform.gitignore"
_OWN = "the tool's own documentation"


class Sign(NamedTuple):
    """``what``: the word for it. ``source``: who says so. ``unless_public``: a file of certificates and
    public keys alone may have the name too, and is none."""

    pattern: str
    what: str
    source: str
    unless_public: bool = False


def _signs(what: str, source: str, *patterns: str, unless_public: bool = False) -> tuple[Sign, ...]:
    return tuple(Sign(pattern, what, source, unless_public) for pattern in patterns)


SIGNS: tuple[Sign, ...] = (
    *_signs("SSH keys", _GITROB, ".ssh/", "*_rsa", "*_dsa", "*_ecdsa", "*_ed25519", "*.ppk"),
    *_signs("SSH keys", _OWN, "id_*_sk"),
    *_signs("private keys", _GITROB, "*.pem", "*.key", "*.keypair", unless_public=True),
    *_signs("private keys", _OWN, "*.p8", unless_public=True),
    *_signs("key store", _GITROB, "*.p12", "*.pfx", "*.pkcs12", "*.jks", "*.keystore", "*.keyring", "*.ovpn"),
    *_signs("key store", _OWN, "*.jceks", "*.keytab", ".gnupg/"),
    *_signs(
        "passwords", _GITROB, "*.kdb", "*.kdbx", "*.agilekeychain", "*.keychain", "*.psafe3", "*.kwallet"
    ),
    *_signs("passwords", _OWN, ".password-store/"),
    *_signs("passwords", _LEAKY, "logins.json", "filezilla.xml", "recentservers.xml", "sftp-config.json"),
    *_signs("passwords", _LEAKY, ".vscode/sftp.json", ".ftpconfig", ".remote-sync.json", ".esmtprc"),
    *_signs("passwords", _GITROB, ".netrc", "_netrc", "netrc", ".pgpass", ".htpasswd", "htpasswd", ".muttrc"),
    *_signs("passwords", _GITROB, "etc/shadow"),
    *_signs("passwords", _OWN, "etc/gshadow", ".my.cnf", ".mylogin.cnf", ".msmtprc", ".fetchmailrc"),
    *_signs("variables", _GITROB, ".env", ".env/"),
    *_signs("variables", _OWN, ".env.*", "*.env", ".envrc"),
    *_signs("AWS credentials", _GITROB, ".aws/", ".s3cfg", ".boto"),
    *_signs("AWS credentials", _OWN, ".passwd-s3fs", "rootkey.csv", "*accesskeys.csv"),
    *_signs("Google credentials", _GITROB, "adc.json", ".config/gcloud/"),
    *_signs("Google credentials", _OWN, "application_default_credentials.json", "client_secret*.json"),
    *_signs("Google credentials", _OWN, "service-account*.json", "service_account*.json"),
    *_signs("Azure credentials", _OWN, ".azure/"),
    *_signs("Oracle credentials", _OWN, ".oci/"),
    *_signs("credentials", _GITROB, "credentials", "credentials.json", "credentials.xml", "credentials.db"),
    *_signs("credentials", _LEAKY, ".credentials", "secrets.yml"),
    *_signs("credentials", _OWN, "credentials.toml", "credentials.ini", "credentials.csv"),
    *_signs("credentials", _OWN, "credentials.yml", "credentials.yaml", "auth.json"),
    *_signs("credentials", _OWN, "secrets.yaml", "secrets.json", "secrets.toml", "secrets.ini"),
    *_signs("credentials", _OWN, "secret.yaml", "secret.yml", "secret.json", "secret.toml"),
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


# ---- what is in a file -----------------------------------------------------------------------------------

LOOKED_AT = 1 << 20
"""Bytes from a file's beginning; what is longer is data more often than a key."""

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_KEY_FOLLOWS = re.compile(rb"[A-Za-z0-9+/=]{40}")
_KEY_STARTS_WITHIN = 400
"""Bytes: headers such as DEK-Info come first. Code that only names the line has no key after it."""

_PUBLIC = re.compile(
    rb"(?:.* )?(?:CERTIFICATE|PUBLIC KEY|CERTIFICATE REQUEST|CRL|PARAMETERS|PKCS7)(?: BLOCK)?"
)
_ESCAPED = rb"(?<=\\[nrt])"
"""A line's end as JSON writes it, in a notebook's output: its letter belongs to no word."""

_AWS_ID = re.compile(rb"(?:(?<![A-Za-z0-9])|" + _ESCAPED + rb")A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])")
_AWS_SECRET = re.compile(rb"(?:(?<![A-Za-z0-9/+])|" + _ESCAPED + rb")[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_NEAR = 500
"""Bytes between an access key's id and its secret, at most."""

_EXAMPLE = b"EXAMPLE"
"""In AWS's own sample keys."""


def secret_in(content: bytes) -> str | None:
    """What a file holds that nobody else should have: a private key, or an AWS access key with its secret."""
    content = _readable(content)
    if b"PRIVATE KEY" in content and _private_key(content):
        return "a private key"
    if (b"AKIA" in content or b"ASIA" in content) and _aws_key(content):
        return "an AWS access key"
    return None


def _readable(content: bytes) -> bytes:
    """What is looked at, in UTF-8 where it begins as UTF-16 does."""
    content = content[:LOOKED_AT]
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode("utf-8", "replace")
    return content


def is_public(content: bytes) -> bool:
    """Whether these are certificates, public keys and the like, and nothing else."""
    kinds = _BLOCK.findall(content)
    return bool(kinds) and all(_PUBLIC.fullmatch(kind) for kind in kinds)


def _private_key(content: bytes) -> bool:
    return any(
        b"PRIVATE KEY" in block[1]
        and _KEY_FOLLOWS.search(content, block.end(), block.end() + _KEY_STARTS_WITHIN) is not None
        for block in _BLOCK.finditer(content)
    )


def _aws_key(content: bytes) -> bool:
    for found in _AWS_ID.finditer(content):
        if found[0].endswith(_EXAMPLE):
            continue
        near = content[max(0, found.start() - _NEAR) : found.end() + _NEAR]
        if any(_is_mixed(secret[0]) for secret in _AWS_SECRET.finditer(near)):
            return True
    return False


def _is_mixed(word: bytes) -> bool:
    """As random characters are; a hash in hexadecimal digits, or a path, is not."""
    kinds = (rb"[a-z]", rb"[A-Z]", rb"[0-9]")
    return _EXAMPLE not in word and all(re.search(kind, word) for kind in kinds)
