"""Study and experts files: their form with every problem at once, and what --set changes."""

from functools import partial

import pytest
import yaml

from ablations.machine.overrides import parse_settings, with_settings
from ablations.models.find import find_model
from ablations.runner.run import default_out
from ablations.study.checks import study_problems
from ablations.study.files import STUDIES, find_file, read_experts_file, read_study
from layerswap_method.errors import InputError
from tests.standins.studies import study_document, write_yaml


def problems_of(tmp_path, settings=None, **changes):
    with pytest.raises(InputError) as caught:
        read_study(write_yaml(tmp_path / "study.yml", study_document(**changes)), settings)
    return caught.value.message


def load_study(path):
    return read_study(path).study


def test_a_grid_is_crossed_and_a_list_is_taken_as_it_is(tmp_path):
    grid = load_study(write_yaml(tmp_path / "a.yml", study_document()))
    crossed = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [tuple(setting.values()) for setting in grid.settings()] == crossed
    listed = [{"bottom_layers": 3, "top_layers": 1}, {"placement": "middle"}]
    study = load_study(write_yaml(tmp_path / "b.yml", study_document(vary=listed)))
    assert list(study.settings()) == listed


def test_every_fault_of_form_is_named_at_once(tmp_path):
    message = problems_of(
        tmp_path,
        {"evaluate.options.batchsize": 1, "evaluate.limit": "many"},
        questoin="?",
        baseline=["tiess"],
        evaluate={"tasks": ["words"], "limitt": 3},
        name="Not OK",
        report={"primary": {"against": ["better_expret"]}},
    )
    for text in (
        "7 problems",
        "questoin: unknown key; did you mean 'question'?",
        "evaluate.limitt: unknown key; did you mean 'limit'?",
        "did you mean 'ties'?",
        "did you mean 'better_expert'?",
        "'Not OK'",
        "- --set evaluate.limit: must be a whole number",
        "- --set evaluate.options.batchsize: unknown key; did you mean 'batch_size'?",
    ):
        assert text in message


def test_one_name_may_stand_where_a_list_of_names_is_meant(tmp_path):
    def read(of):
        primary = {"against": of("soup"), "tasks": of("words"), "parameters": of("placement")}
        report = {"primary": primary, "tables": of("overview"), "facts": of("experts.task.drift")}
        languages = {"sw": of("words")}
        evaluate = {"tasks": of("words"), "benchmarks": of("mgsm"), "languages": languages}
        changes = {"baseline": of("base"), "evaluate": evaluate, "report": report}
        return load_study(write_yaml(tmp_path / "s.yml", study_document(**changes)))

    assert read(str) == read(lambda name: [name])
    names, listed = tmp_path / "one.yml", tmp_path / "list.yml"
    names.write_text("experts: {math: ./math}\ntasks: words\n")
    listed.write_text("experts: {math: ./math}\ntasks: [words]\n")
    assert read_experts_file(names) == read_experts_file(listed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": None}, "experts"),
        ({"evaluate": {"tasks": 3}}, "evaluate.tasks: must be a list"),
        ({"evaluate": {"tasks": ["x"], "limit": 0}}, "evaluate.limit: must be 1 or more, not 0"),
        ({"recipe": "swap.yml"}, "recipe: must be a block"),
        (
            {"experts": "pocket"},
            "experts: is 'pocket', and must be a block with base, task and language; an experts "
            "file is named by experts_file: pocket",
        ),
        (
            {"experts": {"language": {"es": {"lora": "./base+./lora"}}}},
            "experts.language: es: {'lora': './base+./lora'} has places, and names are wanted; "
            "write language: {es: [lora]}, and next to it places: {lora: ./base+./lora}",
        ),
        ({"experts": {"task": [{"m": "./m"}]}}, "experts.task: {'m': './m'} has places, and names"),
        ({"experts": {"base": ["base"]}}, "experts.base: must be text, not ['base']; write base"),
        (
            {"evaluate": {"tasks": {"a": "b"}}},
            "evaluate.tasks: must be a list, not {'a': 'b'}; a list is in brackets, or has a dash",
        ),
        (
            {"report": ["soup"]},
            "report: must be a block of keys and values, not ['soup']; write key: value, without",
        ),
        ({"vary": {"bottom_layers": []}}, "vary.bottom_layers is empty"),
        ({"vary": {f"b{i}": [*range(60)] for i in range(5)}}, "vary has 777,600,000 settings"),
        (
            {"vary": {"experts.tasks": ["a"]}},
            "vary: unknown 'experts.tasks'; did you mean 'experts",
        ),
        ({"vary": {"experts.task": [3]}}, "vary: experts.task is 3; write the name of an expert"),
        ({"vary": [{"experts.base": ["a", "b"]}]}, "vary: experts.base is ['a', 'b']; a cell has"),
        ({"vary": {"bottom_layers": [float("inf")]}}, "vary: bottom_layers is inf; write a finite"),
        ({"vary": [{"seed": ["a", "b"]}]}, "vary: seed is ['a', 'b']; only experts can be a list"),
    ],
)
def test_one_fault_is_one_message_in_our_words(tmp_path, changes, message):
    told = problems_of(tmp_path, **changes)
    assert told.startswith(f"{tmp_path / 'study.yml'}: {message}")
    assert "Input should" not in told


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "a: [",
        "\0",
        "",
        "name: a\nname: b",
        "a: 2024-99-99",
        "merge_method: linear\nmodels: []",
        "experts: {math: ./math}\nlimt: 3",
    ],
)
def test_a_file_that_is_no_study_is_named(tmp_path, text):
    path = tmp_path / "study.yml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"study\.yml"):
        read_study(path)


def test_studies_and_experts_files_are_found_by_path_or_shipped_name(tmp_path, monkeypatch):
    own = write_yaml(tmp_path / "mine.yml", {"math": "x"})
    for kind, name in (("study", "layer_count"), ("experts", "pocket")):
        find = partial(find_file, kind=kind)
        assert find(name) == STUDIES / ("" if kind == "study" else kind) / f"{name}.yml"
        assert find(str(own)) == own
        with pytest.raises(InputError, match=rf"no such .* file .* did you mean '{name}'\?"):
            find(f"{name}t")
        with pytest.raises(InputError, match="is a folder; name the"):
            find(str(tmp_path))
        with pytest.raises(InputError, match="no such"):
            find("x" * 300)
    (tmp_path / "layer_count").mkdir()  # the run of a shipped study, say
    monkeypatch.chdir(tmp_path)
    assert find_file("layer_count", "study").name == "layer_count.yml"


def test_what_training_measured_is_a_fact_and_what_is_written_wins(tmp_path):
    (tmp_path / "math").mkdir()
    record = tmp_path / "math" / "training.json"
    record.write_text('{"facts": {"drift": 0.2, "relative_norm": 0.1}}')
    written = {"path": "base+math", "facts": {"drift": 0.3}}
    path = write_yaml(tmp_path / "experts.yml", {"experts": {"a": written, "b": "./none"}})
    assert read_experts_file(path).facts() == {"a": {"drift": 0.3, "relative_norm": 0.1}}
    record.write_text("{")
    with pytest.raises(InputError, match=r"training.json: cannot be read"):
        read_experts_file(path)


def test_the_names_of_shipped_studies_alone_are_an_experts_file(tmp_path):
    file = tmp_path / "experts.yml"
    file.write_text("{base: ./base, task: ./math, language: ./spanish}")
    experts = read_experts_file(file).experts
    assert {name: each.path for name, each in experts.items()} == {
        "base": "./base",
        "task": "./math",
        "language": "./spanish",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no expert; write NAME: FOLDER"),
        ("experts: {}", "experts is empty"),
        ("experts: {a: x}\ninclude_paths: t", "did you mean 'include_path'"),
        ("math: x\nmath: y", "line 2 has the key 'math' again"),
        ("math: [x]", r"experts\.math.* must be text"),
        ("experts: {math: {path: x, facts: {loss: .nan}}}", r"experts\.math\.facts\.loss"),
        ("experts: {math: {path: x, fact: {}}}", "math.fact: unknown key; did you mean 'facts'"),
    ],
)
def test_an_experts_file_that_is_none_says_why(tmp_path, text, message):
    (tmp_path / "experts.yml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_experts_file(tmp_path / "experts.yml")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("./absent", "no such folder"),
        ("runs/pocket/nothing", "layerswap pocket build"),
        ("runs/pocket_experts/math_1", r"make pocket-experts .* makes it here"),
        ("runs/smol_experts/fr_1", "make real-model"),
        ("runs/qwen/base", "make qwen"),
        ("some-org/some-model", "hf download some-org/some-model"),
        (
            "{}/base/model.safetensors",
            "is a file, and a model is a folder; write its folder, .*base$",
        ),
        ("{0}/base+{0}/base", r"no adapter_config\.json"),
    ],
)
def test_an_expert_that_cannot_be_found_says_why(tmp_path, reference, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").touch()
    with pytest.raises(InputError, match=f"^expert 'math': .*{message}"):
        find_model(reference.format(tmp_path), name="math", download=False)


NOTHING = {"against": ["soup", "better_expert", "first_setting"], "contrasts": [[2, 1]]}


@pytest.mark.parametrize(
    ("primary", "messages"),
    [
        (
            {**NOTHING, "setting": {"bottom_layers": 7}},
            (
                "names soup; add it to baseline",
                "add task_expert or language_expert to base",
                "vary has no second setting",
                "is not a setting of vary, which begins with {",
                "contrasts has [2, 1]; write the numbers of two settings of vary, from 1 to 1",
            ),
        ),
        (
            {"against": ["base"], "parameters": ["botom_layers"]},
            ("did you mean 'bottom", "is about first_setting; add it to report.primary.against"),
        ),
        ({"against": ["base"], "setting": {"bottom_layers": 1}}, ()),
    ],
)
def test_primary_comparisons_name_what_the_study_has(tmp_path, primary, messages):
    changes = {"report": {"primary": primary}, "baseline": ["base"], "vary": {"bottom_layers": [1]}}
    found = study_problems(load_study(write_yaml(tmp_path / "s.yml", study_document(**changes))))
    told = [text for text in found if "report" in text]
    assert len(told) == len(messages)
    for message in messages:
        assert message in "\n".join(told)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("evaluate.limit=50", ("evaluate.limit", 50)),
        ("evaluate.limit=null", ("evaluate.limit", None)),
        ("vary.top_layers=[1, 2]", ("vary.top_layers", [1, 2])),
        ("question=a=b", ("question", "a=b")),
        ("evaluate.limit", None),
        ("=5", None),
        ("evaluate.limit=", None),
    ],
)
def test_values_are_read_as_in_a_file(text, expected):
    if expected is not None:
        assert parse_settings([text]) == dict([expected])
        return
    with pytest.raises(InputError, match="write KEY=VALUE"):
        parse_settings([text])


def test_a_setting_reaches_every_kind_of_place():
    document = study_document(vary=[{"bottom_layers": 0}, {"bottom_layers": 1}])
    settings = {
        "evaluate.options.dtype": "bfloat16",
        "vary.1.bottom_layers": 2,
        "report.facts": ["experts.task.lr"],
        "recipe.parameters.top_layers": 0,
    }
    changed = with_settings(document, settings)
    assert changed["evaluate"]["options"] == {"batch_size": 8, "dtype": "bfloat16"}
    assert changed["vary"] == [{"bottom_layers": 0}, {"bottom_layers": 2}]
    assert changed["report"] == {"facts": ["experts.task.lr"]}
    assert changed["recipe"]["parameters"]["top_layers"] == 0
    assert document["vary"][1] == {"bottom_layers": 1}  # what was read stays as it was
    changed = with_settings({"vary": {"experts.task": ["a"]}}, {"vary.experts.task": ["b"]})
    assert changed["vary"] == {"experts.task": ["b"]}  # a name with dots is one name


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("evaluate.seed.x", "3 has no keys"),
        ("vary.7.top_layers", "there is no '7' in"),
        ("vary.top.layers", "there is no 'top' in"),
    ],
)
def test_a_place_that_cannot_be_is_refused(key, message):
    document = study_document(vary=[{"top_layers": 1}], evaluate={"tasks": ["words"], "seed": 3})
    with pytest.raises(InputError, match=f"^--set {key}: .*{message}"):
        with_settings(document, {key: 1})


def test_what_changes_scores_is_in_the_name_of_the_folder(tmp_path):
    settings = {
        "evaluate.limit": 5,
        "evaluate.options.max_model_len": 64,
        "evaluate.options.kv_cache_gib": 1,
        "evaluate.data_dir": "/data",
    }
    assert str(default_out("x", None, settings)) == "runs/x-limit-5-max-model-len-64"
    assert str(default_out("x", tmp_path / "mine.yml", {})) == "runs/x-mine"
    many = {"evaluate.tasks": [f"a_long_name_{i}" for i in range(9)]}
    assert len(default_out("x", None, many).name) < 20
    weights = ({f"recipe.models.{n}.parameters.weight": 2} for n in (0, 1))
    assert len({default_out("x", None, setting) for setting in weights}) == 2


def test_command_line_before_study_before_experts_file_before_defaults(plan, experts):
    document = yaml.safe_load(experts.read_text())
    options = {"batch_size": 3, "dtype": "bfloat16"}
    rich = write_yaml(experts.with_name("rich.yml"), {**document, "limit": 5, "options": options})
    bare = {"tasks": ["words"]}
    said = {**bare, "limit": None, "options": {"batch_size": 4}}
    line = {"evaluate.limit": 2, "evaluate.options.dtype": "float32"}
    for settings, evaluate, expected in (
        ({}, bare, (5, 3, "bfloat16")),
        ({}, said, (None, 4, "bfloat16")),
        (line, said, (2, 4, "float32")),
        (line, bare, (2, 3, "float32")),
    ):
        asked = plan(rich, settings, evaluate=evaluate).study.evaluate
        assert (asked.limit, asked.options.batch_size, asked.options.dtype) == expected
    # Only tasks are the other way round: they belong to the models.
    rich = write_yaml(experts.with_name("rich.yml"), {**document, "tasks": ["words_te"]})
    assert plan(rich).cells[0].resolved.chosen == ("words_te",)
    rich = write_yaml(experts.with_name("rich.yml"), {**document, "tasks": {"words": "words_te"}})
    experts = {"task": "math", "language": {"sw": ["swahili"]}}
    changed = plan(rich, experts=experts, evaluate={"languages": {"sw": ["words"]}})
    assert changed.study.evaluate.languages == {"sw": ("words_te",)}
    assert plan(rich, {"evaluate.tasks": ["words_sw"]}).cells[0].resolved.chosen == ("words_sw",)
