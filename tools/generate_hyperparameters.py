"""Makes smlaunch/catalog/hyperparameters.json: what each built-in algorithm takes, and who says so.

    python tools/generate_hyperparameters.py SDK GUIDE CONTAINER

SDK: the folder that has the ``sagemaker`` package of version 2, whose estimators validate hyperparameters
(``sagemaker/amazon``); nothing of it is imported. GUIDE: a clone of
awsdocs/amazon-sagemaker-developer-guide, whose last commit with pages is GUIDE_COMMIT. CONTAINER: a clone of
aws/sagemaker-xgboost-container. Where sources differ, the wider range wins, so that no value is refused that
one of them allows. What is neither in the package nor on a page that could be read is in
tools/catalog_facts/hyperparameters.json, with its source.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
OUTPUT = TOOLS.parent / "smlaunch" / "catalog" / "hyperparameters.json"
FACTS = TOOLS / "catalog_facts" / "hyperparameters.json"

GUIDE_COMMIT = "a869fa5c9bd1074a85bd23748d0463e322ad8939"

PAGES = {
    "autogluon-tabular": "autogluon-tabular-hyperparameters",
    "blazingtext": "blazingtext_hyperparameters",
    "catboost": "catboost-hyperparameters",
    "forecasting-deepar": "deepar_hyperparameters",
    "factorization-machines": "fact-machines-hyperparameters",
    "image-classification": "IC-Hyperparameter",
    "image-classification-tensorflow": "IC-TF-Hyperparameter",
    "ipinsights": "ip-insights-hyperparameters",
    "kmeans": "k-means-api-config",
    "knn": "kNN_hyperparameters",
    "lda": "lda_hyperparameters",
    "lightgbm": "lightgbm-hyperparameters",
    "linear-learner": "ll_hyperparameters",
    "ntm": "ntm_hyperparameters",
    "object-detection": "object-detection-api-config",
    "object-detection-tensorflow": "object-detection-tensorflow-Hyperparameter",
    "object2vec": "object2vec-hyperparameters",
    "pca": "PCA-reference",
    "randomcutforest": "rcf_hyperparameters",
    "semantic-segmentation": "segmentation-hyperparameters",
    "seq2seq": "seq-2-seq-hyperparameters",
    "tabtransformer": "tabtransformer-hyperparameters",
    "text-classification-tensorflow": "text-classification-tensorflow-Hyperparameter",
    "xgboost": "xgboost_hyperparameters",
}

SDK_MODULES = {
    "factorization-machines": "factorization_machines",
    "ipinsights": "ipinsights",
    "kmeans": "kmeans",
    "knn": "knn",
    "lda": "lda",
    "linear-learner": "linear_learner",
    "ntm": "ntm",
    "object2vec": "object2vec",
    "pca": "pca",
    "randomcutforest": "randomcutforest",
}

CONTAINER_FILE = "src/sagemaker_xgboost_container/algorithm_mode/hyperparameter_validation.py"

TRUTHS = frozenset(("true", "false"))


@dataclass(frozen=True)
class Row:
    """What one or several sources say of a hyperparameter."""

    kind: str
    """``integer``, ``number``, ``truth`` or ``text``."""

    low: float | None = None
    high: float | None = None
    excludes_low: bool = False
    excludes_high: bool = False
    values: tuple[str, ...] = ()
    """Besides the range; of a text without any, every value is right."""

    sources: tuple[str, ...] = field(default=())

    def document(self) -> dict[str, Any]:
        entries = {
            "kind": self.kind,
            "low": self.low,
            "high": self.high,
            "excludes_low": self.excludes_low or None,
            "excludes_high": self.excludes_high or None,
            "values": list(self.values) or None,
            "sources": list(self.sources),
        }
        return {key: value for key, value in entries.items() if value is not None}


# ---- the developer guide ---------------------------------------------------------------------------------

_NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FREE_TEXT = re.compile(r"list|array|tuple|nested|combination|alphanumeric|followed by|refer to")
_LINK_TO_REST = re.compile(r"\[\[See the AWS documentation[^)]*\)")
_TOKEN = re.compile(r"`\s*\"?([^`\"]+?)\"?\s*`|\*([A-Za-z][^*\s]*)\*|['\"]([A-Za-z][^'\"\s]*)['\"]")


def guide_rows(page: str) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a page's tables."""
    for line in page.replace("\\", "").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 4 or cells[1] in ("Parameter Name", "") or set(cells[1]) <= {"-", " "}:
            continue
        name, text = cells[1].strip("` "), " ".join(cells[2:])
        text = _LINK_TO_REST.sub("", text).partition("Valid values:")[2]
        values_text, _, default_text = re.sub(r"Default\w* ?(?:values?)?:", "\0", text).partition("\0")
        row = _with_default(_read_values(values_text.strip()), default_text)
        yield name, replace(row, sources=("guide",))


def _with_default(row: Row, text: str) -> Row:
    """A default is allowed, whatever the valid values say."""
    if row.kind in ("integer", "number") and re.match(r"[\s`\"]*auto[\s`\"]*$", text):
        return replace(row, values=tuple(dict.fromkeys((*row.values, "auto"))))
    match = re.match(rf"\s*`?({_NUMBER})`?\s*$", text)
    default = None if match is None else _to_number(match[1])
    if default is None or row.low is None or default > row.low:
        return row
    return replace(row, low=default, excludes_low=False)


def _read_values(text: str) -> Row:
    """Read "Valid values: ...", such as ``Float. Range: [0,1].``"""
    text = re.split(r"Suggested|The recommended", text.replace("**Optional**", ""))[0]
    words = text.lower().replace("∞", "inf")
    found = [next(filter(None, match)).strip("' ") for match in _TOKEN.findall(text)]
    tokens = tuple(dict.fromkeys(found))
    names = tuple(token for token in tokens if not re.fullmatch(_NUMBER + r"|∞|epochs|feature_dim", token))
    if _FREE_TEXT.search(words) or '["' in text or not text:
        return Row("text")
    is_number = re.search(r"float(?!\d)|fraction", words) is not None
    is_integer = re.search(r"integer", words) is not None and not is_number
    listed = _listed_numbers(words)
    if listed:
        return Row("text", values=(*listed, *names))
    if is_number or is_integer:
        low, high, excludes_low = _read_range(words.replace("`", "").replace('"', ""))
        if "empty string" in words:
            names = (*names, "")
        if re.search(r"\d\.\d", words):  # a page calls it an integer, and its range is of fractions
            is_integer = False
        kind = "integer" if is_integer else "number"
        return _normalize(Row(kind, low=low, high=high, excludes_low=excludes_low, values=names))
    if {token.lower() for token in names} <= TRUTHS and names:
        return Row("truth")
    return Row("text", values=names)


def _normalize(row: Row) -> Row:
    """Of integers the ends of a range are always allowed."""
    if row.kind != "integer":
        return row
    low = None if row.low is None else int(row.low) + row.excludes_low
    high = None if row.high is None else int(row.high) - row.excludes_high
    return replace(row, low=low, high=high, excludes_low=False, excludes_high=False)


def _listed_numbers(words: str) -> tuple[str, ...]:
    """Numbers that are listed one by one: ``0 or 1``, ``[18, 34, 50]``, ``1, 2, 3``."""
    if re.match(r"0 ?(?:or|/) ?1\b", words):
        return ("0", "1")
    lists = re.findall(r"\[((?:\d+, ?){2,}\d+)\]", words)
    one_of = re.search(r"(?:one of the following|any of the following)[^:]*: ?\(?(.*)", words)
    if not lists and one_of:
        numbers = re.findall(r"(?<![\w.])\d+(?![\w.])", one_of[1])
        return tuple(numbers) if len(numbers) > 2 else ()
    return tuple(number for text in lists for number in re.findall(r"\d+", text))


def _read_range(words: str) -> tuple[float | None, float | None, bool]:
    """Return lowest and highest value, and whether the lowest itself is excluded. Round brackets of a range
    are taken for square ones: pages mix them."""
    number = rf"({_NUMBER}|inf)"
    for pattern in (
        rf"[\[(] ?{number} ?(?:,|or) ?{number} ?[\])]",
        rf"min: {number}, max: {number}",
        rf"{number} ?[≤<] ?(?:positive )?(?:integer|float) ?[≤<] ?{number}",
        rf"from {number} to {number}",
        rf"between.*? {number} and {number}",
    ):
        match = re.search(pattern, words)
        if match is not None:
            low = _to_number(match[1])
            excludes_low = re.search(r"0 ?< ?float", words) is not None
            return low, _to_number(match[2]), excludes_low
    for pattern, excludes_low in (
        (rf"(?:min:|≥) ?{number}", False),
        (rf"{number} ?≤ ?(?:integer|float)", False),
        (rf"(?:>|larger than|greater than) ?{number}", True),
    ):
        match = re.search(pattern, words)
        if match is not None:
            return _to_number(match[1]), None, excludes_low
    if "-1" in words:
        return -1, None, False
    if "non-negative" in words:
        return 0, None, False
    if "positive" in words:
        return (0, None, True) if re.search("float|fraction", words) else (1, None, False)
    return None, None, False


def _to_number(text: str) -> float | None:
    if text == "inf":
        return None
    number = float(text.replace(",", ""))
    return int(number) if number == int(number) else number


# ---- the SageMaker SDK -----------------------------------------------------------------------------------


def sdk_rows(source: str) -> Iterator[tuple[str, Row]]:
    """Yield the hyperparameters of an estimator: ``hp("k", gt(1), "...", int)``."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "hp":
            continue
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        name = ast.literal_eval(arguments[0])
        data_type = next((ast.unparse(item) for item in arguments[2:] if isinstance(item, ast.Name)), "str")
        row = Row({"int": "integer", "float": "number", "bool": "truth"}.get(data_type, "text"))
        for check in ast.walk(arguments[1]) if len(arguments) > 1 else ():
            if isinstance(check, ast.Call):
                row = _with_check(row, getattr(check.func, "id", ""), check.args)
        yield name, replace(_normalize(row), sources=("sdk",))
    if 'force_dense="True"' in source:
        yield "force_dense", Row("truth", sources=("sdk",))


def _with_check(row: Row, check: str, arguments: list[ast.expr]) -> Row:
    if check in ("gt", "ge"):
        return replace(row, low=ast.literal_eval(arguments[0]), excludes_low=check == "gt")
    if check in ("lt", "le"):
        return replace(row, high=ast.literal_eval(arguments[0]), excludes_high=check == "lt")
    if check == "isin":
        return replace(row, values=tuple(str(ast.literal_eval(value)) for value in arguments))
    return row


# ---- XGBoost's container ---------------------------------------------------------------------------------


def container_rows(source: str) -> Iterator[tuple[str, Row]]:
    """Yield what the container declares: ``hpv.IntegerHyperparameter(name="max_depth", range=...)``."""
    kinds = {"IntegerHyperparameter": "integer", "ContinuousHyperparameter": "number"}
    tree = ast.parse(source)
    validators = {
        node.name: ast.literal_eval(node.decorator_list[0].args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and node.decorator_list
        and isinstance(node.decorator_list[0], ast.Call)
        and isinstance(node.decorator_list[0].args[0], ast.List)
    }
    aliases: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "declare_alias":
            original, alias = map(ast.literal_eval, node.args)
            aliases.setdefault(original, []).append(alias)
    for node in ast.walk(tree):
        kind_name = getattr(node.func, "attr", "") if isinstance(node, ast.Call) else ""
        if not kind_name.endswith("Hyperparameter") or not isinstance(node, ast.Call):
            continue
        options = {keyword.arg: keyword.value for keyword in node.keywords}
        name, declared = ast.literal_eval(options["name"]), options["range"]
        row = Row(kinds.get(kind_name, "text"), sources=("container",))
        if isinstance(declared, ast.Call) and row.kind != "text":
            numbers = {k.arg: _number_of(k.value) for k in declared.keywords if k.arg != "scale"}
            row = replace(
                row,
                low=numbers.get("min_closed", numbers.get("min_open")),
                high=numbers.get("max_closed", numbers.get("max_open")),
                excludes_low="min_open" in numbers,
                excludes_high="max_open" in numbers,
            )
        elif kind_name == "CategoricalHyperparameter":
            is_named = isinstance(declared, ast.Name)
            values = validators.get(ast.unparse(declared), ()) if is_named else _literal_or_nothing(declared)
            row = replace(row, kind="truth") if set(values) == TRUTHS else replace(row, values=tuple(values))
        for each in (name, *aliases.get(name, ())):
            yield each, _normalize(row)


def _number_of(node: ast.expr) -> float:
    """Return a number that is written as ``-(2**31)``."""
    if isinstance(node, ast.UnaryOp):
        return -_number_of(node.operand)
    if isinstance(node, ast.BinOp):
        left, right = _number_of(node.left), _number_of(node.right)
        return float(left**right) if isinstance(node.op, ast.Pow) else left - right
    number: float = ast.literal_eval(node)
    return number


def _literal_or_nothing(node: ast.expr) -> tuple[str, ...]:
    return tuple(ast.literal_eval(node)) if isinstance(node, ast.List) else ()


# ---- together --------------------------------------------------------------------------------------------


def merge(first: Row, second: Row) -> Row:
    """Return what either source allows. A source that states no range or no values says nothing of them."""
    sources = (*first.sources, *second.sources)
    kinds = {first.kind, second.kind}
    values = tuple(dict.fromkeys((*first.values, *second.values)))
    is_silent = [row.kind == "text" and not row.values for row in (first, second)]
    if any(is_silent):
        return replace(second if is_silent[0] else first, sources=sources)
    if kinds == {"truth", "text"}:
        return Row("text", values=tuple(dict.fromkeys((*values, "true", "false"))), sources=sources)
    if kinds <= {"integer", "number"}:
        low, excludes_low = _wider(first.low, first.excludes_low, second.low, second.excludes_low, min)
        high, excludes_high = _wider(first.high, first.excludes_high, second.high, second.excludes_high, max)
        kind = "number" if "number" in kinds else "integer"
        return Row(kind, low, high, excludes_low, excludes_high, values, sources)
    numeric = first if first.kind in ("integer", "number") else second
    return replace(numeric, values=values, sources=sources)


def _wider(
    first: float | None, excludes_first: bool, second: float | None, excludes_second: bool, choose: Any
) -> tuple[float | None, bool]:
    if first is None or second is None:
        return (second, excludes_second) if first is None else (first, excludes_first)
    if first == second:
        return first, excludes_first and excludes_second
    chosen = choose(first, second)
    return chosen, excludes_first if chosen == first else excludes_second


def add(rows: dict[str, Row], found: Iterator[tuple[str, Row]]) -> None:
    """Add what a source says. Within one source the same name again means either."""
    of_source: dict[str, Row] = {}
    for name, row in found:
        of_source[name] = (
            replace(merge(of_source[name], row), sources=row.sources) if name in of_source else row
        )
    for name, row in of_source.items():
        rows[name] = merge(rows[name], row) if name in rows else row


def show(repository: str, commit: str, path: str) -> str:
    return subprocess.run(
        ["git", "-C", repository, "show", f"{commit}:{path}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def collect(sdk: Path, guide: str, container: str) -> dict[str, dict[str, Row]]:
    base_rows = dict(sdk_rows((sdk / "sagemaker/amazon/amazon_estimator.py").read_text()))
    algorithms: dict[str, dict[str, Row]] = {}
    for algorithm, page in PAGES.items():
        rows: dict[str, Row] = {}
        add(rows, guide_rows(show(guide, GUIDE_COMMIT, f"doc_source/{page}.md")))
        if algorithm in SDK_MODULES:
            module = (sdk / f"sagemaker/amazon/{SDK_MODULES[algorithm]}.py").read_text()
            add(rows, iter({**base_rows, **dict(sdk_rows(module))}.items()))
        if algorithm == "xgboost":
            add(rows, container_rows(show(container, "HEAD", CONTAINER_FILE)))
        algorithms[algorithm] = rows
    return algorithms


def main() -> None:
    sdk, guide, container = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    facts: Mapping[str, Any] = json.loads(FACTS.read_text(encoding="utf-8"))
    head = subprocess.run(
        ["git", "-C", container, "rev-parse", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    version = next(sdk.glob("sagemaker-2*.dist-info")).name.split("-")[1].removesuffix(".dist")
    sources = {
        "guide": f"awsdocs/amazon-sagemaker-developer-guide, commit {GUIDE_COMMIT[:8]} (2023-06)",
        "sdk": f"sagemaker {version}, sagemaker/amazon",
        "container": f"aws/sagemaker-xgboost-container, commit {head[:8]}, {CONTAINER_FILE}",
        **facts["sources"],
    }
    lines = [f'"sources":{json.dumps(sources, ensure_ascii=False)}', '"algorithms":{']
    algorithms = collect(sdk, guide, container)
    for number, (algorithm, rows) in enumerate(sorted(algorithms.items())):
        documents = {name: row.document() for name, row in rows.items()}
        documents |= facts["algorithms"].get(algorithm, {})
        entry = {"page": PAGES[algorithm], "is_complete": algorithm not in facts["incomplete"]}
        body = ",\n".join(
            f"  {json.dumps(name)}:{json.dumps(document, ensure_ascii=False, separators=(',', ':'))}"
            for name, document in sorted(documents.items())
        )
        comma = "," if number + 1 < len(algorithms) else ""
        lines.append(f'"{algorithm}":{json.dumps(entry)[:-1]},"hyperparameters":{{\n{body}\n}}}}{comma}')
    text = "{\n" + lines[0] + ",\n" + "\n".join(lines[1:]) + "\n}\n}\n"
    json.loads(text)
    OUTPUT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
