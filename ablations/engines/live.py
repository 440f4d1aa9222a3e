"""An evaluator whose engine stays, and into which one model after another is loaded, each whole.

What must hold so that the scores are those of a cold engine on the checkpoint that `mergekit-yaml`
writes is checked here. Loading weights into a running vLLM has given garbage without an error for
some architectures (vLLM issues 29341, 32718 and 52479), so the engine answers a probe before and
after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ablations.engines.answers import AnswerFile
from ablations.engines.backends import resolve_backend
from ablations.engines.lm_eval_backend import run_tasks, start_model
from ablations.engines.options import BackendChoice, EngineOptions
from ablations.engines.stored_answers_lm import LoadedModel, StoredAnswersLM
from ablations.machine.fingerprint import TOKENIZER_DATA, hash_file
from ablations.machine.progress import Step, show_step
from ablations.models.load import read_generation_config, read_model_config, read_tokenizer
from ablations.models.tokens import prompt_tokens
from ablations.requests.resolve import ResolvedTasks
from ablations.scoring.evaluation import Backend, Evaluation
from ablations.scoring.protocol import EvaluationProtocol
from layerswap_method.errors import InputError, LayerSwapError
from layerswap_method.methods.passthrough import merge_of_one
from layerswap_method.recipe.references import Model
from layerswap_method.tensors import Merge

if TYPE_CHECKING:
    from layerswap_method.tensors import TensorMix

_CORRUPTION = -1024
"""By what the final norm is multiplied to see whether loading changes anything. A model that is
sure of its tokens then denies them, and one that prefers none prefers some."""

_PROBE_TOKENS = 48
_ANSWER_TOKENS = 16

NATS_PER_TOKEN = 0.01
"""Most that a mean log-likelihood may move by rounding. On a processor it did not move at all; a
weight that is not where it belongs costs whole nats."""

_IDLE = frozenset(
    {
        "transformers_version",
        "_name_or_path",
        "_from_model_config",
        "_commit_hash",
        "dtype",
        "torch_dtype",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
    }
)
"""Keys that change no answer. The dtype is compared by itself; the chat template is not compared
at all, because every model is prompted with that of its donor (`ablations.engines.chat`)."""


class ProbeAnswers(NamedTuple):
    """The answers of a model to the probe."""

    log_likelihood: float
    """Mean of a token of the probe's second half, in nats."""

    text: str
    """The greedy answer to its first half."""


class ProbeReference(NamedTuple):
    """Two answers of an engine to the probe with the weights that it was started with."""

    first: ProbeAnswers
    second: ProbeAnswers

    def mismatch(self, now: ProbeAnswers) -> str | None:
        """Return how `now` differs by more than rounding, None where it does not.

        An engine that does not repeat itself with untouched weights is compared as far as it does:
        twice the distance of its two log-likelihoods is allowed; texts that differ do not count.
        """
        before, after = self.first.log_likelihood, now.log_likelihood
        allowed = NATS_PER_TOKEN + 2 * abs(before - self.second.log_likelihood)
        # Written so that NaN differs from every number, and from itself it does not.
        if not (abs(after - before) <= allowed or (after != after and before != before)):
            return f"a log-likelihood of {before:.4f} nats per token became {after:.4f}"
        if self.first.text == self.second.text != now.text:
            return f"the greedy answer {self.first.text!r} became {now.text!r}"
        return None


class SwapFailed(LayerSwapError):
    """A model could not be loaded into a live engine; a checkpoint on disk may work."""


class LiveEvaluator:
    """Evaluates `Merge`s one after another in one engine, which keeps nothing of earlier ones.

    Greedy generations are those of a cold engine, log-likelihoods equal to rounding. Where that
    cannot be promised (other config or tokenizer, other dtype, names the engine does not know) a
    model is refused with `SwapFailed`, and can be evaluated from a checkpoint on disk.

    The engine is checked: at its start the base is loaded over itself, and a probe must be
    answered as before (`ask_probe`). `check` puts the base back and repeats it.
    """

    def __init__(
        self,
        base_folder: Path,
        backend: BackendChoice = "auto",
        options: EngineOptions | None = None,
    ) -> None:
        """Name the checkpoint that the engine starts on, at the first use.

        Raises:
            InputError: for a folder that holds no checkpoint, or a backend that is not installed.
        """
        self.backend = resolve_backend(backend)
        self._base = merge_of_one(Model(str(base_folder), Path(base_folder)))
        self._options = options or EngineOptions()
        self._engine: LoadedModel | None = None
        self._loaded: Mapping[str, TensorMix] | None = None
        self._disabled: str | None = None
        """Why no model can be put into it any more."""

    def swap(self, model: Merge) -> None:
        """Make the engine's model `model`.

        Raises:
            InputError: when the base cannot be loaded.
            SwapFailed: when that did not work, or would not give the scores of a cold engine. The
                engine is then as good as new at the next call: restarted if it has to be. For
                good, when no model can be put into an engine of this architecture, or the base
                loaded over itself is no longer the base.
        """
        if problems := self._problems(model):
            raise SwapFailed(f"{model.donor_folder}: {'; '.join(problems)}")
        if self._disabled is not None:
            raise SwapFailed(self._disabled)
        engine = self._start() if self._engine is None else self._engine
        with self._ended_by_errors(model):
            self._load(engine, model.tensors)

    def check(self) -> None:
        """Put the base back, and repeat the probe; without an engine do nothing.

        Raises:
            SwapFailed: for good, when the probe is not answered as at the start: what was
                evaluated since the last check may be wrong.
        """
        if (engine := self._engine) is not None:
            with self._ended_by_errors(self._base, for_good=True):
                self._load(engine, self._base.tensors)
                self._compare(engine, "with the base's weights back in place")

    def evaluate(
        self, model: Merge, resolved: ResolvedTasks, answer_file: AnswerFile | None = None
    ) -> Evaluation:
        """Return scores and samples of `model`; for `answer_file` see `run_tasks`.

        Raises:
            InputError: for a task whose data cannot be read.
            SwapFailed: when the model could not be put into the engine.
        """
        self.swap(model)
        assert self._engine is not None
        try:
            return run_tasks(self._engine, resolved, model.donor_folder, self.backend, answer_file)
        except InputError:  # the request is at fault, and nothing was asked yet
            raise
        except BaseException:
            self.close()  # requests may be under way in it; the next call starts another
            raise

    def close(self) -> None:
        """End the engine; a later call would start it again."""
        engine, self._engine, self._loaded = self._engine, None, None
        if engine is not None:
            engine.close()

    def _start(self) -> LoadedModel:
        engine = self._engine = start_model(self._base.donor_folder, self.backend, self._options)
        with self._ended_by_errors(self._base, for_good=True):
            engine.check_names(self._base.tensors)
            self._check_loading(engine)
        return engine

    def _check_loading(self, engine: LoadedModel) -> None:
        """Load the engine's model over itself and check that it answers the probe as before.

        Before that one small tensor is changed, which the probe must notice: an engine that loads
        nothing would pass otherwise.
        """
        show_step(Step("checking that weights can be loaded into the engine"))
        tensors = self._base.tensors
        self._reference = ProbeReference(_ask_anew(engine), _ask_anew(engine))
        if (name := _final_norm(self._base)) is not None:
            mix = tensors[name].model_copy(update={"factor": _CORRUPTION})
            self._load(engine, {**tensors, name: mix})
            if self._reference.mismatch(_ask_anew(engine)) is None:
                raise SwapFailed(
                    f"{self._base.donor_folder}: the probe does not notice that {name} was "
                    f"multiplied by {_CORRUPTION} in the engine, so loading weights has no effect"
                )
        self._loaded = None
        self._load(engine, tensors)
        self._compare(engine, "with every tensor of the base loaded over itself")

    def _compare(self, engine: LoadedModel, when: str) -> None:
        if (mismatch := self._reference.mismatch(_ask_anew(engine))) is not None:
            raise SwapFailed(
                f"{self._base.donor_folder}: {when}, {self.backend} answers differently than at "
                f"its start ({mismatch}); weights loaded into it are not what they should be"
            )

    def _load(self, engine: LoadedModel, tensors: Mapping[str, TensorMix]) -> None:
        """Load a model, unless it is the engine's.

        An error leaves the engine with neither model, and so in need of an end.
        """
        if self._loaded == tensors:
            return
        show_step(Step("loading the weights"))
        self._loaded = None
        engine.load(tensors)
        self._loaded = tensors
        engine.reset_cache()

    @contextmanager
    def _ended_by_errors(self, model: Merge, *, for_good: bool = False) -> Iterator[None]:
        """End the engine at an error, which may leave half of `model` in it."""
        try:
            yield
        except Exception as error:
            self.close()
            message = error.message if isinstance(error, LayerSwapError) else str(error)
            if not isinstance(error, SwapFailed):
                kind = "" if isinstance(error, LayerSwapError) else f"{type(error).__name__}: "
                place = f"{model.donor_folder}: its tensors did not get into the engine"
                message = f"{place}: {kind}{message}"
            self._disabled = message if for_good else None
            raise SwapFailed(message) from error

    def fits(self, model: Merge, backend: Backend, options: EngineOptions) -> bool:
        """Return whether an engine of these options that a model starts would be this one."""
        is_same = (backend, options) == (self.backend, self._options)
        return is_same and not self._problems(model)

    def _problems(self, model: Merge) -> list[str]:
        """Return why the engine with these tensors would not be the merged checkpoint's model."""
        problems = []
        if odd := sorted(set(model.tensors) ^ set(self._base.tensors)):
            problems.append(
                f"it does not have the same tensors as the engine's ({', '.join(odd[:3])})"
            )
        if self._options.dtype == "auto" and model.dtype != self._base.dtype:
            problems.append(f"it is a {model.dtype} model and the engine runs {self._base.dtype}")
        if differing := folder_differences(model.donor_folder, self._base.donor_folder):
            problems.append(
                f"its {', '.join(differing)} (from {model.donor_folder}) would differ from the "
                f"engine's (from {self._base.donor_folder})"
            )
        return problems


def _final_norm(model: Merge) -> str | None:
    """Return the weight of the norm after the last layer, None where no name says so."""
    outside = (name for name in model.tensors if not re.search(r"\.\d+\.", name))
    return next((name for name in outside if re.search(r"norm\w*\.weight$", name)), None)


def _ask_anew(engine: LoadedModel) -> ProbeAnswers:
    """Return what an engine answers to the probe with nothing in its cache."""
    engine.reset_cache()
    return ask_probe(engine)


def ask_probe(engine: LoadedModel) -> ProbeAnswers:
    """Return what an engine answers to the probe: tokens from all its vocabulary."""
    from lm_eval.api.instance import Instance

    special = set(engine.tokenizer.all_special_ids)
    plain = [token for token in range(len(engine.tokenizer)) if token not in special]
    tokens = [plain[place * len(plain) // _PROBE_TOKENS] for place in range(_PROBE_TOKENS)]
    half = _PROBE_TOKENS // 2
    first, second = (engine.tokenizer.decode(part) for part in (tokens[:half], tokens[half:]))
    pair = (first, f" {second.lstrip()}")
    options = {"until": [], "do_sample": False, "max_gen_toks": _ANSWER_TOKENS}
    scored = Instance("loglikelihood", {}, pair, 0, ("the probe", 0, 1))
    generated = Instance("generate_until", {}, (first, options), 0, ("the probe", 0, 1))
    # A norm that was changed on purpose may overflow in float16, and `ProbeReference` knows what
    # NaN means.
    lm = StoredAnswersLM(engine, EvaluationProtocol(), is_probe=True)
    ((log_likelihood, _),) = lm.loglikelihood([scored])
    (text,) = lm.generate_until([generated])
    length = len(prompt_tokens(engine.tokenizer, pair[1]))
    return ProbeAnswers(log_likelihood / max(1, length), text)


def folder_differences(one: Path, other: Path) -> list[str]:
    """Return what differs between two checkpoints besides their tensors, file by file.

    An engine keeps the config, generation settings and tokenizer that it was started with. They are
    compared by what transformers reads: two versions of it write the same in different words.
    """
    if one.resolve() == other.resolve():
        return []
    readers = {"config.json": _config, "generation_config.json": _generation}
    if _digests(one) != _digests(other):
        readers["tokenizer"] = _tokenizer
    differing = []
    for name, read in readers.items():
        first, second = read(one), read(other)
        keys = sorted(key for key in {*first, *second} if first.get(key) != second.get(key))
        if keys:
            differing.append(f"{name} ({', '.join(keys[:3])}{', ...' if len(keys) > 3 else ''})")
    return differing


def _config(folder: Path) -> dict[str, Any]:
    return _active(read_model_config(folder).to_dict())


def _generation(folder: Path) -> dict[str, Any]:
    """Return the generation settings; where there is no file, engines take them from the config."""
    from transformers import GenerationConfig

    if (folder / "generation_config.json").is_file():
        settings = read_generation_config(folder)
    else:
        settings = GenerationConfig.from_model_config(read_model_config(folder))
    return _active(settings.to_dict())


def _active(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _active(value) if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if key not in _IDLE and value is not None
    }


def _tokenizer(folder: Path) -> dict[str, Any]:
    """Return what decides how text becomes tokens, and which of them are special."""
    tokenizer = read_tokenizer(folder)
    facts = {
        "class": type(tokenizer).__name__,
        "special tokens": {key: str(token) for key, token in tokenizer.special_tokens_map.items()},
        "model_max_length": tokenizer.model_max_length,
    }
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return facts | _digests(folder)
    stages = json.loads(backend.to_str())
    return facts | {key: stages[key] for key in stages if key not in ("padding", "truncation")}


def _digests(folder: Path) -> dict[str, str]:
    paths = (path for pattern in TOKENIZER_DATA for path in folder.glob(pattern))
    return {path.name: hash_file(path) for path in paths if path.is_file()}
