"""The tiers of the suite: which test is of which, and what a unit test may not do.

* unit: pure. No socket and no process: either is refused by name.
* endpoint: real clients against a server in this process, over loopback sockets.
* process: what starts processes: hosts, ranks, the command line.
* real: third-party components, and the longest tests of whole runs; run by ``make test-real``.
* chaos: long runs under random faults; run by ``make chaos``, deselected elsewhere.

A test is of its folder's tier unless it, or its file, is listed below; ``pytest.mark.real`` and
``pytest.mark.chaos`` at a test come before both.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path, PurePath
from typing import Any

import pytest

UNIT, ENDPOINT, PROCESS, REAL, CHAOS = "unit", "endpoint", "process", "real", "chaos"

MEANING = {
    UNIT: "pure: neither sockets nor processes; run alone by `make test-unit`",
    ENDPOINT: "a server in this process, over loopback sockets",
    PROCESS: "starts processes",
    REAL: "needs a heavy third-party component, or takes long; run by `make test-real`",
    CHAOS: "long runs under random faults; run by `make chaos`, deselected elsewhere",
}

FOLDERS = {
    "": UNIT,
    "airflow": PROCESS,
    "chaos": PROCESS,
    "cli": PROCESS,
    "e2e": PROCESS,
    "local": PROCESS,
    "local/front": ENDPOINT,
    "local/jobs": UNIT,
    "real": REAL,
    "requests": ENDPOINT,
    "runtime": PROCESS,
    "workloads": ENDPOINT,
}
FILES = {
    "cli/test_completion.py": REAL,
    "cli/test_shell.py": REAL,
    "cli/test_first_aws_job.py::test_the_callers_policy_allows_what_the_commands_call": REAL,
    "data/test_inventory.py::test_other_commands_do_not_load_the_extra": PROCESS,
    "data/test_inventory.py::test_without_the_extra_one_sentence_says_what_to_install": PROCESS,
    "data/test_inventory_listing.py::test_an_error_with_status_200_is_asked_again": ENDPOINT,
    "data/test_inventory_listing.py::test_hostile_keys_of_a_service": ENDPOINT,
    "data/test_inventory_report.py::test_by_the_command": ENDPOINT,
    "data/test_mirror.py::test_there_and_back_by_the_command_line": ENDPOINT,
    "data/test_pack.py": PROCESS,
    "data/test_pack_s3.py": PROCESS,
    "data/test_transfer.py": ENDPOINT,
    "e2e/test_bucket_owner.py": REAL,
    "e2e/test_chain.py::test_a_client_killed_at_random_points_is_followed_by_another": REAL,
    "e2e/test_gpt_chain.py": REAL,
    "e2e/test_main_job.py::test_the_same_weights_however_the_ranks_lie": REAL,
    "e2e/test_plain_chain.py::test_hosts_that_delete_their_checkpoints_may_end_at_different_times": REAL,
    "e2e/test_plain_chain.py::test_hosts_that_train_independently_go_on_until_all_have_finished": REAL,
    "e2e/test_plain_chain.py::test_one_that_begins_anew_in_every_job_ends": REAL,
    "e2e/test_plain_chain.py::test_one_that_reports_none_goes_on_by_its_files_and_the_log_says_so": REAL,
    "e2e/test_plain_chain.py::test_one_that_saves_nothing_and_says_nothing_ends": REAL,
    "e2e/test_region.py": REAL,
    "e2e/test_verify_resume.py::test_augmentation_from_the_global_generator_is_named": REAL,
    "e2e/test_verify_verdicts.py": REAL,
    "extending/test_executor.py": PROCESS,
    "extending/test_strategy.py": PROCESS,
    "export/test_pipeline.py::test_the_command_writes_it_and_refuses_a_name": PROCESS,
    "export/test_pipeline.py::test_three_segments_run_and_the_rest_does_not": REAL,
    "export/test_pipeline_runs.py": PROCESS,
    "functions/test_call_identity.py": PROCESS,
    "functions/test_function_runs.py": PROCESS,
    "functions/test_host_program.py": PROCESS,
    "functions/test_registered_classes.py": PROCESS,
    "functions/test_scripts.py": PROCESS,
    "functions/test_script_values.py": PROCESS,
    "functions/test_torch.py": REAL,
    "local/executors/test_acceptance.py::test_nothing_outlives_a_killed": REAL,
    "local/executors/test_containers_words.py": UNIT,
    "local/executors/test_removal.py": UNIT,
    "local/front/test_checksums.py": UNIT,
    "local/front/test_log_store.py": PROCESS,
    "local/front/test_objects.py": PROCESS,
    "local/front/test_torn_objects.py": PROCESS,
    "local/front/test_unverified_clients.py": PROCESS,
    "local/jobs/test_checkpoints.py::test_a_writer_that_breaks_our_lease_does_not_end_us": PROCESS,
    "local/jobs/test_output.py::test_a_line_that_was_cut_by_a_full_disk_goes_on_where_it_was_cut": PROCESS,
    "local/jobs/test_restless_files.py": PROCESS,
    "local/test_damaged_state.py::test_a_damaged_database_is_named_and_can_be_moved_away": REAL,
    "local/test_damaged_state.py::test_other_damaged_files_are_recreated_or_named": REAL,
    "local/test_faults.py": UNIT,
    "local/test_host_files.py": ENDPOINT,
    "local/test_pipeline_definitions.py": UNIT,
    "local/test_store.py": UNIT,
    "planner/test_refusals_page.py": PROCESS,
    "runs/test_local_target.py": PROCESS,
    "runs/test_await.py": ENDPOINT,  # an event loop has a pair of sockets
    "runs/test_lost_answers.py": PROCESS,
    "runs/test_owners.py::test_a_wrong_owner_differs_from_a_missing_permission": ENDPOINT,
    "runs/test_owners.py::test_nothing_is_sent_without_a_known_caller": ENDPOINT,
    "runs/test_source_links.py::test_link_loops_and_special_files_are_named": ENDPOINT,
    "runs/test_run_card.py::test_an_awaited_run_lets_other_tasks_go_on_and_has_the_result": ENDPOINT,
    "runs/test_stage.py::test_a_single_job_loads_nothing_of_chains_and_shards": PROCESS,
    "runs/test_stage.py::test_nothing_of_transfers_is_loaded_without_data": PROCESS,
    "runs/test_stage.py::test_one_of_many_clients_creates_the_secret": PROCESS,
    "runs/test_target.py": ENDPOINT,
    "runs/test_team_defaults.py::test_the_default_region_is_the_last_one": ENDPOINT,
    "runtime/test_launch_spec.py": UNIT,
    "runtime/test_mpi_report.py": UNIT,
    "runtime/test_mpirun_args.py": UNIT,
    "runtime/test_secret.py": UNIT,
    "runtime/test_torchrun.py::test_a_hang_shows_the_stacks_of_its_ranks": REAL,
    "runtime/test_torchrun.py::test_a_rank_that_leaves_with_0_while_others_wait_for_it": REAL,
    "runtime/test_torchrun.py::test_a_stop_reaches_the_ranks": REAL,
    "runtime/test_torchrun.py::test_ranks_of_two_hosts_meet": REAL,
    "runtime/test_torchrun.py::test_the_rank_that_failed_is_named": REAL,
    "runtime/test_torchrun.py::test_two_hosts_on_this_machine": REAL,
    "runtime/test_wire.py": ENDPOINT,
    "strategies/test_horovod.py": ENDPOINT,
    "strategies/test_registered.py::test_a_plan_tells_it_without_a_traceback": PROCESS,
    "strategies/test_spark.py::test_scratch_goes_where_this_hosts_temporary_files_go": PROCESS,
    "test_public_names.py": PROCESS,
    "train/test_direct.py": ENDPOINT,
    "train/test_ending.py": PROCESS,
    "train/test_exact_resume.py::test_three_ranks_with_loader_workers": PROCESS,
    "train/test_other_ranks.py": PROCESS,
    "train/test_store.py::test_a_directory_that_is_a_mount_of_its_own": PROCESS,
    "train/test_store.py::test_a_disk_that_fills_up_while_writing": PROCESS,
    "train/test_store.py::test_a_kill_at_any_moment_leaves_every_commit_whole": PROCESS,
}
"""What is not of its folder's tier: whole files, or single tests of a file that is otherwise."""

LONGEST_FILES = (
    *("real/test_airflow.py", "real/test_four_ways.py", "e2e/test_verify_verdicts.py", "real/test_spark.py"),
    *("e2e/test_gpt_chain.py", "chaos/test_killed_training.py", "real/test_mpi.py", "real/test_sdk2.py"),
    *("real/test_sdk3.py", "real/test_huggingface.py", "real/test_ray.py", "real/test_sdk3_pipelines.py"),
    *("e2e/test_plain_chain.py", "runtime/test_torchrun.py", "local/test_damaged_state.py"),
    *("train/test_exact_resume.py", "train/test_other_ranks.py", "e2e/test_main_job.py"),
    *("e2e/test_verify_resume.py", "e2e/test_chain.py", "runs/test_lost_answers.py"),
    *("local/executors/test_acceptance.py", "local/test_lifetimes.py", "runtime/test_segments.py"),
    *("local/test_hostile_files.py", "local/test_endpoint.py", "local/test_data_modes.py"),
    *("cli/test_secrets.py", "runtime/test_bundle.py", "runtime/test_hang.py"),
)
"""Files that run first: with a file per worker, a long one at the end would leave the other worker idle."""

_REFUSED_EVENTS = frozenset(
    (
        "socket.__new__",
        "socket.bind",
        "socket.connect",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
    )
)
"""Audit events of the interpreter."""


def tier_of(item: pytest.Item, tests: Path) -> str:
    for marker in (CHAOS, REAL):
        if item.get_closest_marker(marker):
            return marker
    file = item.path.relative_to(tests)
    for name in (f"{file.as_posix()}::{getattr(item, 'originalname', item.name)}", file.as_posix()):
        if name in FILES:
            return FILES[name]
    return next(FOLDERS[folder] for folder in map(_folder_name, file.parents) if folder in FOLDERS)


def _folder_name(folder: PurePath) -> str:
    return "" if folder == PurePath(".") else folder.as_posix()


def start_order(item: pytest.Item, tests: Path) -> int:
    """Position of the item's file among those that run first; equal for all others."""
    file = item.path.relative_to(tests).as_posix()
    return LONGEST_FILES.index(file) if file in LONGEST_FILES else len(LONGEST_FILES)


class Refused(BaseException):
    """No code under test can mistake it for an error of its own and go on."""


class Guard:
    """While a unit test runs, whoever opens a socket or starts a process gets an exception.

    Threads that earlier tests left behind are not the test's.
    """

    def __init__(self) -> None:
        self._test = ""
        self._older: frozenset[threading.Thread] = frozenset()
        sys.addaudithook(self._check)

    def start(self, test: str) -> None:
        self._older = frozenset(threading.enumerate()) - {threading.current_thread()}
        self._test = test

    def stop(self) -> None:
        self._test = ""

    def _check(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._test and event in _REFUSED_EVENTS and threading.current_thread() not in self._older:
            raise Refused(f"{event} in a unit test: {self._test} belongs to another tier, see tests/tiers.py")
