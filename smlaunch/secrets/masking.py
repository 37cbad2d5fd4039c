"""Masks secrets in displayed text: values of secret names, and texts in a secret's format.

For display and logs only. What is sent is never masked.
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

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD_SEPARATOR = re.compile(r"[^A-Za-z0-9]+|(?<=[A-Za-z])(?=[0-9]+(?:[^A-Za-z0-9]|$))")

_SECRET_WORD_SUFFIXES = (
    *("password", "passwords", "passwd", "passphrase", "passcode", "credential"),
    *("credentials", "creds", "apikey", "apikeys", "accesskey", "secretkey", "privatekey"),
)
"""Endings of a word in a secret's name: ``PGPASSWORD``."""

_WORDS_BEFORE_SECRET_KEY = frozenset(
    (
        *("api", "access", "private", "secret", "signing", "encryption", "master", "account"),
        *("auth", "ssh", "service", "storage", "admin", "subscription", "deploy", "rsa", "ssl", "tls"),
        *("pgp", "gpg", "hmac"),
    )
)
_SERVICES_WITH_SECRET_KEYS = frozenset(
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

_SECRET_LAST_WORDS = frozenset(
    (
        *("token", "secret", "secrets", "auth", "authorization", "jwt", "bearer", "cookie"),
        *("sas", "pwd", "authtoken", "accesstoken", "apitoken", "cred"),
    )
)
"""Elsewhere in a name they describe something else: ``token_dim``, ``secret_santa``."""

_IGNORED_LAST_WORDS = frozenset(
    (
        *("prod", "production", "dev", "staging", "stage", "test", "live", "main", "default"),
        *("primary", "secondary", "old", "new", "current", "value", "string", "text", "raw"),
        *("b64", "base64", "encoded"),
    )
)
_LAST_WORDS_OF_SECRET_METADATA = frozenset(
    (
        *("file", "path", "dir", "folder", "url", "uri", "arn", "name", "id", "length", "len"),
        *("size", "policy", "min", "max", "type", "field", "count", "ttl", "timeout", "expiry"),
        *("expires", "enabled", "required", "version", "provider", "endpoint", "host", "port"),
        *("user", "username", "mode", "format", "header", "prefix", "column", "manager"),
        *("prompt", "ratio", "rate", "index", "env", "var", "variable", "model", "dim"),
    )
)
_WORDS_BEFORE_TEXT_TOKEN = frozenset(
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
"""After these words a token is a piece of text. ``--include-secrets`` is a switch."""

_WORDS_BEFORE_PASS = frozenset(
    (
        *("num", "n", "first", "second", "third", "one", "two", "three", "single", "multi", "full", "dry"),
        *("forward", "backward", "fwd", "bwd", "low", "high", "band", "all", "by", "per", "each", "every"),
        *("max", "min", "last", "next", "final", "extra", "render", "train", "training", "eval", "val"),
    )
)
"""After these words a pass is a round, or a filter."""

_WORDS_BEFORE_PATTERN = frozenset(
    (
        *("file", "files", "glob", "name", "regex", "re", "data", "train", "val", "test", "match", "path"),
        *("include", "exclude", "split", "key", "img", "image", "log", "freeze", "layer"),
    )
)

_NON_SECRET_VALUE = re.compile(
    r"(?i)(?:true|false|none|null|yes|no|on|off|[+-]?[0-9]{1,9}(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)?"
    r"|\[[A-Za-z0-9_]{1,20}\]|<[^<>]{1,20}>"
)
_RESOURCE_NAME = re.compile(
    r"arn:aws[a-z-]*:[a-z0-9-]{1,40}:[a-z0-9-]{0,30}:[0-9]{12}:[A-Za-z0-9_+=,.@:/-]{1,300}"
)
"""An ARN names what has a secret, or returns it."""
_NAME_OF_NUMERIC_SECRET = re.compile(r"(?i)pass[a-z]|.pass$|pwd|credential")
"""Switches, numbers and pieces of text in brackets are no tokens (``token=512``, ``[CLS]``), but a password
may be a number."""


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or hyperparameter of this name holds a secret.

    Decided by its words: ``HF_TOKEN``, ``apiKey`` and ``db-password`` do, ``max_tokens``, ``tokenizer`` and
    ``key`` do not.
    """
    words = _split_into_lower_case_words(name)
    # Numbers and words such as "prod" or "old" at the end say which secret it is, not what.
    while words and (words[-1].isdigit() or words[-1] in _IGNORED_LAST_WORDS):
        words.pop()
    if not words:
        return False
    is_access_key_id = words[-3:] == ["access", "key", "id"]  # masked, although no secret alone
    # TOKEN_PATH, PASSWORD_LENGTH: about a secret, not the secret itself.
    is_about_secret = words[-1] in _LAST_WORDS_OF_SECRET_METADATA
    if is_about_secret and not is_access_key_id:
        return False
    has_secret_word = any(word.endswith(_SECRET_WORD_SUFFIXES) for word in words)  # password, apikey, ...
    has_secret_key = any(  # api key, private key, signing keys, ...
        word in ("key", "keys") and word_before in _WORDS_BEFORE_SECRET_KEY
        for word_before, word in pairwise(words)
    )
    if has_secret_word or has_secret_key:
        return True
    word_before_last = words[-2] if len(words) > 1 else ""
    return _is_secret_by_last_word(words[-1], word_before_last, is_upper_case=name.isupper())


def _split_into_lower_case_words(name: str) -> list[str]:
    """Split a name at separators, at humps of camel case and before a number at the end of a word."""
    return [
        word.lower()
        for name_part in _WORD_SEPARATOR.split(name)
        for word in _CAMEL_CASE_BOUNDARY.split(name_part)
        if word
    ]


def _is_secret_by_last_word(last_word: str, word_before: str, is_upper_case: bool) -> bool:
    """Return whether a name whose last words are these holds a secret. ``word_before``: empty if the name is
    one word. ``is_upper_case``: of the whole name."""
    if last_word == "pwd":
        return bool(word_before)  # alone it is the shell's working directory
    if last_word == "pass":
        return word_before not in _WORDS_BEFORE_PASS  # forward_pass is a round
    if last_word == "pat":  # a personal access token, or a pattern (file_pat, or pat in lower case)
        return word_before not in _WORDS_BEFORE_PATTERN if word_before else is_upper_case
    if last_word in ("key", "keys"):
        return word_before in _SERVICES_WITH_SECRET_KEYS  # OPENAI_KEY; sort_key is none
    if last_word == "signature":
        return word_before == "amz"  # X-Amz-Signature of a presigned URL
    # Token, secret, auth, cookie, ... as in HF_TOKEN; pad_token is a piece of text.
    return last_word in _SECRET_LAST_WORDS and word_before not in _WORDS_BEFORE_TEXT_TOKEN


# ---- values ----------------------------------------------------------------------------------------------

_SECRET_FORMATS = re.compile(
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
"""Formats of services' secrets (the rules of gitleaks, and the services' documentation)."""

_URL_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*):[^/\s@]+@")
_URL_USER_TOKEN = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)(?:[^/\s:@]{1,400}(?=@[\w.-]*sentry)"
    r"|(?=[^/\s:@]{0,400}[0-9])(?=[^/\s:@]{0,400}[A-Za-z])[^/\s:@]{16,400}(?=@))"
)
"""A token in a URL's user field is enough for access, as in the URLs of Sentry."""

_WEBHOOK_URL = re.compile(
    r"(https?://(?:hooks\.slack\.com/(?:services|workflows|triggers)/|[\w.]{0,30}discord(?:app)?\.com/api/webhooks/"
    r"|[\w-]{1,100}\.webhook\.office\.com/webhookb2/|outlook\.office(?:365)?\.com/webhook/"
    r"|api\.telegram\.org/bot))[^\s\"'<>]+"
)
"""URLs whose path is the secret."""

_URL_SIGNATURE = re.compile(r"(?i)([?&](?:signature|sig)=)[^&\s\"'<>]+")
_URL_USER = re.compile(r"://[^/\s@]+@")
_AUTHORIZATION = re.compile(r"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{12,}")
_ASSIGNMENT = re.compile(r"""([A-Za-z_][A-Za-z0-9_.-]{0,100})(=)("[^"]*"|'[^']*'|[^\s"'&;,]+)""")
_COMMAND_OPTION = re.compile(
    r"""(?<![\w-])--?([A-Za-z][A-Za-z0-9_.-]{0,100})([ \t]+)("[^"]*"|'[^']*'|[^\s"'(-][^\s"']*)"""
)
_HEADER_VALUE = re.compile(
    r"""(?<![\w.-])([A-Za-z][A-Za-z0-9]{0,60}(?:[_-][A-Za-z0-9]{1,60}){1,8})(["']?:[ \t]+)"""
    r"""("[^"]*"|'[^']*'|[^\s"',;]+)"""
)
"""``hf_token: X``. A single word may begin a sentence instead: ``credentials: none were found``."""


def mask_text(text: str) -> str:
    """Return the text with secrets masked: those of ``mask_formats``, and values that are assigned to a
    secret's name."""
    text = mask_formats(text)
    if "-" in text:  # --token X
        text = _COMMAND_OPTION.sub(_mask_value_of_secret_name, text)
    if "=" in text:  # TOKEN=X
        text = _ASSIGNMENT.sub(_mask_value_of_secret_name, text)
    return text


def mask_formats(text: str) -> str:
    """Return the text with those secrets masked that are known without a name: values in the format of a
    known kind of secret, and secrets in URLs."""
    text = _SECRET_FORMATS.sub(MASK, text)  # ghp_..., hf_..., AKIA...
    # The regular expressions are slow; a plain search tells first whether one can match. Each puts the mask
    # for the secret, behind the part of the match that stays (\1).
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)  # https://user:X@host
        text = _URL_USER_TOKEN.sub(rf"\1{MASK}", text)  # https://X@host
        text = _WEBHOOK_URL.sub(rf"\1{MASK}", text)  # https://hooks.slack.com/services/X
        text = _URL_SIGNATURE.sub(rf"\1{MASK}", text)  # https://host/path?signature=X
    if "earer" in text or "asic" in text:  # Bearer X, basic X
        text = _AUTHORIZATION.sub(rf"\1 {MASK}", text)
    return text


def mask_named_value(name: str, value: Any) -> Any:
    """Return the value of a variable, option or key as it may be displayed: masked where its name says that
    it is a secret, otherwise with the secrets inside it masked."""
    if value is None or isinstance(value, bool) or value == "":
        return value
    if isinstance(value, str) and _RESOURCE_NAME.fullmatch(value):
        return value
    if not is_secret_name(name):
        # The user of a DSN (data source name, such as Sentry's) is its key.
        if isinstance(value, str) and name.lower().endswith("dsn"):
            value = _URL_USER.sub(f"://{MASK}@", value)
        return mask_document(value)
    if _NAME_OF_NUMERIC_SECRET.search(name):  # a password may be a number
        return MASK
    # Switches, numbers and [CLS] are no tokens.
    is_number = isinstance(value, (int, float))
    is_plain_text = isinstance(value, str) and _NON_SECRET_VALUE.fullmatch(value) is not None
    return value if is_number or is_plain_text else MASK


def mask_document(document: Any) -> Any:
    """Return a copy of a JSON-like value with secrets masked. Tuples become lists."""
    if isinstance(document, str):
        return _mask_json_or_text(document)
    if isinstance(document, Mapping):
        # For a mapping such as {"Name": ..., "Value": ...} these two keys, otherwise None.
        name_and_value_keys = _find_name_and_value_keys(document)
        if name_and_value_keys is not None:
            # {"Name": "TOKEN", "Value": ...}: the name of the secret is a value itself.
            name_key, value_key = name_and_value_keys
            return {**document, value_key: mask_named_value(str(document[name_key]), document[value_key])}
        return {key: mask_named_value(str(key), item) for key, item in document.items()}
    if isinstance(document, (list, tuple)):
        return list(mask_arguments(document))  # it may be a command
    return document  # a number, a boolean or None


def mask_arguments(arguments: Iterable[Any]) -> Iterator[Any]:
    """Yield a command's arguments with secrets masked: the X in ``--api-key X``, ``--api-key=X`` and
    ``API_KEY=X``."""
    next_option_name = ""  # of an option whose value may be the next argument
    for argument in arguments:
        option_name, next_option_name = next_option_name, ""
        if not isinstance(argument, str):
            yield mask_document(argument)
        elif option_name and not argument.startswith("--"):
            yield mask_named_value(option_name, argument)
        elif "=" in argument:
            name_text, _, value_text = argument.partition("=")
            masked_value = mask_named_value(name_text.lstrip("-"), value_text)
            yield _mask_json_or_text(f"{name_text}={masked_value}")
        else:
            if argument.startswith("-"):
                next_option_name = argument.lstrip("-")
            yield mask_document(argument)


def mask_argument(argument: str) -> str:
    """Return an argument that cannot be split into name and value, with everything after a secret's name
    masked."""
    name_match = re.match(r"[A-Za-z_][A-Za-z0-9_-]*", argument)
    if name_match is not None and is_secret_name(name_match[0]) and name_match[0] != argument:
        return name_match[0] + MASK
    return mask_text(argument)


def fields_with_secrets(job: Mapping[str, Any]) -> list[str]:
    """Return the fields of a job's mapping whose values would be masked, such as ``environment.HF_TOKEN``."""
    values_by_section = {
        section: job.get(section, {}) for section in ("environment", "hyperparameters", "options", "tags")
    }
    arguments = list(job.get("args", ()))
    has_secret_argument = list(mask_arguments(arguments)) != arguments
    values_by_segment = {
        f"segments[{index}].hyperparameters": segment.get("hyperparameters", {})
        for index, segment in enumerate(job.get("segments", ()))
    }
    return [
        *_paths_of_secrets(values_by_section),
        *(["args"] if has_secret_argument else []),
        *_paths_of_secrets(values_by_segment),
    ]


def _paths_of_secrets(values_by_section: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield ``section.key`` for each value that would be masked. ``values_by_section``: values by key, by
    section."""
    for section, value_by_key in values_by_section.items():
        for key, value in value_by_key.items():
            if mask_named_value(key, value) != value:
                yield f"{section}.{key}"


def _mask_json_or_text(text: str) -> str:
    """Mask a text that may be JSON. Hyperparameters are sent as JSON in JSON."""
    if text[:1] in ("{", "[", '"'):
        with suppress(ValueError, RecursionError):
            document = json.loads(text)
            masked_document = mask_document(document)
            return text if masked_document == document else json.dumps(masked_document)
    return _HEADER_VALUE.sub(_mask_value_of_secret_name, mask_text(text))


def _find_name_and_value_keys(value: Mapping[Any, Any]) -> tuple[str, str] | None:
    """Return the names of the fields in ``{"Key": "API_TOKEN", "Value": "..."}``, a usual form of tags and
    variables."""
    for name_field, value_field in (("Key", "Value"), ("Name", "Value"), ("key", "value"), ("name", "value")):
        if name_field in value and value_field in value:
            return name_field, value_field
    return None


def _mask_value_of_secret_name(match: re.Match[str]) -> str:
    """Return the matched text (name, separator and value) with its value masked, if its name is a
    secret's."""
    name, separator, value = match[1], match[2], match[3].strip("\"'")
    if not is_secret_name(name) or mask_named_value(name, value) == value:
        return match[0]
    text_before = match.string[match.start() : match.start(1)]
    return f"{text_before}{name}{separator}{MASK}"
