"""The suite on one model, end to end: small hand-written files, and the real MGSM where it is."""

import json
import logging
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ablations.cli import main
from ablations.evaluation import vllm_engine
from ablations.evaluation.evaluator import EngineOptions
from ablations.evaluation.scores import Sample
from ablations.merging import merge
from ablations.pocket.build import PocketPaths
from ablations.suite import SuiteRequest, SuiteResult, evaluate_model
from ablations.suite.identity import default_folder
from layerswap_method.errors import InputError, LayerSwapError
from tests.evaluation.conftest import write_model
from tests.live.models import write_adapter
from tests.tasks.conftest import DATA, REAL_MGSM, needs_real_mgsm

pytestmark = pytest.mark.filterwarnings("ignore")
OPTIONS = EngineOptions(kv_cache_gib=1, gpu_memory_utilization=0.3)


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with 128 tokens of context, to which most words are unknown."""
    return write_model(tmp_path_factory.mktemp("suite") / "task")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(DATA, tmp_path_factory.mktemp("suite") / "data")


def _ask(expert: Path, data: Path | None, out: Path | None, **changes: object) -> SuiteResult:
    request = {"languages": ("sw", "te"), "benchmarks": ("mgsm", "mbpp"), "backend": "hf"}
    fields = {**request, "options": OPTIONS, "data_dir": data, **changes}
    return evaluate_model(str(expert), SuiteRequest.model_validate(fields), out)


@pytest.fixture(scope="module")
def first(expert: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> SuiteResult:
    return _ask(expert, data, tmp_path_factory.mktemp("suite") / "out")


@pytest.mark.slow
def test_the_table_has_the_papers_rows_and_what_was_skipped(first: SuiteResult) -> None:
    lines = first.report().splitlines()
    assert lines[0].split() == [
        "Task",
        "Language",
        "task",
        "also",
        "in",
        "language",
        "cut",
        "off",
        "items",
    ]
    assert lines[2].startswith("MGSM em@maj1, 8-shot  Swahili ")
    assert lines[3].strip().startswith("Telugu")
    assert lines[3].split()[-1] == "4"
    assert lines[4].endswith("Swahili   skipped: needs --allow-code-execution")
    assert first.skipped == dict.fromkeys(
        ("layerswap_mbpp_sw", "layerswap_mbpp_te"), "needs --allow-code-execution"
    )
    text = first.report()
    assert "Evaluated by lm-eval on HF transformers" in text
    # The prompts of MGSM are longer, and so are the answers it allows.
    assert "do not fit the context of 128 tokens" in text.replace("\n  ", " ")
    assert "answers may take 64 tokens" in text.replace("\n  ", " ")


@pytest.mark.slow
def test_every_item_has_a_record_by_which_two_runs_can_be_paired(first: SuiteResult) -> None:
    name = "layerswap_mgsm_sw"
    lines = (first.out / name / f"samples_{name}.jsonl").read_text().splitlines()
    samples = [Sample.model_validate_json(line) for line in lines]
    assert {sample.filter for sample in samples} == {"strict-match", "flexible-extract"}
    strict = [json.loads(line) for line in lines if '"strict-match"' in line]
    assert [row["doc_id"] for row in strict] == [0, 1, 2, 3]
    for row in strict:
        assert len(row["prompt_hash"]) == 64
        assert isinstance(row["responses"][0], str)
        assert isinstance(row["answers"][0], str)
        assert row["values"].keys() == {
            *("exact_match", "language_fidelity", "truncated", "prompt_truncated"),
        }
    results = json.loads((first.out / "results.json").read_text())
    assert results["skipped"] == first.skipped
    assert results["tasks"][name]["scores"][0]["metric"] == "exact_match"


@pytest.mark.slow
def test_what_is_finished_is_not_asked_again_unless_its_inputs_changed(
    first: SuiteResult, expert: Path, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def asked() -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "ablations"):
            again = _ask(expert, data, first.out)
        assert again.evaluations.keys() == first.evaluations.keys()
        logged = [record.getMessage() for record in caplog.records]
        return [line.split(":")[0] for line in logged if "evaluated in" in line]

    assert asked() == []
    train = data / "mgsm" / "te_train.jsonl"
    lines = train.read_text().splitlines()
    train.write_text("\n".join([*lines[1:], lines[0]]) + "\n")
    # A file that no task of these reads may come and go.
    (data / "mgsm" / "xx_test.jsonl").write_text("{}\n")
    assert asked() == ["layerswap_mgsm_te"]
    assert asked() == []


@pytest.mark.slow
def test_results_of_earlier_calls_are_kept(expert: Path, tmp_path: Path) -> None:
    def scores() -> dict[str, list[object]]:
        content = json.loads((tmp_path / "out" / "results.json").read_text())
        assert content["skipped"] == {}
        return {name: task["scores"] for name, task in content["tasks"].items()}

    mgsm, mbpp = ("layerswap_mgsm_sw", "layerswap_mgsm_te"), ("layerswap_mbpp_sw",)
    wide = _ask(
        *(expert, DATA, tmp_path / "out"),
        **{"languages": ("sw",), "limit": 2, "allow_code_execution": True},
    )
    assert wide.earlier == ()
    before = scores()
    assert before.keys() == {mgsm[0], *mbpp}
    # Another folder of data with the files of one task only, and no leave to run code.
    only = tmp_path / "only"
    shutil.copytree(DATA / "mgsm", only)
    narrow = _ask(expert, only, tmp_path / "out", languages=("te",), benchmarks=("mgsm",), limit=2)
    assert narrow.evaluations.keys() == {mgsm[1]}
    assert set(narrow.earlier) == {mgsm[0], *mbpp}
    after = scores()
    assert list(after) == [*mgsm, *mbpp]
    assert before == {name: after[name] for name in before}
    lines = narrow.report().splitlines()
    assert lines[2].startswith("MGSM em@maj1, 8-shot  Telugu ")
    assert lines[3] == ""
    assert lines[-1].startswith(
        f"Scores (and those of 2 tasks of earlier calls): {tmp_path / 'out' / 'results.json'}; "
    )
    # A finished program is not run again, so its scores need no leave.
    again = _ask(expert, DATA, tmp_path / "out", languages=("sw",), benchmarks=("mbpp",), limit=2)
    assert (again.evaluations.keys(), again.skipped) == ({*mbpp}, {})
    assert scores() == after


@pytest.mark.slow
def test_a_folder_is_one_models_under_one_protocol(
    expert: Path, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {"languages": ("sw",), "benchmarks": ("mgsm",)}
    _ask(expert, DATA, tmp_path / "out", limit=2, **asked)
    before = (tmp_path / "out" / "results.json").read_bytes()
    other = write_model(tmp_path / "other", seed=1)
    for model, changes, words in (
        (expert, {}, r"\(limit 2, now none\); .*: give another --out, or remove this one"),
        (other, {"limit": 2}, rf"\(model {expert}, now {other}\)"),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO), pytest.raises(InputError, match=words):
            _ask(model, DATA, tmp_path / "out", **changes, **asked)
        assert "evaluated in" not in caplog.text
    assert (tmp_path / "out" / "results.json").read_bytes() == before


@pytest.mark.slow
def test_without_an_out_a_quick_look_is_in_nobodys_way(
    expert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"languages": ("sw",), "benchmarks": ("mgsm",)}
    quick = _ask(expert, DATA, None, limit=1, **asked)
    whole = _ask(expert, DATA, None, **asked)
    folder = Path("runs/evaluate") / str(expert).strip("/").replace("/", "--")
    assert (quick.out, whole.out) == (folder / "hf-limit-1", folder / "hf")
    for result, items in ((quick, 1), (whole, 4)):
        assert (result.out / "results.json").is_file()
        assert result.evaluations["layerswap_mgsm_sw"].score("layerswap_mgsm_sw").n == items


@pytest.mark.parametrize(
    ("model", "asked", "name"),
    [
        ("org/name", {}, "org--name/hf"),
        ("org/name@v1+a/b", {}, "org--name@v1+a--b/hf"),
        ("./models/mine/", {"limit": 5}, "models--mine/hf-limit-5"),
        ("m", {"options": {"dtype": "float32"}}, "m/hf-dtype-float32"),
        (
            *("m", {"limit": 5, "options": {"dtype": "float16", "max_model_len": 64}}),
            "m/hf-limit-5-dtype-float16-max-model-len-64",
        ),
        ("m", {"options": {"batch_size": 3}, "languages": ("sw",)}, "m/hf"),
    ],
)
def test_the_default_folder_tells_what_is_no_default(
    model: str, asked: dict[str, object], name: str
) -> None:
    folder = default_folder(model, "hf", SuiteRequest.model_validate(asked))
    assert folder == Path("runs/evaluate") / name


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite") / "adapter"
    # Not of the attention: to this model most words are one, and attention to equal ones is equal.
    return write_adapter(folder, "model.layers.1.mlp.down_proj", 96, 64)


def _both_ways(
    expert: Path, adapter: Path, out: Path, **changes: object
) -> tuple[SuiteResult, SuiteResult]:
    """Return what a base and its adapter say, and what the checkpoint says that mergekit makes."""
    reference = f"{expert}+{adapter}"
    recipe = out / "recipe.yml"
    recipe.write_text(f"merge_method: passthrough\nmodels: [{{model: '{reference}'}}]\n")
    cache = ["--lora-merge-cache", str(out / "adapters")]
    merge(recipe, out / "merged", fingerprint="test", options=cache)
    asked: dict[str, object] = {"benchmarks": ("mgsm", "belebele", "flores"), "limit": 3, **changes}
    return (
        _ask(Path(reference), DATA, out / "streamed", **asked),
        _ask(out / "merged", DATA, out / "cold", **asked),
    )


@pytest.mark.slow
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint(
    expert: Path, adapter: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streamed, cold = _both_ways(expert, adapter, tmp_path)
    assert len(streamed.evaluations) == len(cold.evaluations) == 8
    alone = _ask(expert, DATA, tmp_path / "alone", benchmarks=("mgsm",), limit=3)
    for name, each in streamed.evaluations.items():
        assert each.model == f"{expert}+{adapter}"
        assert each.scores == cold.evaluations[name].scores
        assert each.samples == cold.evaluations[name].samples
    for name, each in alone.evaluations.items():
        assert each.samples != streamed.evaluations[name].samples
    assert streamed.report().splitlines()[0].split()[2] == "task+adapter"
    # The adapter is a part of the model: nothing is asked again, unless it has changed.
    caplog.clear()
    with caplog.at_level(logging.INFO, "ablations"):
        _ask(Path(f"{expert}+{adapter}"), DATA, streamed.out, benchmarks=("mgsm",), limit=3)
    assert "evaluated in" not in caplog.text
    with pytest.raises(InputError, match="holds results of another evaluation"):
        _ask(expert, DATA, streamed.out, benchmarks=("mgsm",), limit=3)


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
def test_a_base_with_an_adapter_scores_as_the_merged_checkpoint_on_vllm(
    expert: Path, adapter: Path, tmp_path: Path
) -> None:
    streamed, cold = _both_ways(expert, adapter, tmp_path, backend="vllm", benchmarks=("mgsm",))
    assert len(streamed.evaluations) == 2
    for name, each in streamed.evaluations.items():
        assert each.backend == "vllm"
        assert each.scores == cold.evaluations[name].scores
        assert each.samples == cold.evaluations[name].samples


def test_an_adapter_that_cannot_be_streamed_is_said(
    expert: Path, adapter: Path, data: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(adapter, tmp_path / "dora")
    config = json.loads((other / "adapter_config.json").read_text())
    (other / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(InputError, match="use_dora is set; merge it into its base first"):
        _ask(Path(f"{expert}+{other}"), data, tmp_path / "out", benchmarks=("mgsm",))


@pytest.mark.slow
def test_all_benchmarks_run_from_local_files(expert: Path, tmp_path: Path) -> None:
    result = _ask(
        *(expert, DATA, tmp_path / "out"),
        **{"languages": ("sw",), "benchmarks": (), "limit": 2, "allow_code_execution": True},
    )
    assert len(result.evaluations) == len(result.tasks) == 6
    assert not result.skipped
    text = result.report().replace("\n  ", " ")
    for title in ("BELEBELE accuracy, 5-shot", "FLORES BLEU, 0-shot", "MMLU accuracy, 5-shot"):
        assert title in text
    assert "Eng-Swh" in text
    assert "bleu is nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in text
    assert "layerswap_mbpp_sw: prompts are in 'en', for want of a translation" in text
    score = result.evaluations["layerswap_flores_en-sw"].score("layerswap_flores_en-sw", "chrf++")
    assert score.signature is not None
    assert score.signature.startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:2")


def test_everything_that_is_missing_is_said_before_a_model_is_loaded(
    expert: Path, data: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "data"
    shutil.copytree(data / "mgsm", empty / "mgsm")
    with pytest.raises(InputError) as caught:
        _ask(expert, empty, tmp_path / "out", benchmarks=("mgsm", "belebele", "mmlu"))
    message = caught.value.message
    assert message.startswith("data of the tasks: 4 problems")
    assert "no folder 'belebele' in it; expected is belebele/sw_test.jsonl" in message
    assert "expected is mmlu/te_dev.jsonl" in message
    assert not (tmp_path / "out").exists()


def test_models_that_are_not_there_are_said(expert: Path, data: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such checkpoint folder; did you mean 'task'"):
        _ask(expert.with_name("tasc"), data, tmp_path)
    with pytest.raises(InputError, match=r"^nobody/nothing cannot be had"):
        _ask(Path("nobody/nothing"), data, tmp_path)
    with pytest.raises(InputError, match=r"^org/base cannot be had"):
        _ask(Path("org/base+path/adapter"), data, tmp_path)
    with pytest.raises(InputError, match=r"^/no/adapter: no such folder"):
        _ask(Path(f"{expert}+/no/adapter"), data, tmp_path)
    with pytest.raises(InputError, match=r"holds no adapter_config\.json: no peft adapter"):
        _ask(Path(f"{expert}+{expert}"), data, tmp_path)


def test_a_damaged_checkpoint_is_one_message(expert: Path, data: Path, tmp_path: Path) -> None:
    damaged = shutil.copytree(expert, tmp_path / "damaged")
    (weights,) = damaged.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"damaged: hf cannot load it: .*header"):
        _ask(damaged, data, tmp_path / "out", benchmarks=("mgsm",))


def test_a_folder_that_cannot_be_written_is_said_before_a_model_is_loaded(
    expert: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file is no folder"):
        _ask(expert, data, tmp_path / "file" / "out")
    # One that looks as if it could be written: root may write to /proc, which takes nothing.
    with pytest.raises(LayerSwapError, match=r"/proc/layerswap.*: cannot be written: "):
        _ask(expert, data, Path("/proc/layerswap"))


def test_a_suite_of_skipped_tasks_does_not_claim_an_evaluation(
    expert: Path, data: Path, tmp_path: Path
) -> None:
    text = _ask(expert, data, tmp_path / "out", benchmarks=("mbpp",)).report()
    assert "Nothing was evaluated. What was skipped: " in text
    assert "Evaluated by" not in text
    skipped = json.loads((tmp_path / "out" / "results.json").read_text())["skipped"]
    assert skipped.keys() == {"layerswap_mbpp_sw", "layerswap_mbpp_te"}


def _invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    return result.exit_code, result.output


def test_the_command_says_unknown_names_with_the_nearest_and_exits_2(expert: Path) -> None:
    code, text = _invoke("evaluate", expert, "--languages", "sw,tee", "--benchmarks", "mgms")
    assert code == 2
    assert "no language 'tee'; did you mean 'te'?" in text
    assert "no benchmark 'mgms'; did you mean 'mgsm'?" in text
    code, text = _invoke("evaluate", expert, "--languages", "SW", "--benchmarks", "MGSM")
    assert code == 2
    assert "no language 'SW'; did you mean 'sw'?" in text
    assert "no benchmark 'MGSM'; did you mean 'mgsm'?" in text
    code, text = _invoke("evaluate", expert, "--languages", " , ")
    assert (code, "no name in it" in text) == (2, True)
    code, text = _invoke("evaluate", expert, "--data-dir", expert / "none")
    assert (code, "does not exist" in text) == (2, True)


@pytest.mark.slow
def test_the_command_prints_the_table(expert: Path, tmp_path: Path) -> None:
    code, text = _invoke(
        *("evaluate", expert, "--languages", "sw", "--benchmarks", "mgsm,mbpp"),
        *("--data-dir", DATA, "--limit", 2, "--backend", "hf", "--out", tmp_path / "out"),
        *("--dtype", "float32"),
    )
    assert code == 0
    assert "MGSM em@maj1, 8-shot" in text
    assert "skipped: needs --allow-code-execution" in text
    assert (tmp_path / "out" / "results.json").is_file()


def test_the_tasks_command_lists_protocol_and_source() -> None:
    code, text = _invoke("tasks")
    assert code == 0
    assert "layerswap_belebele_te" in text
    code, text = _invoke("tasks", "--format", "json")
    (row,) = [each for each in json.loads(text) if each["name"] == "layerswap_mgsm_te"]
    assert (code, row["num_fewshot"], row["source"]) == (0, 8, "juletxara/mgsm")
    assert row["protocol"].startswith("8-shot, exact_match")


@pytest.mark.slow
@needs_real_mgsm
def test_the_real_mgsm_runs_to_the_end(tiny_pocket: PocketPaths, tmp_path: Path) -> None:
    result = _ask(
        tiny_pocket.task, REAL_MGSM, tmp_path, languages=("sw",), benchmarks=("mgsm",), limit=10
    )
    assert result.evaluations["layerswap_mgsm_sw"].score("layerswap_mgsm_sw").n == 10


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.skipif(not vllm_engine.is_installed(), reason="vLLM is not installed")
@needs_real_mgsm
def test_both_backends_are_asked_the_same_of_the_real_mgsm(
    tiny_pocket: PocketPaths, tmp_path: Path
) -> None:
    name = "layerswap_mgsm_sw"
    hf, vllm = (
        _ask(
            *(tiny_pocket.task, REAL_MGSM, tmp_path / backend),
            **{"languages": ("sw",), "benchmarks": ("mgsm",), "limit": 40, "backend": backend},
        ).evaluations[name]
        for backend in ("hf", "vllm")
    )
    assert (hf.backend, vllm.backend) == ("hf", "vllm")
    assert len(hf.samples) == len(vllm.samples) == 2 * 40
    assert hf.notes == vllm.notes
    for one, other in zip(hf.samples, vllm.samples, strict=True):
        assert (one.doc_id, one.prompt_hash) == (other.doc_id, other.prompt_hash)
        assert one.prompts == other.prompts
        # lm-eval has vLLM write special tokens without a space before them.
        ours, theirs = (str(each.responses[0]).replace(" <unk>", "<unk>") for each in (one, other))
        assert ours == theirs
        assert one.values["prompt_truncated"] == other.values["prompt_truncated"] == 1
