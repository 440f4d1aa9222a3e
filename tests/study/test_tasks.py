"""What the models of a study are asked, and how: benchmarks, own tasks, chat, repeats, engines."""

import shutil

import pytest
import yaml

from ablations import sandbox
from ablations.engines import vllm_cpu, vllm_engine
from ablations.engines.backends import check_devices
from ablations.engines.options import EngineOptions
from ablations.study.experts import ExpertsFile
from ablations.tasks.catalog import SHIPPED_TASKS
from layerswap_method.errors import InputError
from tests.standins import talkers, tasks
from tests.standins.scripted import DATA
from tests.standins.studies import write_yaml

POOLS = {"base": "base", "task": ["math"], "language": {"sw": ["swahili"], "te": ["telugu"]}}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


@pytest.fixture
def shipped(experts):
    """Return an experts file that names no task folder."""
    document = yaml.safe_load(experts.read_text())
    del document["include_path"]
    return write_yaml(experts.with_name("shipped.yml"), document)


def small(evaluate, *, dry=False, isolation=None, **options):
    """Return the changes of a small study in two languages; without `dry` its data is read."""
    settings = {"limit": 2, "data_dir": str(DATA), **evaluate, **options}
    how = {"dry": dry, "isolation": isolation, "is_finished": None if dry else lambda _: False}
    return {
        "experts": POOLS,
        "baseline": ["base"],
        "vary": None,
        "evaluate": {name: value for name, value in settings.items() if value is not None},
        "how": how,
    }


def test_benchmarks_become_tasks_in_the_language_of_the_expert(plan, shipped):
    found = plan(shipped, **small({"benchmarks": ["mgsm", "belebele"]}))
    asked = {cell.label: cell.request for cell in found.cells}
    assert asked["math+swahili"].tasks == ("layerswap_mgsm_sw", "layerswap_belebele_sw")
    assert asked["math+telugu"].tasks == ("layerswap_mgsm_te", "layerswap_belebele_te")
    # The base has no language: it is asked everything.
    assert set(asked["base"].tasks) == {
        task for label in ("math+swahili", "math+telugu") for task in asked[label].tasks
    }
    assert {request.include_path for request in asked.values()} == {SHIPPED_TASKS}
    assert {request.data_dir for request in asked.values()} == {DATA}
    evaluate = {"tasks": ["layerswap_mgsm_en"], "languages": {"sw": ["layerswap_mgsm_sw"]}}
    found = plan(shipped, **small(evaluate))
    asked = {cell.label: cell.request.tasks for cell in found.cells}
    assert asked["math+swahili"] == ("layerswap_mgsm_en", "layerswap_mgsm_sw")
    assert asked["math+telugu"] == ("layerswap_mgsm_en",)


def test_own_tasks_and_benchmarks_go_together(plan, experts, models, shipped):
    found = plan(experts, **small({"tasks": ["words"], "benchmarks": ["mgsm"]}))
    cells = {cell.label: cell for cell in found.cells}
    assert cells["math+swahili"].request.tasks == ("words", "layerswap_mgsm_sw")
    assert cells["math+swahili"].request.include_path == models / "tasks"
    # Each task has the key that it has alone.
    own = plan(experts, **small({"tasks": ["words"]}))
    theirs = plan(shipped, **small({"benchmarks": ["mgsm"]}))
    for one, other in zip(own.cells, theirs.cells, strict=True):
        assert cells[one.label].records == {**one.records, **other.records}


@pytest.mark.skipif(sandbox.probe() is not None, reason=f"no sandbox here: {sandbox.probe()}")
def test_code_is_run_only_when_the_command_line_allows_it(plan, problem, shipped):
    evaluate = {"benchmarks": ["mgsm", "mbpp"]}
    found = plan(shipped, **small(evaluate))
    skipped = "layerswap_mbpp_sw: skipped: needs --allow-code-execution"
    assert skipped in found.notes
    assert {cell.request.isolation for cell in found.cells} == {None}
    keys = []
    for isolation in ("bwrap", "none"):  # how programs are held is no part of a score's key
        allowed = plan(shipped, **small(evaluate, isolation=isolation))
        assert skipped not in allowed.notes
        assert {cell.request.isolation for cell in allowed.cells} == {isolation}
        keys.append([cell.records for cell in allowed.cells])
    assert keys[0] == keys[1]
    for key in ("allow_code_execution", "code_isolation"):  # a study does not decide that
        told = problem(shipped, **small({**evaluate, key: "none"}))
        assert f"evaluate.{key}: unknown key" in told
    told = problem(shipped, **small({"benchmarks": ["mbpp"]}))
    assert "every task of the study is skipped: needs --allow-code-execution" in told


def test_the_data_is_part_of_the_protocol_and_its_place_is_not(tmp_path, plan, shipped):
    def keys(folder):
        found = plan(shipped, **small({"benchmarks": ["mgsm"]}, data_dir=str(folder)))
        return {(c.label, task): key for c in found.cells for task, key in c.records.items()}

    copy = shutil.copytree(DATA, tmp_path / "data")
    assert keys(copy) == keys(DATA)
    test = copy / "mgsm" / "sw_test.jsonl"
    test.write_text("\n".join(reversed(test.read_text().splitlines())) + "\n")
    changed = {task for (_, task), _ in set(keys(copy).items()) - set(keys(DATA).items())}
    assert changed == {"layerswap_mgsm_sw"}


def test_missing_data_is_said_before_anything_runs(tmp_path, plan, problem, shipped):
    (tmp_path / "mgsm").mkdir()
    shutil.copy(DATA / "mgsm" / "sw_train.jsonl", tmp_path / "mgsm")
    evaluate = {"benchmarks": ["mgsm", "mmlu"], "data_dir": str(tmp_path)}
    told = problem(shipped, **small(evaluate))
    assert "mgsm/sw_test.jsonl: no such file" in told
    assert "mgsm/te_train.jsonl: no such file" in told
    assert "mmlu/te_dev.jsonl: no such file" in told
    # A dry run reads data where it counts the tokens.
    assert plan(shipped, **small(evaluate, dry=True)).cells
    told = problem(shipped, **small({**evaluate, "data_dir": "nowhere"}))
    assert "evaluate.data_dir: nowhere: no such folder" in told


def test_what_benchmarks_cannot_be_is_said(problem, shipped):
    told = problem(shipped, **small({"benchmarks": ["mgms"]}))
    assert "no benchmark 'mgms'; did you mean 'mgsm'?" in told
    listed = small({"benchmarks": ["mgsm"]}) | {"experts": {**POOLS, "language": ["swahili"]}}
    assert "needs experts.language by language" in problem(shipped, **listed)


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """Two models and their tasks; one of them has a chat template."""
    folder = tmp_path_factory.mktemp("talking")
    for seed, name in enumerate(("plain", "chat")):
        talkers.write_model(folder / name, seed)
    (folder / "chat" / "chat_template.jinja").write_text(TEMPLATE)
    tasks.write_tasks(folder / "tasks")
    return folder


def talk(folder, base="plain", dry=False, **evaluate):
    """Return an experts file, and the changes of a study without a merge."""
    asked = {"tasks": ["words_generate"], "include_path": str(folder / "tasks"), **evaluate}
    places = {"plain": str(folder / "plain"), "chat": str(folder / "chat")}
    changes = {
        **{"recipe": None, "vary": None, "baseline": ["base", "task_expert"]},
        **{"experts": {"base": base, "task": "chat"}, "evaluate": asked},
        "how": {"dry": dry, "is_finished": None if dry else lambda _: False},
    }
    return ExpertsFile.model_validate({"experts": places}), changes


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"apply_chat_template": True}, "plain: its tokenizer has no chat template"),
        (
            {"base": "chat", "apply_chat_template": "tools"},
            "has no chat template 'tools'; it has default",
        ),
        ({"think_end_token": "</t>"}, "think_end_token '</t>' is not in the vocabulary"),
        ({"repeats": 3}, "repeats is 3 and the temperature is 0"),
        ({"gen_kwargs": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"tasks": ["gsm9k"]}, "unknown task 'gsm9k'; did you mean 'gsm"),
        # Tasks of lm-eval's own are known; the data of this one is on the hub.
        ({"tasks": ["gsm8k"]}, "task gsm8k: its data is not on this machine"),
    ],
)
def test_faults_are_said_before_a_model_is_loaded(problem, talking, asked, message):
    file, changes = talk(talking, **asked)
    assert message in problem(file, **changes)


def test_the_protocol_is_part_of_every_request_and_key(plan, talking):
    file, changes = talk(talking)
    plain = plan(file, **changes)
    asked = {"gen_kwargs": {"temperature": 0.6}, "repeats": 2, "system_instruction": "w1"}
    other = plan(file, **talk(talking, **asked)[1])
    assert {cell.request.protocol.repeats for cell in other.cells} == {2}
    keys = [
        {key for cell in each.cells for key in cell.records.values()} for each in (plain, other)
    ]
    assert not keys[0] & keys[1]
    assert plain.protocol != other.protocol
    note = "with a chat template, and there is one in chat: "
    assert any(note in each for each in plain.notes)
    templated = talk(talking, base="chat", apply_chat_template=True)
    assert not any(note in each for each in plan(*templated[:1], **templated[1]).notes)
    # lm-eval's own tasks are known by name, whatever the folder.
    both = plan(file, **talk(talking, dry=True, tasks=["words_generate", "gsm8k"])[1])
    assert list(both.cells[0].records) == ["words_generate", "gsm8k"]
    alone = plan(file, **talk(talking, dry=True, tasks=["gsm8k"], include_path=None)[1])
    assert alone.cells[0].records["gsm8k"] == both.cells[0].records["gsm8k"]


@pytest.mark.skipif(vllm_cpu.installed_version() is not None, reason="vLLM is installed")
def test_a_backend_that_is_not_installed_says_how(problem):
    assert "pip install 'layerswap[vllm]'" in problem(how={"backend": "vllm"})


def test_more_gpus_than_there_are_is_an_error(monkeypatch):
    large = EngineOptions(tensor_parallel_size=64, pipeline_parallel_size=4)
    with pytest.raises(InputError, match="write device_map: auto to spread"):
        check_devices("hf", large)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    with pytest.raises(InputError, match=r"64 x 4 = 256, and there are \d+ GPUs here"):
        check_devices("vllm", large)
    check_devices("vllm", EngineOptions())
    spread = EngineOptions(device_map="auto")
    check_devices("hf", spread)
    with pytest.raises(InputError, match="device_map is transformers'; with --backend vllm write"):
        check_devices("vllm", spread)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: True)
    with pytest.raises(InputError, match="CPU build runs no pipeline stages"):
        check_devices("vllm", EngineOptions(pipeline_parallel_size=2))


def test_vllm_gets_the_options_it_is_given_and_no_others(monkeypatch):
    plain = vllm_engine.engine_arguments(EngineOptions(), 0, "bfloat16")
    assert plain["max_num_seqs"] is None
    assert (plain["tensor_parallel_size"], plain["pipeline_parallel_size"]) == (1, 1)
    monkeypatch.setattr(vllm_engine, "is_cpu_build", lambda: False)
    given = {
        **{"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "max_num_seqs": 512},
        **{"max_model_len": 40960, "gpu_memory_utilization": 0.8, "enforce_eager": True},
    }
    found = vllm_engine.engine_arguments(EngineOptions(**given), 0, None)
    assert {name: found[name] for name in given} == given
    assert vllm_engine.engine_arguments(EngineOptions(), 0, None)["enforce_eager"] is False
