"""What a training configuration may say. Knows types and ranges; opens no model and no data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictStr, model_validator

from ablations.engines.options import BackendChoice
from ablations.train.regime import ADAPTERS, Full, Lora, Prefix, Regime
from layerswap_method.frozen import Frozen

Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A share before all shares are made to sum to 1."""

Dtype = Literal["float32", "bfloat16", "float16"]


class Weighted(Frozen):
    """A source of rows."""

    weight: Weight = 1.0
    """Share of `TrainConfig.samples`, relative to the other sources."""


class Rows(Weighted):
    """A source whose rows have fields."""

    prompt: StrictStr = "{prompt}"
    """Text without loss; ``{name}`` is a field of the row, ``{a.b}`` a field of a field."""

    answer: StrictStr = "{answer}"
    """Text with loss, written like `prompt`."""

    messages: StrictStr | None = None
    """Field with a list of ``{role, content}``, in place of `prompt` and `answer`. The loss is on
    the messages of the assistant."""

    where: dict[StrictStr, tuple[StrictStr, ...] | StrictStr] = Field(default_factory=dict)
    """Field -> value or values; other rows are left out. A field that is missing is an error."""

    @model_validator(mode="after")
    def _one_form(self) -> Rows:
        texts = {"prompt", "answer"} & self.model_fields_set
        if self.messages is not None and texts:
            raise ValueError(f"messages and {' and '.join(sorted(texts))}: give one of the two")
        if "{" not in self.answer:
            raise ValueError(f"answer is {self.answer!r}; name a field in braces, such as {{text}}")
        return self


class LocalRows(Rows):
    """A file of one JSON value a line."""

    kind: Literal["local"] = "local"
    path: StrictStr
    """The file, from the folder of the configuration, else from the working directory."""


class HubRows(Rows):
    """A data set of the hub, read with ``datasets``."""

    kind: Literal["hub"] = "hub"
    hub: StrictStr
    """Id, such as ``microsoft/orca-math-word-problems-200k``, or a folder ``datasets`` can read."""

    subset: StrictStr | None = None
    """Name of the data set's configuration."""

    split: StrictStr = "train"
    """Name of the split; slices such as ``train[:1000]`` work."""

    revision: StrictStr | None = None
    """Commit, branch or tag; None for the newest."""


class PocketRows(Weighted):
    """The exercises that the pocket experts learn from, drawn with the seed of the run."""

    kind: Literal["pocket"] = "pocket"
    pocket: Literal["task", "language"]
    """English math, or translation and Swahili facts."""


class ConfigRows(Weighted):
    """All sources of another configuration, which divide its weight as they do there.

    Both data sets in one run are joint training, the baseline of the paper's Table 2.
    """

    kind: Literal["config"] = "config"
    config: StrictStr
    """The file, found as `LocalRows.path` is."""


Source = Annotated[LocalRows | HubRows | PocketRows | ConfigRows, Field(discriminator="kind")]

_SOURCES: dict[str, str] = {"path": "local", "hub": "hub", "pocket": "pocket", "config": "config"}


class Select(Frozen):
    """Which checkpoints are kept: those with the best scores (paper, section 3.1)."""

    tasks: tuple[StrictStr, ...] = Field(min_length=1)
    """lm-eval tasks, groups or tags. A checkpoint's score is the mean of the tasks' first metric.
    """

    include_path: StrictStr | None = None
    """Folder of task files, from the working directory; None for the shipped tasks."""

    data_dir: StrictStr | None = None
    """Folder with the data of shipped tasks, in place of the hub."""

    limit: int | None = Field(None, ge=1)
    """Items a task."""

    keep: int = Field(3, ge=1)
    """Checkpoints that stay; the best one becomes the expert."""

    backend: BackendChoice = "auto"
    """What evaluates."""

    batch_size: int = Field(64, ge=1)
    """Sequences at once."""


class TrainConfig(Frozen):
    """One training run. Defaults are the paper's where it says them (appendix A.2)."""

    base: StrictStr
    """The model to start from: a folder or a hub id."""

    regime: Regime = Full()
    """Which weights are trained, and how."""

    data: tuple[Source, ...] = Field(min_length=1)
    """Sources that are mixed by their weights."""

    template: Literal["plain", "chat"] = "plain"
    """``plain`` joins prompt and answer as they are; ``chat`` uses the tokenizer's template."""

    separator: str = ""
    """Stands between prompt and answer, and between turns, in the plain template."""

    samples: int = Field(ge=1)
    """Rows to train on, in all. Sources that are too short are repeated."""

    held_out: int = Field(32, ge=0)
    """Rows that are never trained on; the drift of the hidden states is measured on them."""

    batch_size: int = Field(4, ge=1)
    """Sequences of one optimiser step, over all processes."""

    micro_batch_size: int | None = Field(None, ge=1)
    """Sequences of one forward pass in one process; None for the whole share of the process."""

    max_length: int = Field(2048, ge=8)
    """Longest sequence in tokens; longer rows are cut at the end."""

    learning_rate: float = Field(1e-7, gt=0, allow_inf_nan=False)
    """Peak rate of AdamW."""

    schedule: Literal["linear", "wsd", "cosine", "constant"] = "linear"
    """Decay to 0 over the run, or, for ``wsd``, over the last `decay_share` of it (linear)."""

    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warmup."""

    decay_share: float = Field(0.1, ge=0, le=1)
    """Share of the steps in which ``wsd`` decays; the paper does not say its own."""

    weight_decay: float = Field(0.0, ge=0)
    """AdamW's decoupled decay; norms and biases have none."""

    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are clipped to this norm."""

    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """AdamW's first momentum."""

    adam_beta2: float = Field(0.999, ge=0, lt=1)
    """AdamW's second momentum."""

    seed: int = Field(0, ge=0, lt=2**32)
    """Of the choice and order of rows, of new weights (adapters), and of dropout."""

    compute: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the forward and backward pass. The weights that are trained are float32 in both cases."""

    gradient_checkpointing: StrictBool = True
    """Whether activations are computed again in the backward pass: less memory, more time."""

    save_every: int | None = Field(5000, ge=1)
    """Rows between two checkpoints; None saves at the end only."""

    save_dtype: Dtype = "float32"
    """Of the expert's file. A 16-bit format loses most of a light fine-tune."""

    select: Select | None = None
    """How checkpoints are chosen; None takes the last one and keeps all."""

    measure: StrictBool = True
    """Whether the divergence from the base is measured at the end."""

    log_every: int = Field(10, ge=1)
    """Steps between two reported losses."""

    report_to: tuple[StrictStr, ...] = ()
    """Trackers of transformers' Trainer, such as ``wandb``, ``trackio``, ``tensorboard``."""

    @model_validator(mode="after")
    def _fits(self) -> TrainConfig:
        if isinstance(self.regime, Prefix) and self.gradient_checkpointing:
            raise ValueError(
                "gradient_checkpointing: peft's prefix tuning cannot do it; set it to false"
            )
        is_lora = isinstance(self.regime, Lora) and not self.regime.dora
        if self.select is not None and isinstance(self.regime, ADAPTERS) and not is_lora:
            raise ValueError(
                "select: the live engine takes whole checkpoints and plain LoRA, no fusion, no "
                "prefix and no DoRA; drop it, and evaluate the checkpoints one by one"
            )
        if self.micro_batch_size is not None and self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size "
                f"{self.micro_batch_size}"
            )
        return self


_ASIDE = ("select", "measure", "log_every", "report_to", "micro_batch_size")
"""Settings that may differ when a run goes on: they change no weight (but for rounding)."""


def identity_of(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that decide the weights, as JSON can hold them."""
    return config.model_dump(mode="json", exclude=set(_ASIDE))


def source_kind(source: Mapping[str, Any]) -> str:
    """Return which kind of source a block of a file is.

    Raises:
        ValueError: where it names none, or several.
    """
    named = [key for key in _SOURCES if key in source]
    if len(named) != 1:
        found = f"{' and '.join(named)} are given" if named else "none is given"
        raise ValueError(f"name one of {', '.join(_SOURCES)}; {found}")
    return _SOURCES[named[0]]
