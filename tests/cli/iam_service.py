"""An account on loopback: IAM with roles, policies and their simulation, S3's buckets, Service Quotas, STS.

Its answers are built from botocore's model and AWS's pages; no account has given them. A simulation evaluates
Allow statements with their resources and StringEquals conditions, and nothing else.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

from smlaunch.api.job_kinds import method_name
from smlaunch.local.services.query_service import parse_query_request
from smlaunch.local.services.xml_encoding import xml_document

ACCOUNT, OTHER_ACCOUNT = "123456789012", "999999999999"
NAMESPACE = "https://iam.amazonaws.com/doc/2010-05-08/"
_DATE = "2026-01-01T00:00:00Z"


class Refusal(Exception):
    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code, self.status = code, status


@dataclass
class Account:
    """The state of an account, and what it was asked."""

    caller: str = f"arn:aws:iam::{ACCOUNT}:user/ada"
    roles: dict[str, Any] = field(default_factory=dict)
    role_policies: dict[tuple[str, str], Any] = field(default_factory=dict)
    policies: dict[str, list[Any]] = field(default_factory=dict)
    """Versions of managed policies by ARN; the last one is the default."""
    attached: dict[str, list[str]] = field(default_factory=dict)
    """ARNs of managed policies by user."""
    buckets: dict[str, str] = field(default_factory=dict)
    """Owners by bucket."""
    quotas: dict[str, float] = field(default_factory=dict)
    requested: dict[str, float] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    changes: list[str] = field(default_factory=list)

    def answer(self, operation: str, params: dict[str, Any]) -> Any:
        if operation in self.denied:
            raise Refusal("AccessDenied", 403)
        if not operation.startswith(("Get", "List", "Simulate")):
            self.changes.append(operation)
        return getattr(self, f"on_{method_name(operation)}")(params)

    def on_get_caller_identity(self, _: Mapping[str, Any]) -> Any:
        return {"Arn": self.caller, "UserId": "U", "Account": ACCOUNT}

    def on_get_role(self, params: Mapping[str, Any]) -> Any:
        name = params["RoleName"]
        if name not in self.roles:
            raise Refusal("NoSuchEntity", 404)
        return {"Role": self._role(name)}

    def _role(self, name: str) -> dict[str, Any]:
        document = quote(json.dumps(self.roles[name]))
        arn = f"arn:aws:iam::{ACCOUNT}:role/{name}"
        names = {"Path": "/", "RoleName": name, "RoleId": "A" * 16, "Arn": arn}
        return {**names, "CreateDate": _DATE, "AssumeRolePolicyDocument": document}

    def on_create_role(self, params: Mapping[str, Any]) -> Any:
        self.roles[params["RoleName"]] = json.loads(params["AssumeRolePolicyDocument"])
        return {"Role": self._role(params["RoleName"])}

    def on_get_role_policy(self, params: Mapping[str, Any]) -> Any:
        key = (params["RoleName"], params["PolicyName"])
        if key not in self.role_policies:
            raise Refusal("NoSuchEntity", 404)
        document = quote(json.dumps(self.role_policies[key]))
        return {"RoleName": key[0], "PolicyName": key[1], "PolicyDocument": document}

    def on_put_role_policy(self, params: Mapping[str, Any]) -> Any:
        self.role_policies[params["RoleName"], params["PolicyName"]] = json.loads(params["PolicyDocument"])
        return {}

    def on_get_policy(self, params: Mapping[str, Any]) -> Any:
        versions = self.policies.get(params["PolicyArn"])
        if versions is None:
            raise Refusal("NoSuchEntity", 404)
        return {"Policy": {"Arn": params["PolicyArn"], "DefaultVersionId": f"v{len(versions)}"}}

    def on_create_policy(self, params: Mapping[str, Any]) -> Any:
        arn = f"arn:aws:iam::{ACCOUNT}:policy/{params['PolicyName']}"
        self.policies[arn] = [json.loads(params["PolicyDocument"])]
        return {"Policy": {"Arn": arn, "DefaultVersionId": "v1"}}

    def on_get_policy_version(self, params: Mapping[str, Any]) -> Any:
        document = self.policies[params["PolicyArn"]][int(params["VersionId"][1:]) - 1]
        return {"PolicyVersion": {"Document": quote(json.dumps(document)), "VersionId": params["VersionId"]}}

    def on_create_policy_version(self, params: Mapping[str, Any]) -> Any:
        assert params["SetAsDefault"] == "true"
        self.policies[params["PolicyArn"]].append(json.loads(params["PolicyDocument"]))
        return {"PolicyVersion": {"VersionId": f"v{len(self.policies[params['PolicyArn']])}"}}

    def on_list_attached_user_policies(self, params: Mapping[str, Any]) -> Any:
        attached = [{"PolicyArn": arn} for arn in self.attached.get(params["UserName"], [])]
        return {"AttachedPolicies": attached, "IsTruncated": False}

    def on_attach_user_policy(self, params: Mapping[str, Any]) -> Any:
        self.attached.setdefault(params["UserName"], []).append(params["PolicyArn"])
        return {}

    def on_list_service_quotas(self, params: Mapping[str, Any]) -> Any:
        names = sorted(self.quotas)
        start = int(params.get("NextToken", 0))
        rows = [
            {"QuotaName": name, "QuotaCode": f"L-{name}", "Value": self.quotas[name]}
            for name in names[start : start + 1]
        ]
        return {"Quotas": rows, **({"NextToken": str(start + 1)} if start + 1 < len(names) else {})}

    def on_request_service_quota_increase(self, params: Mapping[str, Any]) -> Any:
        name = params["QuotaCode"].removeprefix("L-")
        if name in self.requested:
            raise Refusal("ResourceAlreadyExistsException", 400)
        self.requested[name] = params["DesiredValue"]
        return {"RequestedQuota": {"QuotaName": name, "DesiredValue": params["DesiredValue"]}}

    def on_simulate_principal_policy(self, params: Mapping[str, Any]) -> Any:
        """By AWS's page: a list of resources is answered per resource, and the first row is all of them."""
        policies = self._policies_of(params["PolicySourceArn"])
        context = {
            entry["ContextKeyName"]: entry["ContextKeyValues"] for entry in params.get("ContextEntries", [])
        }
        rows = []
        for action in params["ActionNames"]:
            decisions = {
                arn: "allowed" if _is_allowed(policies, action, arn, context) else "implicitDeny"
                for arn in params.get("ResourceArns", ["*"])
            }
            row: dict[str, Any] = {"EvalActionName": action, "EvalResourceName": "*"}
            missing_keys = _missing_keys(policies, action, context)
            row["EvalDecision"] = "allowed" if set(decisions.values()) == {"allowed"} else "implicitDeny"
            if "ResourceArns" in params:
                row["ResourceSpecificResults"] = [
                    {
                        "EvalResourceName": arn,
                        "EvalResourceDecision": decision,
                        "MissingContextValues": missing_keys,
                    }
                    for arn, decision in decisions.items()
                ]
            rows.append(row)
        first, rest = int(params.get("Marker", 0)), {"IsTruncated": False}
        if first + 2 < len(rows):
            rest = {"IsTruncated": True, "Marker": str(first + 2)}
        return {"EvaluationResults": rows[first : first + 2], **rest}

    def _policies_of(self, arn: str) -> list[Any]:
        kind, _, name = arn.rpartition(":")[2].partition("/")
        if kind == "role":
            if name not in self.roles:
                raise Refusal("NoSuchEntity", 404)
            return [policy for (role, _), policy in self.role_policies.items() if role == name]
        return [self.policies[policy][-1] for policy in self.attached.get(name, [])]


def _missing_keys(policies: list[Any], action: str, context: Mapping[str, Any]) -> list[str]:
    statements = [statement for policy in policies for statement in policy["Statement"]]
    keys = (
        key
        for statement in statements
        if action in statement["Action"]
        for key in statement.get("Condition", {}).get("StringEquals", {})
    )
    return sorted(set(keys) - set(context))


def _is_allowed(policies: list[Any], action: str, resource: str, context: Mapping[str, Any]) -> bool:
    for statement in (statement for policy in policies for statement in policy["Statement"]):
        resources = (
            statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        )
        conditions = statement.get("Condition", {}).get("StringEquals", {})
        if (
            action in statement["Action"]
            and any(fnmatchcase(resource, pattern) for pattern in resources)
            and all(value in context.get(key, []) for key, value in conditions.items())
        ):
            return True
    return False


class _Handler(BaseHTTPRequestHandler):
    account: Account

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = self.headers.get("X-Amz-Target", "")
        if target:
            operation, params = target.rpartition(".")[2], json.loads(body)
        else:
            request: Any = SimpleNamespace(query={})
            operation, params = parse_query_request(request, body)
        try:
            result = self.account.answer(operation, params)
        except Refusal as refusal:
            error = {"Type": "Sender", "Code": refusal.code, "Message": f"refused: {operation}"}
            xml = xml_document("ErrorResponse", {"Error": error})
            text = {"__type": refusal.code, "Message": "refused"}
            self._send(refusal.status, json.dumps(text).encode() if target else xml)
            return
        document = {f"{operation}Result": result}
        xml = xml_document(f"{operation}Response", document, NAMESPACE, list_item_tag="member")
        self._send(200, json.dumps(result).encode() if target else xml)

    def do_HEAD(self) -> None:
        owner = self.account.buckets.get(self._bucket)
        expected = self.headers.get("x-amz-expected-bucket-owner", owner)
        self._send(404 if owner is None else 200 if owner == expected else 403, b"")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.account.changes.append("CreateBucket")
        self.account.buckets[self._bucket] = ACCOUNT
        self._send(200, b"")

    @property
    def _bucket(self) -> str:
        return urlsplit(self.path).path.strip("/")

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_account() -> Iterator[tuple[str, Account]]:
    """Yield the address of the account's services, and the account."""
    account = Account()
    handler = type("Handler", (_Handler,), {"account": account})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", account
        server.shutdown()
