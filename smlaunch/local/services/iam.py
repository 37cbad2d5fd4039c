"""IAM, as far as clients use it before they launch a job: one role, which SageMaker may assume."""

from __future__ import annotations

import json
from urllib.parse import quote

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.request_context import ACCOUNT, ROLE_ARN, ROLE_NAME
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.query_service import required_parameter
from smlaunch.local.services.timestamp import Timestamp

NAMESPACE = "https://iam.amazonaws.com/doc/2010-05-08/"
_POLICY_ARN = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
_TRUST_POLICY = {
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
    "CreateDate": Timestamp(1_767_225_600),
    "AssumeRolePolicyDocument": quote(json.dumps(_TRUST_POLICY)),
    "Description": "The role of smlaunch's local endpoint. It has no effect.",
    "MaxSessionDuration": 43200,
}
_NOT_TRUNCATED = {"IsTruncated": False}


class IamOperations:
    def get_role(self, params: JsonObject) -> JsonObject:
        _require_known_role(params)
        return {"Role": _ROLE}

    def list_roles(self, params: JsonObject) -> JsonObject:
        path = params.get("PathPrefix", "/")
        return {"Roles": [_ROLE] if "/".startswith(path) else [], **_NOT_TRUNCATED}

    def list_attached_role_policies(self, params: JsonObject) -> JsonObject:
        _require_known_role(params)
        policy = {"PolicyName": "AmazonSageMakerFullAccess", "PolicyArn": _POLICY_ARN}
        return {"AttachedPolicies": [policy], **_NOT_TRUNCATED}

    def list_role_policies(self, params: JsonObject) -> JsonObject:
        _require_known_role(params)
        return {"PolicyNames": [], **_NOT_TRUNCATED}

    def list_role_tags(self, params: JsonObject) -> JsonObject:
        _require_known_role(params)
        return {"Tags": [], **_NOT_TRUNCATED}

    def simulate_principal_policy(self, params: JsonObject) -> JsonObject:
        """Allow every action: the local endpoint has one account and no policies."""
        source = required_parameter(params, "PolicySourceArn")
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
            for action in required_parameter(params, "ActionNames")
            for resource in resources
        ]
        return {"EvaluationResults": results, **_NOT_TRUNCATED}


def _require_known_role(params: JsonObject) -> None:
    name = required_parameter(params, "RoleName")
    if name != ROLE_NAME:
        raise ApiError("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
