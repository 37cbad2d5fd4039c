"""The container engine's command lines, word for word; no engine is needed."""

from __future__ import annotations

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.executors import container_cli as words
from smlaunch.local.executors.container_cli import CannotMount, ContainerMount, ContainerPlan, Engine
from smlaunch.local.executors.container_engine import (
    ensure_image,
    options_from_environment,
    registry_of_image,
)
from smlaunch.local.executors.container_environment import variables_to_pass_by_name
from smlaunch.local.executors.executor_interface import ImageProblem

PODMAN = Engine("podman", "/usr/bin/podman", "4.3.1", ("--runtime=runc",), ("--ulimit=nofile=9:9",))
DOCKER = Engine("docker", "/usr/bin/docker", "28.2.2")


def plan(**changes: object) -> ContainerPlan:
    fixed = {
        "name": "smlaunch-0123-job-algo-1",
        "endpoint_id": "0123",
        "image": "registry.example:5000/train:1",
        "network_name": "smlaunch-0123-job",
        "address": "10.89.0.2",
        "hostname": "algo-1",
        "address_by_host_name": {"algo-1": "10.89.0.2", "algo-2": "10.89.0.3"},
    }
    return ContainerPlan(**{**fixed, **changes})  # type: ignore[arg-type]


def test_all_of_podmans_words() -> None:
    container_plan = plan(
        entrypoint=("python3", "-u"),
        arguments=("/opt/ml/x.py", "--a=b c"),
        environment={"PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "hidden"},
        variables_passed_by_name={"AWS_SECRET_ACCESS_KEY"},
        mounts=(
            ContainerMount("/state/ml", "/opt/ml", "shared"),
            ContainerMount("/s3/data", "/opt/ml/input/data/d", "overlay"),
        ),
        shm_bytes=2 << 30,
        user_options=("--memory=8g",),
    )
    assert words.create_container_command(PODMAN, container_plan) == [
        "/usr/bin/podman",
        "--runtime=runc",
        "create",
        "--name=smlaunch-0123-job-algo-1",
        "--label=smlaunch.owner=0123",
        "--pull=never",
        "--log-driver=none",
        "--security-opt=label=disable",
        "--network=smlaunch-0123-job",
        "--ip=10.89.0.2",
        "--hostname=algo-1",
        "--add-host=algo-1:10.89.0.2",
        "--add-host=algo-2:10.89.0.3",
        "--ulimit=nofile=9:9",
        "--http-proxy=false",
        "--shm-size=2147483648b",
        "--volume=/state/ml:/opt/ml:rw",
        "--volume=/s3/data:/opt/ml/input/data/d:O",
        "--env=PATH=/bin",
        "--env=AWS_SECRET_ACCESS_KEY",
        "--memory=8g",
        '--entrypoint=["python3"]',
        "registry.example:5000/train:1",
        "-u",
        "/opt/ml/x.py",
        "--a=b c",
    ]


def test_docker_takes_the_same_but_for_these() -> None:
    container_plan = plan(entrypoint=("python3", "-u"))
    only_podman = {"/usr/bin/podman", "--runtime=runc", "--ulimit=nofile=9:9", "--http-proxy=false"}
    podman_words, docker_words = (
        words.create_container_command(PODMAN, container_plan),
        words.create_container_command(DOCKER, container_plan),
    )
    assert set(podman_words) - set(docker_words) == only_podman | {'--entrypoint=["python3"]'}
    assert set(docker_words) - set(podman_words) == {"/usr/bin/docker", "--entrypoint=python3"}


def test_without_an_entry_point_the_images_own_gets_the_arguments() -> None:
    image = "registry.example:5000/train:1"
    for arguments in (("train",), (), ("a", "b")):
        line = words.create_container_command(DOCKER, plan(arguments=arguments))
        assert line[line.index(image) + 1 :] == list(arguments)
        assert not any(word.startswith("--entrypoint") for word in line)


@pytest.mark.parametrize(
    "value",
    ("", " ", "a=b==", "one\ntwo\n", "'\"`$(x) $HOME \\", "# no comment", "*", "--flag", "\u2603", "a,b:c;d"),
)
def test_a_value_is_one_word_whatever_it_holds(value: str) -> None:
    line = words.create_container_command(
        PODMAN, plan(environment={"NAME": value}, entrypoint=(value,), arguments=(value,))
    )
    assert line.count(f"--env=NAME={value}") == 1
    assert line[-1] == value
    assert line[-2] == "registry.example:5000/train:1"


def test_a_first_word_that_looks_like_a_list_stays_one_word() -> None:
    line = words.create_container_command(PODMAN, plan(entrypoint=('["sh", "-c"]',)))
    assert '--entrypoint=["[\\"sh\\", \\"-c\\"]"]' in line


def test_what_a_job_calls_its_own_is_on_no_command_line() -> None:
    names = (
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GOOGLE_API_KEY",
        "pw",
        "SSH_PRIVATE_KEY",
        "X",
    )
    environment = {name: f"s3cr3t of {name}\nwith a newline" for name in names}
    variables = variables_to_pass_by_name(environment, {"HF_TOKEN": "another's"})
    assert variables == environment
    line = words.create_container_command(
        PODMAN, plan(environment=environment, variables_passed_by_name=variables)
    )
    assert not any("s3cr3t" in word for word in line)
    assert [word for word in line if word.startswith("--env")] == [f"--env={name}" for name in names]


@pytest.mark.parametrize(
    "name",
    (
        *("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_PRELOAD", "XDG_RUNTIME_DIR", "GODEBUG", "BASH_ENV"),
        *("DOCKER_HOST", "CONTAINER_HOST", "CONTAINERS_CONF", "STORAGE_DRIVER", "https_proxy", "NO_PROXY"),
        *(
            "_CONTAINERS_USERNS_CONFIGURED",
            "REGISTRY_AUTH_FILE",
            "SSL_CERT_FILE",
            "container",
            "MANY*",
            "A B",
        ),
    ),
)
def test_what_the_engines_client_goes_by_is_not_changed_for_it(name: str) -> None:
    assert variables_to_pass_by_name({name: "the job's"}, {}) == {}
    assert variables_to_pass_by_name({name: "the job's"}, {name: "the client's"}) == {}
    line = words.create_container_command(PODMAN, plan(environment={name: "the job's"}))
    assert f"--env={name}=the job's" in line


def test_a_value_that_the_client_has_already_changes_nothing_for_it() -> None:
    proxy = {"HTTPS_PROXY": "http://user:password@proxy:1"}
    assert variables_to_pass_by_name(proxy, {**proxy, "PATH": "/bin"}) == proxy


@pytest.mark.parametrize(
    ("mount", "options"),
    (
        (ContainerMount("/a b", "/opt/ml", "shared"), ["--volume=/a b:/opt/ml:rw"]),
        (ContainerMount("/a,b", "/t", "read-only"), ["--volume=/a,b:/t:ro"]),
        (ContainerMount("/a:b", "/t", "read-only"), ["--mount=type=bind,source=/a:b,target=/t,readonly"]),
        (ContainerMount("/a", "/t:u", "shared"), ["--mount=type=bind,source=/a,target=/t:u"]),
    ),
)
def test_paths_are_spelled_so_that_they_survive(mount: ContainerMount, options: list[str]) -> None:
    assert words.bind_mount_options(mount) == options


@pytest.mark.parametrize(
    "mount",
    (
        ContainerMount("/a:b", "/t", "overlay"),
        ContainerMount("/a:b,c", "/t", "shared"),
        ContainerMount('/a:"b', "/t", "read-only"),
    ),
)
def test_a_path_that_no_spelling_can_carry_is_refused(mount: ContainerMount) -> None:
    with pytest.raises(CannotMount, match="use names without one"):
        words.bind_mount_options(mount)


def test_networks() -> None:
    assert words.create_network_command(PODMAN, "n", "o", is_internal=True, subnet=None) == [
        *("/usr/bin/podman", "--runtime=runc", "network", "create", "--label=smlaunch.owner=o"),
        *("--disable-dns", "--internal", "n"),
    ]
    assert words.create_network_command(DOCKER, "n", "o", is_internal=False, subnet="10.1.0.0/24") == [
        *("/usr/bin/docker", "network", "create", "--label=smlaunch.owner=o"),
        *("--subnet=10.1.0.0/24", "n"),
    ]
    assert words.remove_containers_command(PODMAN, "a", "b")[2:] == [
        "rm",
        "--force",
        "--volumes",
        "--time=0",
        "a",
        "b",
    ]
    assert words.remove_containers_command(DOCKER, "a")[1:] == ["rm", "--force", "--volumes", "a"]


def test_what_differs_after_create() -> None:
    assert words.start_container_command(PODMAN, "a")[2:] == ["start", "--attach", "--sig-proxy=false", "a"]
    assert words.start_container_command(DOCKER, "a")[1:] == ["start", "--attach", "a"]
    assert words.chown_command(DOCKER, "helper:1", "/state/hosts/job", 1000, 100)[1:] == [
        *("run", "--rm", "--pull=never", "--network=none", "--security-opt=label=disable"),
        *("--volume=/state/hosts/job:/given", "--entrypoint=/bin/chown", "helper:1"),
        *("--recursive", "1000:100", "/given"),
    ]


@pytest.mark.parametrize(
    ("image", "registry"),
    (
        (
            "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2",
            "763104351884.dkr.ecr.us-east-1.amazonaws.com",
        ),
        ("localhost/mine", "localhost"),
        ("localhost:5000/mine:1", "localhost:5000"),
        ("mine:1", None),
        ("group/mine:1.2", None),
        ("docker.io/library/python@sha256:00", "docker.io"),
    ),
)
def test_the_registry_in_a_name(image: str, registry: str | None) -> None:
    assert registry_of_image(image) == registry


def test_options_of_a_persons_own_are_words() -> None:
    assert options_from_environment({}) == ()
    environment = {"SMLAUNCH_CONTAINER_OPTIONS": "--memory=8g --label 'a b'"}
    assert options_from_environment(environment) == ("--memory=8g", "--label", "a b")
    with pytest.raises(EndpointError, match="SMLAUNCH_CONTAINER_OPTIONS cannot be read as words"):
        options_from_environment({"SMLAUNCH_CONTAINER_OPTIONS": "--label 'a b"})


@pytest.mark.parametrize("image", ("", "--privileged", "a b", "a\nb"))
def test_what_is_no_images_name_never_reaches_the_engine(image: str) -> None:
    nowhere = Engine("podman", "/nowhere/podman", "0")
    with pytest.raises(ImageProblem, match="no image's name"):
        ensure_image(nowhere, image, lambda: None)


def test_the_words_of_a_shell() -> None:
    shell = ("/bin/sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")
    assert words.shell_in_container_command(PODMAN, "smlaunch-0123-job-algo-1", has_terminal=True) == [
        *("/usr/bin/podman", "--runtime=runc", "exec", "--interactive", "--tty", "--env=TERM"),
        *("smlaunch-0123-job-algo-1", *shell),
    ]
    assert words.shell_in_container_command(DOCKER, "name", has_terminal=False) == [
        *("/usr/bin/docker", "exec", "--interactive", "name", *shell),
    ]
