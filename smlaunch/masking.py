"""Secrets in what is shown: the values of names that speak of one, and texts that have the form of one.

For eyes and logs alone. What is sent is never masked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any

MASK = "****"

# ---- names -----------------------------------------------------------------------------------------------

_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_APART = re.compile(r"[^A-Za-z0-9]+|(?<=[A-Za-z])(?=[0-9]+(?:[^A-Za-z0-9]|$))")

_ANYWHERE = (
    *("password", "passwords", "passwd", "passphrase", "passcode", "credential"),
    *("credentials", "creds", "apikey", "apikeys", "accesskey", "secretkey", "privatekey"),
)
"""What a word of the name ends in: ``PGPASSWORD``."""

_KINDS_OF_KEY = frozenset(
    (
        *("api", "access", "private", "secret", "signing", "encryption", "master", "account"),
        *("auth", "ssh", "service", "storage", "admin", "subscription", "deploy", "rsa", "ssl", "tls"),
        *("pgp", "gpg", "hmac"),
    )
)
_GIVE_KEYS = frozenset(
    (
        *("openai", "anthropic", "claude", "wandb", "hf", "huggingface", "kaggle", "comet", "neptune"),
        *("clearml", "mlflow", "cohere", "mistral", "replicate", "groq", "gemini", "deepseek", "openrouter"),
        *("perplexity", "jina", "voyage", "langsmith", "langchain", "tavily", "serpapi", "pinecone"),
        *("weaviate", "qdrant", "google", "gcp", "azure", "aws", "amazon", "cloudflare", "digitalocean"),
        *("minio", "backblaze", "wasabi", "github", "gitlab", "bitbucket", "stripe", "twilio", "sendgrid"),
        *("mailgun", "slack", "discord", "telegram", "datadog", "sentry", "newrelic", "airtable", "algolia"),
        *("deepgram", "elevenlabs", "assemblyai", "ngc", "nvidia", "roboflow", "labelbox", "snowflake"),
        *("databricks", "supabase", "firebase", "heroku", "vercel", "mapbox"),
    )
)
"""Services whose keys are often named after them alone: ``OPENAI_KEY``. Any other word before ``key`` may say
what it is the key of: ``sort_key``."""

_AT_THE_END = frozenset(
    (
        *("token", "secret", "secrets", "auth", "authorization", "jwt", "bearer", "cookie"),
        *("sas", "pwd", "authtoken", "accesstoken", "apitoken", "cred"),
    )
)
"""Elsewhere in a name they say what it is about: ``token_dim``, ``secret_santa``."""

_AFTER_ALL = frozenset(
    (
        *("prod", "production", "dev", "staging", "stage", "test", "live", "main", "default"),
        *("primary", "secondary", "old", "new", "current", "value", "string", "text", "raw"),
        *("b64", "base64", "encoded"),
    )
)
_ABOUT_IT = frozenset(
    (
        *("file", "path", "dir", "folder", "url", "uri", "arn", "name", "id", "length", "len"),
        *("size", "policy", "min", "max", "type", "field", "count", "ttl", "timeout", "expiry"),
        *("expires", "enabled", "required", "version", "provider", "endpoint", "host", "port"),
        *("user", "username", "mode", "format", "header", "prefix", "column", "manager"),
        *("prompt", "ratio", "rate", "index", "env", "var", "variable", "model", "dim"),
    )
)
_PARTS_OF_TEXT = frozenset(
    (
        *("pad", "padding", "eos", "bos", "sos", "unk", "mask", "sep", "cls", "start", "end"),
        *("begin", "stop", "special", "image", "audio", "video", "vision", "next", "last"),
        *("first", "max", "min", "num", "per", "placeholder", "class", "prompt", "learned", "query"),
        *("register", "global", "blank", "trigger", "target", "initializer", "language", "lang"),
        *("modality", "task", "separator", "unknown", "new", "newline", "space", "text", "speaker"),
        *("latent", "visual", "soft", "empty", "dummy", "decoder", "encoder"),
        *("include", "exclude", "with", "without", "no", "skip"),
    )
)
"""A token of these is a piece of text, and ``--include-secrets`` a switch."""

_NOT_A_PASSWORD = frozenset(
    (
        *("num", "n", "first", "second", "third", "one", "two", "three", "single", "multi", "full", "dry"),
        *("forward", "backward", "fwd", "bwd", "low", "high", "band", "all", "by", "per", "each", "every"),
        *("max", "min", "last", "next", "final", "extra", "render", "train", "training", "eval", "val"),
    )
)
"""A pass of these is a round, or a filter."""

_PATTERN_OF = frozenset(
    (
        *("file", "files", "glob", "name", "regex", "re", "data", "train", "val", "test", "match", "path"),
        *("include", "exclude", "split", "key", "img", "image", "log", "freeze", "layer"),
    )
)

_PLAIN = re.compile(
    r"(?i)(?:true|false|none|null|yes|no|on|off|[+-]?[0-9]{1,9}(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)?"
    r"|\[[A-Za-z0-9_]{1,20}\]|<[^<>]{1,20}>"
)
_MAY_BE_A_NUMBER = re.compile(r"(?i)pass[a-z]|.pass$|pwd|credential")
"""Switches, numbers and pieces of text in brackets are no tokens (``token=512``, ``[CLS]``); a password may
well be a number."""


def secret_name(name: str) -> bool:
    """Whether a variable, option or hyperparameter of this name holds a secret. Told word by word:
    ``HF_TOKEN``, ``apiKey`` and ``db-password`` do, ``max_tokens``, ``tokenizer`` and ``key`` do not."""
    words = [word.lower() for part in _APART.split(name) for word in _CAPITALS.split(part) if word]
    while words and (words[-1].isdigit() or words[-1] in _AFTER_ALL):
        words.pop()
    if not words:
        return False
    if words[-1] in _ABOUT_IT and words[-3:] != ["access", "key", "id"]:
        return False
    if any(word.endswith(_ANYWHERE) for word in words):
        return True
    if any(word in ("key", "keys") and before in _KINDS_OF_KEY for before, word in pairwise(words)):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words[-1] == "pwd":
        return bool(before)  # alone it is the shell's working directory
    if words[-1] == "pass":
        return before not in _NOT_A_PASSWORD
    if words[-1] == "pat":  # a personal access token, or a pattern
        return before not in _PATTERN_OF if before else name.isupper()
    if words[-1] in ("key", "keys"):
        return before in _GIVE_KEYS
    if words[-1] == "signature":
        return before == "amz"
    return words[-1] in _AT_THE_END and before not in _PARTS_OF_TEXT


# ---- values ----------------------------------------------------------------------------------------------

_FORMS = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])(?::[^\s:@\"']+(?=@))?"
    r"|gh[opusr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|hf_[A-Za-z0-9]{30,}|npm_[A-Za-z0-9]{36,}|pypi-AgE[A-Za-z0-9_-]{50,}|dckr_pat_[A-Za-z0-9_-]{20,}"
    r"|sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z])[A-Za-z0-9_-]{20,}"
    r"|sk_live_[A-Za-z0-9]{20,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}"
    r"|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)",
    re.DOTALL,
)
"""The forms that services give their secrets (the rules of gitleaks, and the services' documentation)."""

_IN_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*):[^/\s@]+@")
_NOBODY = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)(?:[^/\s:@]{1,400}(?=@[\w.-]*sentry)"
    r"|(?=[^/\s:@]{0,400}[0-9])(?=[^/\s:@]{0,400}[A-Za-z])[^/\s:@]{16,400}(?=@))"
)
"""A token in a user's place: all of it opens the door, as in the addresses of Sentry."""

_HOOK = re.compile(
    r"(https?://(?:hooks\.slack\.com/(?:services|workflows|triggers)/|[\w.]{0,30}discord(?:app)?\.com/api/webhooks/"
    r"|[\w-]{1,100}\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/"
    r"|api\.telegram\.org/bot))[^\s\"'<>]+"
)
"""Addresses whose path is the secret."""

_SIGNED = re.compile(r"(?i)([?&](?:signature|sig)=)[^&\s\"'<>]+")
_USER = re.compile(r"://[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{12,}")
_ASSIGNED = re.compile(r"""([A-Za-z_][A-Za-z0-9_.-]{0,100})(=)("[^"]*"|'[^']*'|[^\s"'&;,]+)""")
_OPTION = re.compile(
    r"""(?<![\w-])--?([A-Za-z][A-Za-z0-9_.-]{0,100})([ \t]+)("[^"]*"|'[^']*'|[^\s"'-][^\s"']*)"""
)
_HEADED = re.compile(
    r"""(?<![\w.-])([A-Za-z][A-Za-z0-9]{0,60}(?:[_-][A-Za-z0-9]{1,60}){1,8})(["']?:[ \t]+)"""
    r"""("[^"]*"|'[^']*'|[^\s"',;]+)"""
)
"""``hf_token: X``. Of one word it may be a sentence's beginning: ``credentials: none were found``."""


def mask_text(text: str) -> str:
    """A text with what has a secret's form masked, and what is assigned to a secret's name in it."""
    text = _FORMS.sub(MASK, text)
    if "://" in text:
        text = _IN_ADDRESS.sub(rf"\1:{MASK}@", text)
        text = _HOOK.sub(rf"\1{MASK}", _NOBODY.sub(rf"\1{MASK}", text))
        text = _SIGNED.sub(rf"\1{MASK}", text)
    if "earer" in text or "asic" in text:
        text = _BEARER.sub(rf"\1 {MASK}", text)
    if "-" in text:
        text = _OPTION.sub(_assigned, text)
    return _ASSIGNED.sub(_assigned, text) if "=" in text else text


def masked(name: str, value: Any) -> Any:
    """The value of a variable, an option or a key, as it may be shown."""
    if value is None or isinstance(value, bool) or not secret_name(name):
        if isinstance(value, str) and name[-3:].lower() == "dsn":
            value = _USER.sub(f"://{MASK}@", value)
        return mask(value)
    plain = isinstance(value, (int, float)) or (isinstance(value, str) and _PLAIN.fullmatch(value))
    if value == "" or (plain and not _MAY_BE_A_NUMBER.search(name)):
        return value
    return MASK


def mask(value: Any) -> Any:
    """A document of plain types, as it may be shown. What is a tuple becomes a list."""
    if isinstance(value, str):
        return _mask_json(value)
    if isinstance(value, Mapping):
        pair = _named_pair(value)
        if pair is not None:
            return {**value, pair[1]: masked(str(value[pair[0]]), value[pair[1]])}
        return {key: masked(str(key), item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return list(masked_words(value))
    return value


def masked_words(words: Iterable[Any]) -> Iterator[Any]:
    """A command's words: ``--api-key X``, ``--api-key=X`` and ``API_KEY=X`` show no X."""
    name = ""
    for word in words:
        if not isinstance(word, str):
            yield mask(word)
            name = ""
        elif name and not word.startswith("--"):
            yield masked(name, word)
            name = ""
        else:
            option, equals, text = word.partition("=")
            name = "" if equals or not word.startswith("-") else word.lstrip("-")
            yield _mask_json(f"{option}={masked(option.lstrip('-'), text)}") if equals else mask(word)


def masked_word(word: str) -> str:
    """What cannot be taken apart into name and value: nothing behind a secret's name is shown."""
    found = re.match(r"[A-Za-z_][A-Za-z0-9_-]*", word)
    if found is not None and secret_name(found[0]) and found[0] != word:
        return found[0] + MASK
    return mask_text(word)


def secret_fields(job: Mapping[str, Any]) -> list[str]:
    """The fields of a job's mapping whose values would be masked: what a file that has to run holds."""
    found = [
        f"{section}.{key}"
        for section in ("environment", "hyperparameters", "options", "tags")
        for key, value in job.get(section, {}).items()
        if masked(key, value) != value
    ]
    words = list(job.get("args", ()))
    if list(masked_words(words)) != words:
        found.append("args")
    for number, change in enumerate(job.get("segments", ())):
        values = change.get("hyperparameters", {})
        found += [
            f"segments[{number}].hyperparameters.{key}"
            for key in values
            if masked(key, values[key]) != values[key]
        ]
    return found


def _mask_json(text: str) -> str:
    """Hyperparameters are sent as JSON in JSON."""
    if text[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            shown = mask(document)
            return text if shown == document else json.dumps(shown)
    return _HEADED.sub(_assigned, mask_text(text))


def _named_pair(value: Mapping[Any, Any]) -> tuple[str, str] | None:
    """``{"Key": "API_TOKEN", "Value": "..."}``, as tags and variables are often written."""
    for name, content in (("Key", "Value"), ("Name", "Value"), ("key", "value"), ("name", "value")):
        if name in value and content in value:
            return name, content
    return None


def _assigned(found: re.Match[str]) -> str:
    """With what stands between name and value, and before the name."""
    name, between, value = found[1], found[2], found[3].strip("\"'")
    if not secret_name(name) or masked(name, value) == value:
        return found[0]
    before = found.string[found.start() : found.start(1)]
    return f"{before}{name}{between}{MASK}"
