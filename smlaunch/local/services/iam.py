"""IAM, as far as clients ask before they launch: one role, which SageMaker may assume."""

from __future__ import annotations

import datetime
import json
from typing import Any
from urllib.parse import quote

from smlaunch.local.caller import ACCOUNT, ROLE_ARN, ROLE_NAME
from smlaunch.local.errors import ApiError
from smlaunch.local.services.query_service import required

NAMESPACE = "https://iam.amazonaws.com/doc/2010-05-08/"
_POLICY_ARN = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}
_ROLE = {
    "Path": "/",
    "RoleName": ROLE_NAME,
    "RoleId": "AROASMLAUNCHLOCAL",
    "Arn": ROLE_ARN,
    "CreateDate": datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    "AssumeRolePolicyDocument": quote(json.dumps(_TRUST)),
    "Description": "The role of smlaunch's local endpoint. Nothing is checked against it.",
    "MaxSessionDuration": 43200,
}
_COMPLETE = {"IsTruncated": False}


class Iam:
    def get_role(self, params: dict[str, Any]) -> dict[str, Any]:
        _known(params)
        return {"Role": _ROLE}

    def list_roles(self, params: dict[str, Any]) -> dict[str, Any]:
        path = params.get("PathPrefix", "/")
        return {"Roles": [_ROLE] if "/".startswith(path) else [], **_COMPLETE}

    def list_attached_role_policies(self, params: dict[str, Any]) -> dict[str, Any]:
        _known(params)
        policy = {"PolicyName": "AmazonSageMakerFullAccess", "PolicyArn": _POLICY_ARN}
        return {"AttachedPolicies": [policy], **_COMPLETE}

    def list_role_policies(self, params: dict[str, Any]) -> dict[str, Any]:
        _known(params)
        return {"PolicyNames": [], **_COMPLETE}

    def list_role_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        _known(params)
        return {"Tags": [], **_COMPLETE}

    def simulate_principal_policy(self, params: dict[str, Any]) -> dict[str, Any]:
        """Everything is allowed: the local endpoint has one account and no policies."""
        source = required(params, "PolicySourceArn")
        if source not in (ROLE_ARN, f"arn:aws:iam::{ACCOUNT}:root"):
            raise ApiError("NoSuchEntity", f"{source} cannot be found.", 404)
        resources = params.get("ResourceArns", ["*"])
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": "allowed",
                "MatchedStatements": [],
                "MissingContextValues": [],
            }
            for action in required(params, "ActionNames")
            for resource in resources
        ]
        return {"EvaluationResults": results, **_COMPLETE}


def _known(params: dict[str, Any]) -> None:
    name = required(params, "RoleName")
    if name != ROLE_NAME:
        raise ApiError("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
