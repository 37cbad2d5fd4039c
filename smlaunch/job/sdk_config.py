"""The configuration files of the SageMaker Python SDK (schema 1.0), with their own names.

The sections that jobs of smlaunch have something in common with are read member by member; of the others only
the names are known. Source: ``sagemaker/config/config_schema.py`` of the SDK.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, ClassVar, Literal

from smlaunch.job.field_types import Hyperparameter, NonEmptyText, StrictBool, TextOrInteger, VariableName
from smlaunch.job.sections import FieldError, FieldRule, Section, section
from smlaunch.job.service_types import KmsKey
from smlaunch.job.team_config import BucketName, KeyPrefix

_ROLE_ARN = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/.+")


def _check_role_arn(text: str) -> str:
    if not _ROLE_ARN.fullmatch(text):
        raise FieldError("{} is not a role's ARN, such as arn:aws:iam::123456789012:role/NAME", repr(text))
    return text


IamRole = Annotated[NonEmptyText, FieldRule(_check_role_arn)]
Unread = Mapping[NonEmptyText, Hyperparameter]
"""A part of the file that no job of smlaunch reads."""


@section
class SdkTag(Section):
    Key: NonEmptyText
    Value: TextOrInteger


@section
class SdkKmsKey(Section):
    KmsKeyId: KmsKey | None = None


@section
class SdkVolumeKey(Section):
    VolumeKmsKeyId: KmsKey | None = None


@section
class SdkCluster(Section):
    ClusterConfig: SdkVolumeKey = SdkVolumeKey()


@section
class SdkVpc(Section):
    SecurityGroupIds: tuple[NonEmptyText, ...] = ()
    Subnets: tuple[NonEmptyText, ...] = ()


@section
class SdkNetwork(Section):
    EnableInterContainerTrafficEncryption: StrictBool = False
    EnableNetworkIsolation: StrictBool = False
    VpcConfig: SdkVpc = SdkVpc()


@section
class SdkProfiler(Section):
    DisableProfiler: StrictBool = False


@section
class SdkTrainingJob(Section):
    EnableInterContainerTrafficEncryption: StrictBool = False
    EnableNetworkIsolation: StrictBool = False
    Environment: Mapping[VariableName, TextOrInteger] = field(default_factory=dict)
    OutputDataConfig: SdkKmsKey = SdkKmsKey()
    ResourceConfig: SdkVolumeKey = SdkVolumeKey()
    ProfilerConfig: SdkProfiler = SdkProfiler()
    RoleArn: IamRole | None = None
    VpcConfig: SdkVpc = SdkVpc()
    Tags: tuple[SdkTag, ...] = ()


@section
class SdkProcessingJob(Section):
    Environment: Mapping[VariableName, TextOrInteger] = field(default_factory=dict)
    NetworkConfig: SdkNetwork = SdkNetwork()
    ProcessingInputs: tuple[Unread, ...] = ()
    ProcessingOutputConfig: SdkKmsKey = SdkKmsKey()
    ProcessingResources: SdkCluster = SdkCluster()
    RoleArn: IamRole | None = None
    Tags: tuple[SdkTag, ...] = ()


@section
class SdkSession(Section):
    DefaultS3Bucket: BucketName | None = None
    DefaultS3ObjectKeyPrefix: KeyPrefix | None = None


@section
class SdkModules(Section):
    Session: SdkSession = SdkSession()
    Estimator: Unread = field(default_factory=dict)
    RemoteFunction: Unread = field(default_factory=dict)
    Serverless: Unread = field(default_factory=dict)
    NotebookJob: Unread = field(default_factory=dict)


@section
class SdkPython(Section):
    Modules: SdkModules = SdkModules()
    Resources: Unread = field(default_factory=dict)


@section
class SdkSageMaker(Section):
    PythonSDK: SdkPython = SdkPython()
    TrainingJob: SdkTrainingJob = SdkTrainingJob()
    ProcessingJob: SdkProcessingJob = SdkProcessingJob()
    AutoMLJob: Unread = field(default_factory=dict)
    AutoMLJobV2: Unread = field(default_factory=dict)
    CompilationJob: Unread = field(default_factory=dict)
    EdgePackagingJob: Unread = field(default_factory=dict)
    Endpoint: Unread = field(default_factory=dict)
    EndpointConfig: Unread = field(default_factory=dict)
    FeatureGroup: Unread = field(default_factory=dict)
    Model: Unread = field(default_factory=dict)
    ModelPackage: Unread = field(default_factory=dict)
    MonitoringSchedule: Unread = field(default_factory=dict)
    Pipeline: Unread = field(default_factory=dict)
    TransformJob: Unread = field(default_factory=dict)


@section
class SdkConfig(Section):
    """The whole file."""

    DOCUMENT: ClassVar[str] = "file"

    SchemaVersion: Literal["1.0"]
    CustomParameters: Unread = field(default_factory=dict)
    SageMaker: SdkSageMaker = SdkSageMaker()
