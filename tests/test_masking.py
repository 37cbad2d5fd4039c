from __future__ import annotations

import pytest

from smlaunch.masking import (
    MASK,
    mask,
    mask_text,
    masked,
    masked_word,
    masked_words,
    secret_fields,
    secret_name,
)

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


@pytest.mark.parametrize(
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
    assert secret_name(name)


@pytest.mark.parametrize(
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
    assert not secret_name(name)


@pytest.mark.parametrize("secret", FORMS)
def test_a_secrets_form_is_masked_under_any_name(secret: str) -> None:
    assert masked("note", secret) == MASK
    shown = mask_text(f"it was {secret}, they said")
    assert shown == f"it was {MASK}, they said"
    assert secret not in str(mask({"a": [{"b": f"x {secret}"}]}))


@pytest.mark.parametrize(
    ("text", "shown"),
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
def test_texts(text: str, shown: str) -> None:
    assert mask_text(text) == shown
    assert mask_text(shown) == shown


def test_values_that_are_switches_or_numbers_stay() -> None:
    assert masked("use_auth_token", "true") == "true"
    assert masked("token", "512") == "512"
    assert masked("token", 512) == 512
    assert masked("use_auth_token", True) is True
    assert masked("token", "") == ""
    assert masked("password", "123456") == masked("password", 123456) == MASK
    assert masked("password", ["a"]) == MASK


def test_words_of_a_command() -> None:
    words = [
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
    assert list(masked_words(words)) == [
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
    before = repr(document)
    assert mask(document) == {
        "Environment": {"HF_TOKEN": MASK, "LR": "1"},
        "HyperParameters": {"config": '{"api_key": "****", "lr": 1}', "list": '["a", 1]'},
        "Tags": [{"Key": "API_TOKEN", "Value": MASK}, {"Key": "team", "Value": "y"}],
        "argv": ["train.py", "--password", MASK, {"ref": "a"}],
    }
    assert repr(document) == before


def test_what_cannot_be_taken_apart_shows_nothing_behind_the_name() -> None:
    assert masked_word("HF_TOKEN:abc") == "HF_TOKEN****"
    assert masked_word("HF_TOKEN abc") == "HF_TOKEN****"
    assert masked_word("HF_TOKEN") == "HF_TOKEN"
    assert masked_word("lr:1") == "lr:1"


def test_the_fields_of_a_job_that_hold_secrets() -> None:
    job = {
        "environment": {"HF_TOKEN": "x", "LR": "1", "URL": "http://a:b@c/"},
        "hyperparameters": {"api_key": "x", "lr": 1},
        "args": ["--password", "x"],
        "segments": [{}, {"hyperparameters": {"token": "abc"}}],
    }
    assert secret_fields(job) == [
        *("environment.HF_TOKEN", "environment.URL", "hyperparameters.api_key", "args"),
        "segments[1].hyperparameters.token",
    ]
    assert secret_fields({}) == []
