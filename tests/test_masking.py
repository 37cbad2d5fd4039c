from __future__ import annotations

import json
import time

import pytest

from smlaunch.secrets.masking import (
    MASK,
    fields_with_secrets,
    is_secret_name,
    mask_argument,
    mask_arguments,
    mask_document,
    mask_named_value,
    mask_text,
)
from tests.tables import table

FORMS = (
    "AKIA2OGYBAH6QGPTLSNQ",
    "ghp_" + "a1B2" * 9,
    "hf_" + "aBcD" * 9,
    "sk-proj-" + "a1B2c3" * 5,
    "glpat-" + "a1B2c3" * 4,
    "xoxb-123456789012-abcdef",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.sflKxwRJSMeKKF2QT4",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n-----END RSA PRIVATE KEY-----",
)


@table(
    "name",
    [
        *(
            "HF_TOKEN",
            "WANDB_API_KEY",
            "wandbApiKey",
            "APIKey",
            "apikey",
            "api-key",
            "token",
            "AUTH_TOKEN",
            "token2",
        ),
        *(
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "DB_PASSWORD",
            "PGPASSWORD",
            "authtoken",
        ),
        *(
            "db.password",
            "password_prod",
            "PASSWD",
            "DB_PWD",
            "CLIENT_SECRET",
            "secret",
            "PRIVATE_KEY",
            "basic_auth",
        ),
        *(
            "GOOGLE_CREDENTIALS",
            "TOKEN_PROD",
            "model.hub_token",
            "Authorization",
            "SIGNING_KEY",
            "X-Amz-Signature",
        ),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@table(
    "name",
    [
        *(
            "max_tokens",
            "tokenizer",
            "key",
            "secret_santa",
            "num_tokens",
            "token_dim",
            "pad_token",
            "eos_token",
        ),
        *(
            "author",
            "authors",
            "PWD",
            "keys",
            "monkey",
            "key_dim",
            "num_key_value_heads",
            "primary_key",
            "kms_key",
        ),
        *(
            "TOKENIZERS_PARALLELISM",
            "PASSWORD_FILE",
            "SECRET_ARN",
            "token_url",
            "lr",
            "",
            "_",
            "KeyId",
            "passes",
        ),
        *(
            "max_new_tokens",
            "api_version",
            "accesses",
            "bypass",
            "compass",
            "tokens_per_batch",
            "secret_name",
        ),
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize("secret", FORMS)
def test_secret_formats_are_masked_under_any_name(secret: str) -> None:
    assert mask_named_value("note", secret) == MASK
    masked = mask_text(f"it was {secret}, they said")
    assert masked == f"it was {MASK}, they said"
    assert secret not in str(mask_document({"a": [{"b": f"x {secret}"}]}))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgres://me:hunter2@db:5432/x", "postgres://me:****@db:5432/x"),
        (
            "https://bucket.s3.amazonaws.com/k?X-Amz-Signature=abc123&x=1",
            "https://bucket.s3.amazonaws.com/k?X-Amz-Signature=****&x=1",
        ),
        ("Authorization: Bearer abcdefghijklmnop", "Authorization: Bearer ****"),
        ("export DB_PASSWORD='two words'; train", "export DB_PASSWORD=****; train"),
        ("s3://bucket/a:b@c/", "s3://bucket/a:b@c/"),
        (
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1@sha256:0123",
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1@sha256:0123",
        ),
        ("risk-averse-learning-with-long-names", "risk-averse-learning-with-long-names"),
        ("lr=0.1 max_tokens=512 pad_token=<pad>", "lr=0.1 max_tokens=512 pad_token=<pad>"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert mask_text(text) == expected
    assert mask_text(expected) == expected


def test_switches_and_numbers_are_not_masked() -> None:
    assert mask_named_value("use_auth_token", "true") == "true"
    assert mask_named_value("token", "512") == "512"
    assert mask_named_value("token", 512) == 512
    assert mask_named_value("use_auth_token", True) is True
    assert mask_named_value("token", "") == ""
    assert mask_named_value("password", "123456") == mask_named_value("password", 123456) == MASK
    assert mask_named_value("password", ["a"]) == MASK


def test_arguments_of_a_command() -> None:
    arguments = [
        "--api-key",
        "X",
        "--lr",
        "0.1",
        "--password=Y",
        "-token",
        "Z",
        "API_KEY=V",
        "--hub-token",
        "--next",
        "n",
    ]
    assert list(mask_arguments(arguments)) == [
        *("--api-key", MASK, "--lr", "0.1", f"--password={MASK}", "-token", MASK, f"API_KEY={MASK}"),
        *("--hub-token", "--next", "n"),
    ]


def test_documents() -> None:
    document = {
        "Environment": {"HF_TOKEN": "x", "LR": "1"},
        "HyperParameters": {"config": '{"api_key": "x", "lr": 1}', "list": '["a", 1]'},
        "Tags": [{"Key": "API_TOKEN", "Value": "x"}, {"Key": "team", "Value": "y"}],
        "argv": ["train.py", "--password", "x", {"ref": "a"}],
    }
    document_before = repr(document)
    assert mask_document(document) == {
        "Environment": {"HF_TOKEN": MASK, "LR": "1"},
        "HyperParameters": {"config": '{"api_key": "****", "lr": 1}', "list": '["a", 1]'},
        "Tags": [{"Key": "API_TOKEN", "Value": MASK}, {"Key": "team", "Value": "y"}],
        "argv": ["train.py", "--password", MASK, {"ref": "a"}],
    }
    assert repr(document) == document_before


def test_unsplittable_arguments_are_masked_after_the_name() -> None:
    assert mask_argument("HF_TOKEN:abc") == "HF_TOKEN****"
    assert mask_argument("HF_TOKEN abc") == "HF_TOKEN****"
    assert mask_argument("HF_TOKEN") == "HF_TOKEN"
    assert mask_argument("lr:1") == "lr:1"


def test_the_fields_of_a_job_that_hold_secrets() -> None:
    job = {
        "environment": {"HF_TOKEN": "x", "LR": "1", "URL": "http://a:b@c/"},
        "hyperparameters": {"api_key": "x", "lr": 1},
        "args": ["--password", "x"],
        "segments": [{}, {"hyperparameters": {"token": "abc"}}],
    }
    assert fields_with_secrets(job) == [
        *("environment.HF_TOKEN", "environment.URL", "hyperparameters.api_key", "args"),
        "segments[1].hyperparameters.token",
    ]
    assert fields_with_secrets({}) == []


@table(
    "name",
    [
        *(
            "DB_PASS",
            "PASS",
            "dbPass",
            "SMTP_PASS",
            "CREDS",
            "GCP_CREDS",
            "db_cred",
            "GITHUB_PAT",
            "PAT",
            "gh-pat",
        ),
        *(
            "OPENAI_KEY",
            "WANDB_KEY",
            "kaggle-key",
            "HF_KEY",
            "anthropicKey",
            "AZURE_STORAGE_KEY",
            "DB_PASS_PROD",
        ),
    ],
)
def test_short_names_of_secrets(name: str) -> None:
    assert mask_named_value(name, "ZZ1") == MASK


@table(
    ("name", "value"),
    [
        *(
            (f"{kind}_key", "user_id")
            for kind in ("primary", "sort", "index", "registry", "partition", "kms", "s3")
        ),
        *(
            (name, "x")
            for name in ("num_pass", "first_pass", "low_pass", "byPass", "file_pat", "pat", "pattern")
        ),
        *((name, "x") for name in ("sacred", "api_key_env", "signature", "passphrase_model", "path")),
        *((f"{kind}_token", "cat") for kind in ("class", "prompt", "learned", "query", "register", "global")),
        *(
            (f"{kind}_token", "cat")
            for kind in ("blank", "trigger", "target", "initializer", "language", "modality")
        ),
        *(("token", value) for value in ("[CLS]", "<s>", "<|endoftext|>")),
        ("pass", 2),
        ("include_secrets", "yes please"),
        # the name of a resource, which opens nothing
        ("image_registry_credentials", "arn:aws:lambda:eu-west-1:123456789012:function:login"),
    ],
)
def test_values_under_names_of_other_things_are_shown(name: str, value: object) -> None:
    assert mask_named_value(name, value) == value


@table(
    ("text", "expected"),
    [
        ("--api-key ZZ6 --lr 0.1", "--api-key **** --lr 0.1"),
        ("run --token 'two words' -x", "run --token **** -x"),
        ("a b hf_token: ZZ10", "a b hf_token: ****"),
        ("X-Api-Key: ZZ10", "X-Api-Key: ****"),
        ("https://hooks.slack.com/services/T0/B0/ZZ7XX", "https://hooks.slack.com/services/****"),
        ("https://discord.com/api/webhooks/123/ZZ-x_y", "https://discord.com/api/webhooks/****"),
        (
            "https://acme.webhook.office.com/webhookb2/ZZ@1/x",
            "https://acme.webhook.office.com/webhookb2/****",
        ),
        ("https://api.telegram.org/bot123:ZZ/send", "https://api.telegram.org/bot****"),
        ("https://ZZ8abcdef@o1.ingest.sentry.io/1", "https://****@o1.ingest.sentry.io/1"),
        ("https://0123456789abcdef0123@errors.example.com/1", "https://****@errors.example.com/1"),
        ("https://h/x?Signature=ZZ&a=1", "https://h/x?Signature=****&a=1"),
        ("ssh://git@github.com/a/b", "ssh://git@github.com/a/b"),
        ("--include-secrets sends them all, --key k", "--include-secrets sends them all, --key k"),
        ('no bucket "AKIA2OGYBAH6QGPTLSNQ:ZZERRbcdefghijklmnopqr@b"', 'no bucket "****@b"'),
        ("https://example.com/services/a --lr 0.1", "https://example.com/services/a --lr 0.1"),
    ],
)
def test_values_in_texts(text: str, expected: str) -> None:
    assert mask_named_value("note", text) == expected
    assert mask_named_value("note", expected) == expected
    assert list(mask_arguments([text])) == [expected]


def test_a_data_source_name_is_masked() -> None:
    assert (
        mask_named_value("ERRORS_DSN", "https://ZZ8@errors.example.com/1")
        == "https://****@errors.example.com/1"
    )


def test_the_fields_of_an_export_go_by_the_same_rule() -> None:
    secrets = {"DB_PASS": "a", "OPTS": "--api-key a", "HOOK": "https://hooks.slack.com/services/a/b/c"}
    assert fields_with_secrets({"environment": {**secrets, "LR": "1"}}) == [
        f"environment.{name}" for name in secrets
    ]


def test_a_long_word_is_read_once() -> None:
    start_time = time.process_time()
    mask_text("=" + "a1" * 100_000)
    assert time.process_time() - start_time < 5


def test_a_secret_in_json_inside_json_is_masked() -> None:
    value = json.dumps(json.dumps({"password": "Zx9Qw8Er7Ty6"}))
    assert "Zx9" not in json.dumps(mask_document({"HyperParameters": {"cfg": value}}))


def test_what_follows_in_brackets_is_no_value_of_an_option() -> None:
    text = "known: --lr, --password (if this is wrong: --allow script.arguments)"
    assert mask_text(text) == text
