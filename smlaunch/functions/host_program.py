"""The program that every rank of a function's run starts: it calls the function and writes what came of it.

It travels with script_pickling.py in the source (function_job.py), so that it depends on no smlaunch that the
host may have: standard library only, Python 3.8 and later. The client imports the names of files and the
formats from here.

    call file         a line of JSON, then the pickle of (function, args, kwargs). Its SHA-256 is in the job's
                      request, which nobody can change who may only write to the bucket.
    result            of rank 0, in one of FORMATS; data that JSON and .npy can state is never a pickle
    error             of a rank: a line of JSON (type, message, traceback), then the pickled exception, if it
                      can be pickled

Results and errors are files of /opt/ml/output/data, which the service uploads, also of a job that failed. The
rank prints the SHA-256 of its file, which the client compares: the log is another service than the bucket.
"""

import base64
import contextlib
import hashlib
import importlib.util
import inspect
import io
import json
import math
import os
import sys
import traceback
import zipfile
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

if __package__:
    from smlaunch.functions.script_pickling import ScriptUnpickler, call_deeply, script_pickler_class
else:  # on a host, where the two files lie side by side
    from smlaunch_script_pickling import (  # type: ignore[import-not-found,no-redef,unused-ignore]
        ScriptUnpickler,
        call_deeply,
        script_pickler_class,
    )

CALL_FORMAT = "1.0"
"""Of the call file and of what the program writes. Both sides are of one release: the program is sent."""

PROGRAM_FILE = ".smlaunch/call_function.py"
PICKLING_FILE = ".smlaunch/smlaunch_script_pickling.py"
CALL_FILE = ".smlaunch/call"
LIBRARY_FOLDER = ".smlaunch/library"
"""In the source archive. The user's own folder .smlaunch is never sent."""

SHA256_VARIABLE = "SMLAUNCH_FUNCTION_SHA256"
"""Environment variable of the job with the call file's hash, in hex."""

OUTPUT_FOLDER = "smlaunch-function"
"""Below /opt/ml/output/data."""

JSON, ARRAYS, PICKLE = "json", "arrays", "pickle"
FORMATS = (JSON, ARRAYS, PICKLE)
"""Of a result. ``json``: a document of ``encode_value``. ``arrays``: a zip of such a document, VALUE_MEMBER,
and the arrays that it names, as .npy. ``pickle``: whatever the others cannot state."""

VALUE_MEMBER = "value.json"
RESULT_KIND, ERROR_KIND = "function-result", "function-error"
RESULT_LINE = "smlaunch: {} format={} bytes={} sha256={}"
ERROR_LINE = "smlaunch: {} rank={} bytes={} sha256={}"

MAX_RESULT_BYTES = 1 << 30
MAX_ERROR_BYTES = 16 << 20
MAX_HEADER_BYTES = 1 << 20
MAX_MESSAGE_CHARACTERS, MAX_TRACEBACK_CHARACTERS = 20000, 60000
"""Of an exception. JSON takes up to twelve bytes for each, so that the line is within MAX_HEADER_BYTES."""

_MAX_DEPTH = 64
_MAX_SAFE_INTEGER = 1 << 53


class CallRefused(Exception):
    """The call cannot be made on this host."""


class NotData(Exception):
    """The value has something that JSON and .npy cannot state."""


# ---- results ---------------------------------------------------------------------------------------------


class EncodedResult(NamedTuple):
    """A result as bytes, in one of FORMATS."""

    format: str
    content: bytes


def encode_result(value: Any) -> EncodedResult:
    """Return the value as data if JSON and .npy can state it exactly, and else as a pickle. Raises whatever
    pickling it raises."""
    arrays: List[Any] = []
    try:
        document = json.dumps(encode_value(value, arrays), ensure_ascii=True, allow_nan=False).encode("ascii")
        if not arrays:
            return EncodedResult(JSON, document)
        return EncodedResult(ARRAYS, _zip_arrays(document, arrays))
    except NotData:
        return EncodedResult(PICKLE, _pickle_value(value))


def _pickle_value(value: Any) -> bytes:
    def pickle_value() -> bytes:
        buffer = io.BytesIO()
        script_pickler_class(_cloudpickle())(buffer).dump(value)
        return buffer.getvalue()

    return call_deeply(pickle_value)


def encode_value(value: Any, arrays: List[Any]) -> Any:
    """Return the value in types of JSON. Only exact types count, so that the value comes back as it was; one
    that JSON lacks is an object with a single key: ``{"tuple": [...]}``, ``{"dict": [[key, value], ...]}``,
    ``{"int": "0x..."}``, ``{"float": "nan"}``, ``{"complex": [real, imaginary]}``, ``{"bytes": base64}``,
    ``{"array": index}`` and ``{"scalar": index}`` into ``arrays``, to which NumPy's arrays and scalars are
    appended.

    Raises NotData for any other type, for values that are deeply nested, and where an object that can change
    occurs twice: it would come back as two objects.
    """
    return _encode_item(value, arrays, set(), 0)


def _encode_item(value: Any, arrays: List[Any], mutable_ids: Set[int], depth: int) -> Any:
    value_type = type(value)
    if value is None or value_type in (bool, str):
        return value
    if value_type is int:
        return value if -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER else {"int": hex(value)}
    if value_type is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if value_type is complex:
        return {
            "complex": [_encode_item(part, arrays, mutable_ids, depth) for part in (value.real, value.imag)]
        }
    if value_type is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if depth > _MAX_DEPTH:
        raise NotData
    if value_type is tuple:
        return {"tuple": [_encode_item(item, arrays, mutable_ids, depth + 1) for item in value]}
    if value_type in (list, dict) or _is_plain_array(value):
        if id(value) in mutable_ids:
            raise NotData
        mutable_ids.add(id(value))
    if value_type is list:
        return [_encode_item(item, arrays, mutable_ids, depth + 1) for item in value]
    if value_type is dict:
        pairs = [
            [_encode_item(part, arrays, mutable_ids, depth + 1) for part in pair] for pair in value.items()
        ]
        return {"dict": pairs}
    if _is_plain_array(value):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if _is_plain_scalar(value):
        arrays.append(value)
        return {"scalar": len(arrays) - 1}
    raise NotData


def _is_plain_array(value: Any) -> bool:
    """Whether this is an array of NumPy, and not of a subclass, that owns all that is to be known of it."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and _is_plain_dtype(value.dtype)


def _is_plain_scalar(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and isinstance(value, numpy.generic)
        and type(value).__module__ == "numpy"
        and not isinstance(value, numpy.void)
        and _is_plain_dtype(value.dtype)
    )


def _is_plain_dtype(dtype: Any) -> bool:
    """Whether .npy states the type of the elements exactly: numbers, dates and texts of fixed length."""
    return dtype.kind in "biufcMmSU" and dtype.metadata is None and dtype.isbuiltin != 2


def _zip_arrays(document: bytes, arrays: Sequence[Any]) -> bytes:
    import numpy

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(VALUE_MEMBER), document)
        for index, array in enumerate(arrays):
            with archive.open(zipfile.ZipInfo(array_member(index)), "w", force_zip64=True) as member:
                numpy.lib.format.write_array(member, numpy.asanyarray(array), allow_pickle=False)
    return buffer.getvalue()


def array_member(index: int) -> str:
    return "{}.npy".format(index)


# ---- errors ----------------------------------------------------------------------------------------------


def encode_error(error: BaseException, traceback_text: str) -> bytes:
    """Return what the client needs to raise the exception: a line of JSON, and the pickled exception where it
    survives pickling."""
    pickled, problem = _pickle_exception(error)
    error_type = type(error)
    header = {
        "format": CALL_FORMAT,
        "type": "{}.{}".format(error_type.__module__, error_type.__qualname__),
        "message": _text_of(error)[:MAX_MESSAGE_CHARACTERS],
        "traceback": traceback_text[-MAX_TRACEBACK_CHARACTERS:],
        "has_pickle": pickled is not None,
        "problem": problem,
    }
    return json.dumps(header, ensure_ascii=True).encode("ascii") + b"\n" + (pickled or b"")


def _pickle_exception(error: BaseException) -> Tuple[Optional[bytes], str]:
    """Return the pickled exception, or None and why it does not travel: it does not come back from its
    pickle, or it would end the process that gets it."""
    if not isinstance(error, Exception):
        return None, "it would end this process, or is no error, and is not raised here"
    try:
        pickled = _pickle_value(error)
    except Exception as pickle_error:  # whatever the user's own __reduce__ raises
        return None, "it cannot be pickled: {}".format(_text_of(pickle_error)[:1000])
    if len(pickled) > MAX_ERROR_BYTES - MAX_HEADER_BYTES:
        return None, "its pickle takes {:,} bytes".format(len(pickled))
    try:
        restored = ScriptUnpickler(io.BytesIO(pickled), finds_by_name=False).load()
    except Exception as load_error:
        return None, "it cannot be rebuilt from its pickle: {}".format(_text_of(load_error)[:1000])
    if type(restored) is not type(error):
        return None, "its pickle holds another exception"
    return pickled, ""


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as text_error:
        return "(its text raises {})".format(type(text_error).__name__)


# ---- the call --------------------------------------------------------------------------------------------


def read_call(content: bytes, sha256: Optional[str]) -> Tuple[Dict[str, Any], bytes]:
    """Return header and pickle of a call file. Raises CallRefused, before anything is unpickled, for a file
    that is not the one whose hash the request states, and for a Python that cannot load it."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise CallRefused(
            "the call is not the one that the job was requested with: its sha256 is {}, the request's is {}; "
            "see who may write into the run's bucket".format(digest, sha256)
        )
    header_line, _, pickled = content.partition(b"\n")
    header: Dict[str, Any] = json.loads(header_line.decode("utf-8"))
    if str(header["format"]).partition(".")[0] != CALL_FORMAT.partition(".")[0]:
        raise CallRefused(
            "the call has format {}, this program reads {}".format(header["format"], CALL_FORMAT)
        )
    here = "{}.{}".format(*sys.version_info[:2])
    if header["python"] != here:
        raise CallRefused(
            "the function comes from Python {}, and this host has Python {}: functions travel as bytecode, "
            "which differs between them; take an image with Python {}, or submit from Python {}".format(
                header["python"], here, header["python"], here
            )
        )
    return header, pickled


def _cloudpickle() -> Any:
    """The client's own cloudpickle, which was sent: both sides have the same version."""
    import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return cloudpickle


def _let_client_names_be_imported() -> None:
    """A module of the user may decorate functions by ``smlaunch.remote`` and define jobs when it is imported.
    The smlaunch that a host gets from the runtime has no such names: there they have no effect."""
    try:
        import smlaunch
    except ImportError:
        smlaunch = sys.modules["smlaunch"] = ModuleType("smlaunch")
    if not hasattr(smlaunch, "remote"):
        find_other_name = getattr(smlaunch, "__getattr__", None)  # of an older smlaunch in the image

        def find_name(name: str) -> Any:
            if name == "remote":
                return _plain_decorator
            if name.startswith("__"):
                raise AttributeError(name)
            return _NoEffect if find_other_name is None else find_other_name(name)

        smlaunch.__getattr__ = find_name  # type: ignore[method-assign,assignment,unused-ignore]


def _prefer_plain_folders(root: str, packages: Sequence[str]) -> None:
    """Let these packages be the folders of the source, where Python would take an installed package first: a
    folder without ``__init__.py`` comes last, wherever it lies. ``packages``: dotted names, parents first."""
    for package in packages:
        path = os.path.join(root, *package.split("."))
        spec = importlib.util.find_spec(package)
        if spec is None or path not in (spec.submodule_search_locations or ()):
            module = sys.modules[package] = ModuleType(package)
            module.__path__ = [path]


def _plain_decorator(function: Any = None, **_: Any) -> Any:
    """What ``smlaunch.remote`` is on a host: functions stay what they are."""
    return _plain_decorator if function is None else function


class _NoEffectType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _NoEffect(Exception, metaclass=_NoEffectType):
    """A Job, a Target, or another name of the client, on a host. An exception too, which nobody raises."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def find_rank(environ: Any) -> int:
    """Return the number of this process among those that call the function."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        if environ.get(name, "").isdigit():
            return int(environ[name])
    processes = int(environ.get("SMLAUNCH_PROCESSES", "1"))
    host = int(environ.get("SMLAUNCH_HOST_RANK") or environ.get("SM_CURRENT_HOST_RANK") or "0")
    return host * processes + int(environ.get("SMLAUNCH_PROCESS", "0"))


def _call(root: str, call_content: bytes, rank: int) -> Any:
    """Load the function and call it. Raises whatever that raises, and TypeError for a result of rank 0 that
    cannot leave its process."""
    header, pickled = read_call(call_content, os.environ.get(SHA256_VARIABLE))
    # The program's own folder is not the user's, and must not hide modules of the source.
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry) != os.path.join(root, ".smlaunch")]
    library = os.path.join(root, LIBRARY_FOLDER)
    sys.path.insert(0, library)
    try:
        _cloudpickle()
    finally:
        sys.path.remove(library)
    if root not in sys.path:
        sys.path.insert(0, root)
    _let_client_names_be_imported()
    _prefer_plain_folders(root, header["plain_folders"])
    # Its hash is in the request. Not by name: __main__ is this program here.
    function, args, kwargs = ScriptUnpickler(io.BytesIO(pickled), finds_by_name=False).load()
    result = function(*args, **kwargs)
    is_running = inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result)
    if is_running and rank == 0:
        raise TypeError(
            "{} returned a {}, which cannot leave its process; return a list, or the awaited value".format(
                header["function"], type(result).__name__
            )
        )
    return result


def _write_output(name: str, content: bytes) -> str:
    """Write a file that the service uploads; return its SHA-256."""
    folder = os.path.join(os.environ.get("SM_OUTPUT_DATA_DIR") or "/opt/ml/output/data", OUTPUT_FOLDER)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    try:
        with open(path + ".tmp", "wb") as file:
            file.write(content)
        os.replace(path + ".tmp", path)
    except OSError:  # the disk is full: what is there of the file would leave no room for the report of it
        with contextlib.suppress(OSError):
            os.remove(path + ".tmp")
        raise
    return hashlib.sha256(content).hexdigest()


def result_file(result_format: str) -> str:
    return "result.{}".format({JSON: "json", ARRAYS: "zip", PICKLE: "pkl"}[result_format])


def error_file(rank: int) -> str:
    return "error-{}".format(rank)


def _flush_output() -> None:
    """The function may have replaced or closed its output."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()


def _print_line(line: str, log: int) -> None:
    """One write, so that no other thread's output comes between. ``log``: descriptor of the rank's output,
    also where the function has redirected its own."""
    _flush_output()
    os.write(log, (line + "\n").encode("ascii"))


def _report_result(result: Any, log: int) -> None:
    encoded = encode_result(result)
    if len(encoded.content) > MAX_RESULT_BYTES:
        raise ValueError(
            "the result takes {:,} bytes, and at most {:,} are sent back; write it to SM_MODEL_DIR, which is "
            "uploaded, or to S3, and return its address".format(len(encoded.content), MAX_RESULT_BYTES)
        )
    sha256 = _write_output(result_file(encoded.format), encoded.content)
    _print_line(RESULT_LINE.format(RESULT_KIND, encoded.format, len(encoded.content), sha256), log)


def main() -> int:
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    rank = find_rank(os.environ)
    with open(os.path.join(root, CALL_FILE), "rb") as file:
        call_content = file.read()
    log, error_log = os.dup(1), os.dup(2)
    try:
        result = _call(root, call_content, rank)
        if rank == 0:
            _report_result(result, log)
        return 0
    except CallRefused as refused:
        os.write(error_log, "smlaunch: error: {}\n".format(refused).encode("utf-8", "replace"))
        return 2
    except BaseException as error:
        text = "".join(traceback.format_exception(type(error), error, _own_frames(error)))
        content = encode_error(error, text)
        sha256 = _write_output(error_file(rank), content)
        _print_line(ERROR_LINE.format(ERROR_KIND, rank, len(content), sha256), log)
        # As Python does for an exception that nobody caught, and the runtime takes the cause from it.
        _flush_output()
        os.write(error_log, text.encode("utf-8", "replace"))
        return 1


def _own_frames(error: BaseException) -> Any:
    """The traceback without the frames of this program."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return frame


if __name__ == "__main__":
    sys.exit(main())
