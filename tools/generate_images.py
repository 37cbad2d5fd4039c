"""Makes smlaunch/catalog/images.json, registries.json and algorithms.json.

    PYTHON tools/generate_images.py [FOLDER]

PYTHON is one that has the official ``sagemaker`` package; its tables of images and registry accounts are
read as files, nothing of it is imported. The rest is collected facts, kept in tools/catalog_facts: what is
really published, until when it is patched, and what each built-in algorithm takes. Where the two differ the
published tag wins; what only one of them knows is kept with a note that says so. Needs nothing but Python.
FOLDER is where the files go, by default the catalog.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
CATALOG = TOOLS.parent / "smlaunch" / "catalog"
FACTS = TOOLS / "catalog_facts"

OLDEST_PYTHON = (3, 8)
"""What the runtime needs: images with an older one are left out."""

DNS_SUFFIXES = {
    "aws": "amazonaws.com",
    "aws-cn": "amazonaws.com.cn",
    "aws-eusc": "amazonaws.eu",
    "aws-iso": "c2s.ic.gov",
    "aws-iso-b": "sc2s.sgov.gov",
    "aws-iso-e": "cloud.adc-e.uk",
    "aws-iso-f": "csp.hci.ic.gov",
    "aws-us-gov": "amazonaws.com",
}
"""From botocore's partitions.json."""

COLUMNS = ("repository", "accounts", "python", "end_of_patch", "tags", "note")

FAMILIES = {
    "pytorch": "PyTorch",
    "tensorflow": "TensorFlow",
    "huggingface": "Hugging Face transformers",
    "smp": "SMP v2 with PyTorch",
    "pytorch-neuronx": "PyTorch Neuron",
    "huggingface-neuronx": "Hugging Face transformers on Neuron",
    "sklearn": "scikit-learn",
    "xgboost": "XGBoost",
    "spark": "Spark",
    "mxnet": "MXNet",
}
"""Family -> how it is called in a sentence."""

RETIRED = {"mxnet": "MXNet is retired: AWS's last images of it are of 1.9.0 and get no patches"}

REPOSITORIES = {
    "pytorch-training": "pytorch",
    "pytorch": "pytorch",
    "tensorflow-training": "tensorflow",
    "huggingface-pytorch-training": "huggingface",
    "huggingface-pytorch-training-neuronx": "huggingface-neuronx",
    "pytorch-training-neuronx": "pytorch-neuronx",
    "sagemaker-scikit-learn": "sklearn",
    "sagemaker-xgboost": "xgboost",
}
"""Of published images -> family."""

NOTES = {
    "short": {
        "text": "its tag is the SageMaker SDK's short one, which may be moved; the image is no longer in the "
        "published list, so past its end of patch"
    },
    "unlisted": {"text": "known from the SageMaker SDK alone: it is not in the published list"},
    "ahead": {"text": "unconfirmed: the SageMaker SDK alone names it, no published tag is known"},
    "not-in-sdk": {
        "text": "published, but the SageMaker SDK cannot resolve it: that this region's registry has it is "
        "unconfirmed"
    },
    "two-tags": {"text": "its published tag; the SageMaker SDK makes up another, ending in -cpu-py3"},
    "cpu-listed": {
        "processor": "gpu",
        "text": "unconfirmed: it is published as a CPU image; 1.7-1 is the last that is known to use GPUs",
    },
    "spark": {
        "text": "unconfirmed: its published tags are not known; this is the first of its container versions, "
        "as the SageMaker SDK writes it"
    },
}

SMP_CUDA = {"2.0.1": "cu118", "2.5.1": "cu124"}
SMP_CUDA_ELSE = "cu121"
"""Also of 2.0.1 on P5: ``get_training_image_uri`` of the SageMaker SDK, which has this in its code and not in
its tables."""

SMP_VERSIONS = {"2.0.1": "2.0.1", "2.1.2": "2.1.2", "2.2.0": "2.3.1"} | {
    "2.3.1": "2.5.0",
    "2.4.1": "2.7.0",
    "2.5.1": "2.8.0",
}
"""PyTorch's -> the SDK's entry. All that it has aliases for, in full."""


def natural(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


class Sdk:
    """The tables inside the installed package."""

    def __init__(self) -> None:
        core = find_spec("sagemaker.core")
        if core is None or not core.submodule_search_locations:
            sys.exit(f"{sys.executable} has no sagemaker package of version 3")
        self.folder = Path(next(iter(core.submodule_search_locations))) / "image_uri_config"
        self.version = (
            f"sagemaker {installed_version('sagemaker')} (core {installed_version('sagemaker-core')})"
        )

    def versions(self, name: str, scope: str = "training") -> dict[str, Any]:
        document = json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))
        table: dict[str, Any] = document.get(scope, document)["versions"]
        return table


class Registries:
    """Tables of accounts by region, each kept once under a name."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, str]] = {}

    def name(self, accounts: Mapping[str, str], wanted: str) -> str:
        """Of an equal table if there is one, else ``wanted``."""
        for name, table in self.tables.items():
            if table == accounts:
                return name
        self.tables[wanted] = dict(accounts)
        return wanted

    def document(self) -> dict[str, Any]:
        """Regions by account: half as long as the other way round."""
        rows: dict[str, dict[str, str]] = {}
        for name, table in self.tables.items():
            regions: dict[str, list[str]] = {}
            for region, account in sorted(table.items()):
                regions.setdefault(account, []).append(region)
            rows[name] = {account: " ".join(names) for account, names in sorted(regions.items())}
        return rows


Row = list[Any]


class Images:
    def __init__(self, sdk: Sdk, registries: Registries, published: list[dict[str, Any]]) -> None:
        self.sdk, self.registries, self.published = sdk, registries, published
        self.rows: dict[str, dict[str, Row]] = {family: {} for family in FAMILIES}

    def collect(self) -> None:
        newest = max(self.sdk.versions("pytorch-amzn2023").values(), key=lambda row: len(row["registries"]))
        self.everywhere = self.registries.name(newest["registries"], "dlc")
        self._deep_learning()
        self._hugging_face()
        self._smp()
        self._classic()
        self._neuron()
        self._spark()
        self._published()

    def _add(
        self, family: str, version: str, row: Mapping[str, Any], tags: dict[str, str], note: str
    ) -> None:
        pythons = [name for name in row.get("py_versions") or () if name != "py3"]
        python = pythons[-1] if pythons else None
        if python is not None and (int(python[2]), int(python[3:] or 0)) < OLDEST_PYTHON:
            return
        accounts = self.registries.name(row["registries"], f"{family}-{version}")
        self.rows[family][version] = [row["repository"], accounts, python, None, tags, note]

    def _deep_learning(self) -> None:
        for family in ("pytorch", "tensorflow", "mxnet"):
            for version, row in self.sdk.versions(family).items():
                if "registries" not in row:
                    continue  # two images of one version: only MXNet 1.4.1, which is too old
                tags = {p: f"{version}-{p}-{row['py_versions'][-1]}" for p in ("cpu", "gpu")}
                self._add(family, version, row, tags, "short")
        for version, row in self.sdk.versions("pytorch-amzn2023").items():
            tags = {p: f"{row['tag_prefix']}-{rest}" for p, rest in row["container_version"].items()}
            self._add("pytorch", version, row, tags, "ahead")

    def _hugging_face(self) -> None:
        for version, bases in self.sdk.versions("huggingface").items():
            torches = [base for base in bases if base.startswith("pytorch")]
            for base in sorted(torches, key=natural)[-1:]:
                row = bases[base]
                rest = "-".join(
                    filter(None, [row["py_versions"][-1], row.get("container_version", {}).get("gpu")])
                )
                tag = f"{base.removeprefix('pytorch')}-transformers{version}-gpu-{rest}"
                self._add("huggingface", version, row, {"gpu": tag}, "unlisted")

    def _smp(self) -> None:
        table = self.sdk.versions("pytorch-smp")
        for version, entry in SMP_VERSIONS.items():
            row = table[entry]
            stem = f"{version}-gpu-{row['py_versions'][-1]}"
            tags = {"gpu": f"{stem}-{SMP_CUDA.get(version, SMP_CUDA_ELSE)}"}
            if version == "2.0.1":
                tags["gpu/p5"] = f"{stem}-{SMP_CUDA_ELSE}"
            self._add("smp", version, row, tags, "")

    def _classic(self) -> None:
        for family, gpus in (("sklearn", False), ("xgboost", True)):
            for version, row in self.sdk.versions(family).items():
                if row["repository"] == "xgboost":
                    continue  # version "1", the algorithm of before, which runs no scripts
                only_cpu = "cpu" in (row.get("processors") or ())
                tag = "-".join([version, *(["cpu", *row["py_versions"]] if only_cpu else [])])
                tags = {"cpu": tag, "gpu": tag} if gpus and not only_cpu else {"cpu": tag}
                self._add(family, version, row, tags, "unlisted")

    def _neuron(self) -> None:
        for version, row in self.sdk.versions("pytorch-neuron").items():
            (sdk,) = row["sdk_versions"]
            tag = f"{version}-neuron-{row['py_versions'][-1]}-{sdk}-{row['container_version']['trn']}"
            self._add("pytorch-neuronx", f"{version}-{sdk}", row, {"neuron": tag}, "unlisted")

    def _spark(self) -> None:
        for version, row in self.sdk.versions("spark", "processing").items():
            self._add("spark", version, row, {"cpu": f"{version}-cpu-{row['py_versions'][-1]}-v1"}, "spark")

    def _published(self) -> None:
        for image in self.published:
            family = REPOSITORIES[image["repository"]]
            rows = self.rows[family]
            version, processor = _version(family, image["tag"]), image["processor"].removesuffix("x")
            known = self._in_sdk(family, version, image["tag"])
            accounts = rows[known][1] if known else self.everywhere
            note = "" if known else "not-in-sdk"
            if family == "sklearn":
                note = "two-tags"
            tags = {processor: image["tag"]}
            if family == "xgboost":
                tags, note = {"cpu": image["tag"], "gpu": image["tag"]}, "cpu-listed"
            if known and known != version:
                del rows[known]
            present = rows.get(version)
            if present is not None and present[3] == image["end_of_patch"] and not present[5]:
                tags = {**present[4], **tags}
            python = image["python"] or (present[2] if present else None)
            rows[version] = [image["repository"], accounts, python, image["end_of_patch"], tags, note]

    def _in_sdk(self, family: str, version: str, tag: str) -> str | None:
        """The SDK's entry for a published image: its version, or the two numbers it begins with."""
        rows = self.rows[family]
        if version in rows:
            return version
        short = ".".join(version.split(".")[:2])
        return short if short in rows and rows[short][5] == "ahead" else None

    def document(self) -> dict[str, Any]:
        families = {}
        for family, title in FAMILIES.items():
            rows = dict(sorted(self.rows[family].items(), key=lambda item: (natural(item[0]), item[0])))
            if family in RETIRED:
                families[family] = {"title": title, "retired": RETIRED[family], "versions": {}}
                continue
            families[family] = {"title": title, "defaults": _defaults(rows), "versions": rows}
        return {"dns_suffixes": DNS_SUFFIXES, "notes": NOTES, "columns": COLUMNS, "families": families}


def _version(family: str, tag: str) -> str:
    """What is asked for to get the image: transformers' for Hugging Face's, Neuron's SDK for Neuron's."""
    if family.startswith("huggingface"):
        return re.findall(r"-transformers([\d.]+)-", tag)[0]
    number = re.split(r"-(?:cpu|gpu|cu\d+|neuronx)-", tag)[0]
    sdk = re.findall(r"-(sdk[\d.]+)-", tag) if family == "pytorch-neuronx" else []
    return "-".join([number, *sdk])


def _defaults(rows: dict[str, Row]) -> dict[str, str]:
    """Per processor: patched the longest, else the newest of those that are surely there and of use."""

    def rank(version: str) -> tuple[bool, str, tuple[int, ...]]:
        return rows[version][5] not in ("short", "unlisted"), rows[version][3] or "", natural(version)

    defaults = {}
    for processor in sorted({name for row in rows.values() for name in row[4] if "/" not in name}):
        sure = [
            version
            for version, row in rows.items()
            if processor in row[4]
            and row[5] != "ahead"
            and NOTES.get(row[5], {}).get("processor") != processor
        ]
        defaults[processor] = max(sure, key=rank)
    return defaults


def algorithms(sdk: Sdk, registries: Registries, facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for row in facts["algorithms"]:
        images = {}
        if not row["jumpstart"]:
            name = row["id"]
            for version, entry in sdk.versions(name).items():
                if entry["repository"] == "sagemaker-xgboost":
                    continue  # one of the family of that name
                accounts = registries.name(entry["registries"], name)
                images[version] = [entry["repository"], accounts]
            assert len(images) <= 1, name
        yield {**row, "images": images}


def lines(document: Mapping[str, Any], depth: int) -> str:
    """JSON with one line per entry ``depth`` levels down: small, and a change shows as one line of a diff."""
    if depth == 0 or not isinstance(document, Mapping) or not document:
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    inner = ",\n".join(f"{json.dumps(key)}:{lines(value, depth - 1)}" for key, value in document.items())
    return "{\n" + inner + "\n}"


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CATALOG
    published = json.loads((FACTS / "published_images.json").read_text(encoding="utf-8"))
    built_in = json.loads((FACTS / "algorithms.json").read_text(encoding="utf-8"))
    sdk, registries = Sdk(), Registries()
    images = Images(
        sdk, registries, [dict(zip(published["columns"], row, strict=True)) for row in published["images"]]
    )
    images.collect()
    rows = {row["id"]: row for row in algorithms(sdk, registries, built_in)}
    source = {
        "registries": sdk.version,
        "published": f"{published['source']} ({published['as_of']})",
        "algorithms": f"{built_in['source']} ({built_in['as_of']})",
    }
    documents = {
        "images": ({"source": source, **images.document()}, 4),
        "algorithms": ({"source": source, "algorithms": rows}, 2),
        "registries": ({"source": source, "tables": registries.document()}, 3),
    }
    for name, (document, depth) in documents.items():
        (folder / f"{name}.json").write_text(lines(document, depth) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
