"""What a sync could not do, and the notes about it in the hosts' logs: each note once."""

from __future__ import annotations

from collections.abc import Callable

from smlaunch.local.untrusted_files import printable_name


class SyncProblems:
    """Problems of the files in ``local_path``, which notes call ``file_noun``.
    ``log_to_host(host_name, text)`` writes to a host's log."""

    def __init__(self, file_noun: str, local_path: str, log_to_host: Callable[[str, str], None]) -> None:
        self._file_noun = file_noun
        self._local_path = local_path
        self._log_to_host = log_to_host
        self._logged_texts_by_file: dict[tuple[str, str], set[str]] = {}
        """Notes that were written already, by host (empty: any) and name."""
        self.problem_by_file: dict[tuple[str, str], str] = {}
        """Why a file is not in S3, by host and name."""

    def forget_notes(self, host_name: str, file_name: str) -> None:
        """Let the notes about a file be written again."""
        self._logged_texts_by_file.pop((host_name, file_name), None)

    def record(self, host_name: str, file_name: str, problem_text: str, retry_text: str = "") -> None:
        """Record that a file is not in S3, or not deleted there, and write a note."""
        subject = f"{self._file_noun} {printable_name(file_name)}" if file_name else self._local_path
        self.problem_by_file[host_name, file_name] = f"{subject} {problem_text}"
        self.log_once(host_name, file_name, f"{subject} {problem_text}{retry_text}", only_for_host=host_name)

    def log_once(self, host_name: str, file_name: str, note_text: str, only_for_host: str = "") -> bool:
        """Write a note about a file to a host's log, unless it was written before. Return whether it was
        written. The note is about the files of all hosts, unless ``only_for_host`` is given."""
        logged_texts = self._logged_texts_by_file.setdefault((only_for_host, file_name), set())
        if note_text in logged_texts:
            return False
        logged_texts.add(note_text)
        self._log_to_host(host_name, note_text)
        return True
