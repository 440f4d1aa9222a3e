"""A training file: a dozen fields of ours, and options of transformers and of peft."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    PrivateAttr,
    StrictBool,
    StrictStr,
    ValidationError,
    field_validator,
    model_validator,
)

from ablations.engines.options import BackendChoice
from ablations.machine.overrides import parse_settings, with_settings
from ablations.recipe_commands.find import find_recipe, nearest_file
from ablations.train.regimes import ADAPTERS, AdapterFusion, Full, Lora, Prefix, Regime
from layerswap_method.checkpoint.lora import unsupported_kind
from layerswap_method.errors import InputError
from layerswap_method.frozen import Frozen
from layerswap_method.recipe.kinds import document_kind
from layerswap_method.recipe.references import is_folder, is_there, resolve_from
from layerswap_method.recipe.strict_yaml import read_yaml
from layerswap_method.recipe.validation import validation_texts

_ROWS, _HUB = ("prompt", "answer", "messages", "where"), ("subset", "split", "revision")
_KINDS = {"path": _ROWS, "hub": _ROWS + _HUB, "pocket": (), "config": ()}
"""Kind of source -> the fields that it has besides `weight`."""

LEARNING_RATE = 5.0e-5
"""Learning rate where `trainer` says none: transformers' default, and a usual one for full training
of about 100 M weights. Models of billions of weights take less (the paper's files 1e-7 to 4e-6), a
LoRA and the tiny pocket models more."""

_Scalar = StrictStr | bool | int | float


class DataEntry(Frozen):
    """Rows to train on: a file (`path`), a data set (`hub`), the `pocket` world or a `config`."""

    path: StrictStr | None = None
    """File of one JSON object a line, from the folder of the training file, else from the working
    directory."""
    hub: StrictStr | None = None
    """Id, such as ``microsoft/orca-math-word-problems-200k``, or a folder ``datasets`` can read."""
    pocket: Literal["task", "language"] | None = None
    """English math, or translation and Swahili facts, drawn with the seed of the run."""
    config: StrictStr | None = None
    """Another training file, all of whose sources are taken. Two of them are joint training, the
    baseline of the paper's Table 2."""
    weight: float = Field(1.0, gt=0, le=1e9)
    """Share of `TrainConfig.samples`, relative to the other sources."""
    subset: StrictStr | None = None
    """Name of the hub data set's configuration."""
    split: StrictStr = "train"
    """Split of the hub data set; slices such as ``train[:1000]`` work."""
    revision: StrictStr | None = None
    """Commit, branch or tag of the hub data set; None for the newest."""
    prompt: StrictStr = "{prompt}"
    """Text without loss; ``{name}`` is a field of the row, ``{a.b}`` a field of a field."""
    answer: StrictStr = "{answer}"
    """Text with loss, written like `prompt`."""
    messages: StrictStr | None = None
    """Field with a list of ``{role, content}``, in place of `prompt` and `answer`, for ``template:
    chat``. The loss is on the messages of the assistant."""
    where: dict[StrictStr, tuple[_Scalar, ...] | _Scalar] = Field(default_factory=dict)
    """Field -> value or values; other rows are left out. A field that is missing is an error."""

    @property
    def name(self) -> str:
        """Return the source in words."""
        if self.hub is not None:
            return ":".join(filter(None, (self.hub, self.subset, self.split)))
        return self.path or self.config or f"pocket:{self.pocket}"

    @model_validator(mode="after")
    def _one_kind(self) -> DataEntry:
        kinds = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            raise ValueError(
                f"name one of {', '.join(_KINDS)}; here: {' and '.join(kinds) or 'none'}"
            )
        fields = {"weight", *kinds, *_KINDS[kinds[0]]}
        if self.messages is not None:
            fields -= {"prompt", "answer"}
        if unused := ", ".join(sorted(self.model_fields_set - fields)):
            raise ValueError(f"{unused}: not for such a source; leave it out")
        if "}" not in self.answer.partition("{")[2]:
            raise ValueError(f"answer is {self.answer!r}; name a field in braces, such as {{text}}")
        return self


class Select(Frozen):
    """The choice of the checkpoints that stay: those with the best scores (paper, section 3.1)."""

    tasks: tuple[StrictStr | tuple[StrictStr, ...], ...] = Field(min_length=1)
    """lm-eval tasks; a list of tasks counts as one, by its mean. A checkpoint's score is the mean
    of them, each by its first metric."""
    secondary: tuple[StrictStr | tuple[StrictStr, ...], ...] = ()
    """Tasks on which a checkpoint should be above the base, by their mean; those that are come
    first. The paper: "we also ensure slight improvement"."""
    include_path: StrictStr | tuple[StrictStr, ...] | None = None
    """Folder of task files, or a list of them, from the working directory; without it, the shipped
    tasks."""
    data_dir: StrictStr | None = None
    """Folder with the data of shipped tasks, in place of the hub."""
    limit: int | None = Field(None, ge=1)
    """Items per task."""
    keep: int = Field(3, ge=1)
    """Checkpoints that stay; the best one becomes the expert."""
    backend: BackendChoice = "auto"
    batch_size: int = Field(64, ge=1)
    """Sequences at once."""


class TrainConfig(Frozen):
    """One training run."""

    base: StrictStr
    """The model to start from: a folder, of the training file's or else of the working directory,
    or a hub id."""
    regime: Regime = Full()
    """The weights that are trained, and how; a name alone stands for its defaults."""
    data: tuple[DataEntry, ...] = Field(min_length=1)
    """Sources that are mixed by their weights."""
    template: Literal["plain", "chat"] = "plain"
    """``plain`` joins prompt and answer as they are; ``chat`` uses the tokenizer's template."""
    samples: int = Field(ge=1)
    """Rows to train on, in all. Sources that are too short are repeated."""
    held_out: int = Field(32, ge=0)
    """Rows held back from the training; the drift of the hidden states is measured on them."""
    batch_size: int = Field(4, ge=1)
    """Rows of one optimiser step, over all processes. ``trainer.per_device_train_batch_size`` of
    them go through a process at once, by default as many as take about 4 GB."""
    max_length: int = Field(2048, ge=8)
    """Longest row in tokens; longer rows are cut at the end."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed of the choice and order of rows, of new weights (adapters), and of dropout."""
    select: Select | None = None
    """The choice of checkpoints; None takes the last one and keeps all."""
    measure: StrictBool = True
    """Whether the divergence from the base is measured at the end."""
    trainer: dict[StrictStr, Any] = Field(default_factory=dict)
    """Options of transformers' ``TrainingArguments``, by its names and with its defaults (the
    learning rate's is `LEARNING_RATE`); without those that fields here decide. Trained weights are
    float32 whatever ``bf16`` says."""
    lora: dict[StrictStr, Any] = Field(default_factory=dict)
    """Options of peft's ``LoraConfig``, by its names and with its defaults, for the regime lora."""
    _file: str = PrivateAttr("the training file")

    @property
    def writes_adapter(self) -> bool:
        """Whether the expert is an adapter on its base; else it is a whole checkpoint."""
        is_merged = isinstance(self.regime, Lora) and self.regime.merge
        return isinstance(self.regime, ADAPTERS) and not is_merged

    @property
    def file(self) -> str:
        """The file that it was read from, for messages on what it says."""
        return self._file

    @field_validator("regime", mode="before")
    @classmethod
    def _name_alone(cls, regime: Any) -> Any:
        return {"kind": regime} if isinstance(regime, str) else regime

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        for name in ("gradient_checkpointing", "activation_checkpointing"):
            if isinstance(self.regime, Prefix) and self.trainer.get(name):
                raise ValueError(
                    f"trainer.{name}: peft's prefix tuning cannot do it; set it to false"
                )
        is_scaled = self.trainer.get("fp16") and not self.trainer.get("max_grad_norm", 1.0)
        if isinstance(self.regime, AdapterFusion) and is_scaled:
            raise ValueError(
                "trainer.fp16: without max_grad_norm its gradients are scaled, and that of the "
                "fusion's penalty is not; write bf16"
            )
        if self.lora and not isinstance(self.regime, Lora):
            raise ValueError(f"lora: is for regime: lora, and the regime is {self.regime.kind}")
        reason: str | None = f"the regime is {self.regime.kind}"
        if isinstance(self.regime, Lora):
            reason = unsupported_kind({"peft_type": "LORA", **self.lora})
        if self.select is not None and isinstance(self.regime, ADAPTERS) and reason is not None:
            raise ValueError(
                f"select: the live engine takes whole checkpoints and plain LoRA, and {reason}; "
                "drop select, and evaluate the checkpoints one by one"
            )
        return self


def read_training_file(text: str, settings: Sequence[str] = ()) -> TrainConfig:
    """Return the configuration that `text` names: a path, or a shipped one such as ``math_1``.

    Sources of other files are taken in, and paths of local rows are made absolute. `settings` are
    ``KEY=VALUE`` in place of what the file says; ``lora.r=8`` goes deeper.

    Raises:
        InputError: with every problem of the file.
    """
    path = Path(text)
    if not (is_there(path) and path.is_file()):
        if path.suffix or path.is_dir():
            fault = f"no such file{nearest_file(text)}" if path.suffix else "is a folder"
            raise InputError(f"{path}: {fault}")
        path = find_recipe(f"experts/{text}.yml")
    return _validate(with_settings(_read(path), parse_settings(settings)), path)


def _read(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the document at `path`, laid over the one that it extends."""
    if path.resolve() in above:
        raise InputError(f"{path}: refers to itself")
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: holds no mapping; write base:, data:, samples: ...")
    if what := document_kind(document, "a training file"):
        raise InputError(f"{path}: is not a training file{what}")
    parent = document.pop("extends", None)
    if "base" in document:
        document["base"] = _beside(document["base"], path.parent)
    regime = document.get("regime")
    if isinstance(regime, dict) and isinstance(experts := regime.get("experts"), dict):
        regime["experts"] = {name: _beside(model, path.parent) for name, model in experts.items()}
    sources = document.get("data")
    for source in sources if isinstance(sources, list) else ():
        for key in ("path", "config") if isinstance(source, dict) else ():
            if isinstance(reference := source.get(key), str):
                source[key] = str(resolve_from(reference, path.parent).resolve())
    if parent is None:
        return document
    if not isinstance(parent, str) or not is_there(path.parent / parent):
        raise InputError(f"{path}: extends {parent!r}: there is no such training file")
    below = _read(path.parent / parent, (*above, path.resolve()))
    for block in ("trainer", "lora"):  # name by name
        if isinstance(below.get(block), Mapping) and isinstance(document.get(block), Mapping):
            document[block] = {**below[block], **document[block]}
    return {**below, **document}


def _beside(model: Any, folder: Path) -> Any:
    """Return a model in `folder` as it is named from here; another value as it is."""
    if not isinstance(model, str) or not model or not is_folder(folder / model):
        return model
    return str(folder / model)


def _validate(document: dict[str, Any], path: Path, above: tuple[Path, ...] = ()) -> TrainConfig:
    try:
        config = TrainConfig.model_validate(document)
    except ValidationError as error:
        from transformers import TrainingArguments

        problems = validation_texts(TrainConfig, document, error)
        trainer_options = {field.name for field in dataclasses.fields(TrainingArguments)}
        for name in trainer_options & set(document) - set(TrainConfig.model_fields):
            problems.append(f"{name} is an option of transformers: write it below trainer:")
        raise InputError.from_problems(str(path), problems) from error
    sources: list[DataEntry] = []
    for source in config.data:
        local_path = source.path or source.config
        file = Path(local_path or "")
        if local_path is not None and not file.is_file():
            raise InputError(f"{path}: data: {file}: no such file")
        if source.config is None:
            absolute_path = None if local_path is None else str(file.resolve())
            sources.append(source.model_copy(update={"path": absolute_path}))
            continue
        above = (*above, path.resolve())
        inner_sources = _validate(_read(file, above), file, above).data
        total = sum(inner.weight for inner in inner_sources)
        sources += [
            inner.model_copy(update={"weight": source.weight * inner.weight / total})
            for inner in inner_sources
        ]
    for source in sources:
        if source.messages is not None and config.template == "plain":
            raise InputError(
                f"{path}: data: {source.name}: messages would be joined without anything between "
                "the turns; write template: chat, or prompt and answer in place of messages"
            )
    config = config.model_copy(update={"data": tuple(sources)})
    config._file = str(path)
    return config
