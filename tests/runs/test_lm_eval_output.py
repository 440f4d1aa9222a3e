"""The output of lm-eval itself, read as the results of a model and compared."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from ablations.report.compare_models import compare_models
from ablations.runs.lm_eval_output import read_lm_eval_output
from ablations.statistics.mcnemar import mcnemar_p
from layerswap_method.errors import InputError
from tests.report.runs import level, study_of, write_run
from tests.standins.command import layerswap
from tests.standins.lm_eval_output import SAMPLE, lm_eval, write_inputs


@pytest.fixture
def outputs(tmp_path):
    """Return the folders of the two outputs of the sample, to be changed."""
    shutil.copytree(SAMPLE, tmp_path / "outputs")
    return tmp_path / "outputs" / "one", tmp_path / "outputs" / "two"


def results_of(output):
    (file,) = output.rglob("results_*.json")
    return file


def samples_of(output, task):
    (file,) = output.rglob(f"samples_{task}_*.jsonl")
    return file


def edit(file, change):
    """Write what `change` makes of the lines, as objects, of a file of samples."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in change(lines)))


def edit_results(output, change):
    file = results_of(output)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def shorten(output, task, items):
    """Make an output one of ``--limit ITEMS`` on a task of one metric that is a mean."""
    file = samples_of(output, task)
    edit(file, lambda lines: lines[:items])
    values = [json.loads(line)["exact_match"] for line in file.read_text().splitlines()]

    def change(content):
        content["results"][task]["exact_match,first-word"] = sum(values) / items
        content["results"][task]["sample_len"] = items

    edit_results(output, change)


def test_scores_are_those_of_lm_eval_and_intervals_are_ours():
    scores = read_lm_eval_output(SAMPLE / "one").results.scores
    reported = json.loads(results_of(SAMPLE / "one").read_text())["results"]
    by_name = scores.set_index(["task", "metric", "filter"])["value"]
    assert by_name["words_generate", "exact_match", "first-word"] == pytest.approx(
        reported["words_generate"]["exact_match,first-word"]
    )
    assert by_name["words_translate", "bleu", "stripped"] == pytest.approx(
        reported["words_translate"]["bleu,stripped"] / 100
    )
    assert by_name["words_all", "acc", "none"] == pytest.approx(reported["words_all"]["acc,none"])
    assert {*scores["task"]} == {"words_generate", "words_translate", "words_all"}
    assert scores["low"].lt(scores["value"]).all()


def test_the_test_is_the_paired_one_on_equal_documents():
    compared = compare_models([str(SAMPLE / "one"), str(SAMPLE / "two")])
    assert (compared.models, compared.warnings) == (("one", "two"), ())
    values = {}
    for model in ("one", "two"):
        for task in ("words_choose", "words_pick"):
            for line in samples_of(SAMPLE / model, task).read_text().splitlines():
                item = json.loads(line)
                key = (task, item["doc_hash"])
                values.setdefault(key, []).append(item["acc"])
    first_only = sum(one > two for one, two in values.values())
    second_only = sum(one < two for one, two in values.values())
    assert first_only > 0
    assert second_only > 0
    row = compared.comparisons.set_index("task").loc["words_all"]
    assert row["items"] == 24
    assert row["p"] == pytest.approx(mcnemar_p(first_only, second_only))
    assert row["difference"] == pytest.approx((first_only - second_only) / 24)


def test_the_place_of_a_document_in_its_file_does_not_matter(outputs):
    before = compare_models(list(map(str, outputs))).comparisons

    def reverse(lines):
        last = len(lines) - 1
        return [{**line, "doc_id": last - line["doc_id"]} for line in reversed(lines)]

    edit(samples_of(outputs[1], "words_generate"), reverse)
    after = compare_models(list(map(str, outputs))).comparisons
    assert after.drop(columns="task").equals(before.drop(columns="task"))


def test_a_file_is_as_good_as_its_folder_and_samples_are_one_task():
    whole = compare_models([str(results_of(SAMPLE / name)) for name in ("one", "two")])
    folders = compare_models([str(SAMPLE / name / name) for name in ("one", "two")])
    assert whole.comparisons.equals(folders.comparisons)
    files = [str(samples_of(SAMPLE / name, "words_pick")) for name in ("one", "two")]
    assert [*compare_models(files).comparisons["task"]] == ["words_pick"]


def test_a_task_of_a_group_is_compared_where_it_is_named():
    names = [str(SAMPLE / name) for name in ("one", "two")]
    compared = compare_models(names, ["words_pick", "words_generate"])
    assert {*compared.comparisons["task"]} == {"words_pick", "words_generate"}


def test_other_limits_are_compared_on_the_common_items_and_said(outputs):
    shorten(outputs[1], "words_generate", 7)
    compared = compare_models(list(map(str, outputs)), ["words_generate"])
    assert compared.comparisons["items"].tolist() == [7]
    assert "on the 7 items of words_generate that both have (of 12 and 7)" in compared.warnings[0]
    lines = samples_of(outputs[0], "words_generate").read_text().splitlines()[:7]
    first = sum(json.loads(line)["exact_match"] for line in lines) / 7
    assert f" {100 * first:.1f} " in str(compared)  # and not that of its 12 items
    edit_results(outputs[0], lambda content: None)
    edit(
        samples_of(outputs[1], "words_generate"),
        lambda lines: [{**line, "doc_hash": f"{number:064x}"} for number, line in enumerate(lines)],
    )
    with pytest.raises(InputError, match="have no item of words_generate in common"):
        compare_models(list(map(str, outputs)), ["words_generate"])


def test_what_differs_between_two_evaluations_is_said(outputs):
    def change(content):
        content["n-shot"]["words_generate"] = 5
        content["configs"]["words_generate"]["repeats"] = 4
        content["configs"]["words_translate"]["generation_kwargs"]["temperature"] = 0.6
        content["config"]["model"] = "vllm"
        content["chat_template_sha"] = "abc"

    edit_results(outputs[1], change)
    edit(
        samples_of(outputs[1], "words_generate"),
        lambda lines: [{**line, "prompt_hash": "0" * 64} for line in lines],
    )
    text = " ".join(compare_models(list(map(str, outputs))).warnings)
    third = str(shutil.copytree(outputs[0], outputs[0].parent / "three"))

    edit_results(Path(third), lambda content: content.update(date=1))
    several = compare_models([str(outputs[0]), third, str(outputs[1])])
    assert several.models == ("one", "three", "two")  # one and three are outputs of one model
    joined = "one and two, three and two differ in the engine (hf and vllm)"
    assert sum(warning.startswith(joined) for warning in several.warnings) == 1
    assert sum("differ in the engine" in warning for warning in several.warnings) == 1
    for said in (
        "differ in the number of examples of words_generate (2 and 5)",
        "differ in repeats of words_generate (1 and 4)",
        "differ in the settings of generation of words_translate",
        "differ in the engine (hf and vllm)",
        "differ in the chat template (none and abc)",
        "have different prompts of words_generate (examples or chat template)",
    ):
        assert said in text


def test_other_tasks_filters_and_versions(outputs):
    names = list(map(str, outputs))
    edit_results(outputs[1], lambda content: content["results"].pop("words_generate"))
    compared = compare_models(names)
    assert "two has no result for words_generate, which is left out." in compared.warnings
    assert {*compared.comparisons["task"]} == {"words_translate", "words_all"}

    def rename(content):
        scores = content["results"]["words_translate"]
        scores["bleu,other"] = scores.pop("bleu,stripped")

    edit_results(outputs[1], rename)
    file = samples_of(outputs[1], "words_translate")
    edit(file, lambda lines: [{**line, "filter": "other"} for line in lines])
    with pytest.raises(InputError, match=r"different metrics: bleu \(stripped\), bleu \(other\)"):
        compare_models(names)
    edit_results(outputs[1], lambda content: content["versions"].update(words_choose=4))
    with pytest.raises(InputError, match=r"different versions of words_choose: 3.0 and 4"):
        compare_models(names, ["words_choose"])


def test_scores_to_100_are_left_out_and_said(outputs):
    """One output with such a score is enough: a share and a score to 100 are not subtracted."""

    def to_100(content):
        content["results"]["words_generate"]["exact_match,first-word"] *= 100

    for output in outputs:
        edit_results(output, to_100)
        edit(
            samples_of(output, "words_generate"),
            lambda lines: [{**line, "exact_match": 100 * line["exact_match"]} for line in lines],
        )
        for names in ([*outputs], [*outputs[::-1]]):
            compared = compare_models(list(map(str, names)))
            assert {*compared.comparisons["task"]} == {"words_translate", "words_all"}
            assert compared.warnings == (
                "words_generate has no scores of single items from 0 to 1 by exact_match, so it is "
                "left out.",
            )
    with pytest.raises(InputError, match="by exact_match; choose another --metric"):
        compare_models(list(map(str, outputs)), ["words_generate"])


def test_an_output_is_compared_with_a_run_of_ours_at_the_level_of_the_run(tmp_path, outputs):
    evaluate = {"tasks": ["words_generate"], "level": 0.8}
    study = study_of(baseline=["base"], recipe=None, evaluate=evaluate)
    run = write_run(tmp_path / "ours", study, level, items=12)
    theirs = read_lm_eval_output(outputs[0]).results.observations
    theirs = theirs[theirs["task"] == "words_generate"].sort_values("item")
    hashes = iter(theirs["content"].tolist())
    for file in run.path.glob("records/*.jsonl"):
        first, *lines = file.read_text().splitlines()
        first = first.replace("strict-match", "first-word").replace('"1.0"', '"3.0"')
        first = re.sub(',"(items_sha256|checksum)":"[0-9a-f]+"', "", first)
        changed = []
        for line in lines:
            document, prompt = next(hashes).split("/")
            item = {**json.loads(line), "filter": "first-word"}
            changed.append(json.dumps({**item, "doc_hash": document, "prompt_hash": prompt}))
        file.write_text("\n".join([first, *changed]) + "\n")
    names = [str(run.path), str(outputs[0])]
    there, back = (compare_models(order) for order in (names, names[::-1]))
    (row,), (turned,) = (each.comparisons.to_dict("records") for each in (there, back))
    assert row["items"] == 12
    assert (row["low"], row["high"]) == pytest.approx((-turned["high"], -turned["low"]))
    assert "with 80% intervals" in str(there)
    assert "with 80% intervals" in str(back)
    scores = there.scores.set_index("model")
    narrow = scores.loc["one", "high"] - scores.loc["one", "low"]
    (wide,) = (
        score["high"] - score["low"]
        for score in read_lm_eval_output(outputs[0]).results.scores.to_dict("records")
        if (score["task"], score["metric"]) == ("words_generate", "exact_match")
    )
    assert narrow < wide
    pd.testing.assert_frame_equal(scores, back.scores.set_index("model").loc[scores.index])


def test_the_order_of_metrics_in_an_output_decides_nothing(outputs):
    """One output has f1 before exact_match, the other behind it."""

    for output, order in zip(outputs, (["f1", "exact_match"], ["exact_match", "f1"]), strict=True):

        def add(content, order=order):
            scores = content["results"]["words_generate"]
            scores["f1,first-word"] = scores["exact_match,first-word"]
            content["higher_is_better"]["words_generate"] = dict.fromkeys(order, True)

        edit_results(output, add)
        edit(
            samples_of(output, "words_generate"),
            lambda lines: [
                {**line, "f1": line["exact_match"], "metrics": ["exact_match", "f1"]}
                for line in lines
            ],
        )
    for names in (outputs, outputs[::-1]):
        compared = compare_models(list(map(str, names)), ["words_generate"])
        assert compared.comparisons["metric"].tolist() == ["exact_match"]


def test_the_newest_of_several_evaluations_is_taken_and_said(outputs):
    (old,) = outputs[0].glob("*/results_*.json")
    for file in [*outputs[0].glob("*/*words_generate*"), old]:
        newer = file.with_name(re.sub("_20[0-9]{2}-", "_2099-", file.name))
        shutil.copy(file, newer)
    (newer,) = outputs[0].glob("*/results_2099*.json")
    content = json.loads(newer.read_text())
    for name in ("words_translate", "words_choose", "words_pick", "words_all"):
        content["results"].pop(name)
    newer.write_text(json.dumps(content))
    output = read_lm_eval_output(outputs[0])
    assert {*output.versions} == {"words_generate", "words_translate", "words_all"}
    assert output.notes == (
        f"words_generate was evaluated several times; the newest is taken, not {old}.",
    )


def test_a_folder_of_several_models_names_them(outputs):
    shutil.move(outputs[1] / "two", outputs[0] / "two")
    with pytest.raises(InputError, match=r"the output of 2 models; name one .*one, .*two"):
        read_lm_eval_output(outputs[0])


def _cut(file):
    file.write_text(file.read_text()[:-40])


def _empty(file):
    file.write_text("")


def _pipe(file):
    target = file.with_name("elsewhere")
    file.rename(target)
    file.symlink_to(target)


def _deep(file):
    file.write_text('{"a":' * 100_000)


def _bytes(file):
    file.write_bytes(b"\xff\xfe\x00")


def _twice(file):
    file.write_text(file.read_text() * 2)


def _other_value(file):
    edit(file, lambda lines: [{**line, "exact_match": 1.0} for line in lines])


def _no_value(file):
    edit(file, lambda lines: [{**line, "metrics": ["exact_match", "f1"]} for line in lines])


def _no_hash(file):
    edit(file, lambda lines: [{k: v for k, v in line.items() if k != "doc_hash"} for line in lines])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_cut, "EOF while parsing"),
        (_empty, "it has no line"),
        (_pipe, "it is a link"),
        (_deep, "recursion limit"),
        (_bytes, "can't decode"),
        (_twice, r"item 0 \(first-word\) is in it 2 times"),
        (_other_value, r"but its 12 samples give 1.0"),
        (_no_value, "it has no value of 'f1'"),
        (_no_hash, "doc_hash: Field required"),
    ],
)
def test_damaged_samples_are_one_error(outputs, damage, why):
    damage(samples_of(outputs[1], "words_generate"))
    with pytest.raises(InputError, match=why) as caught:
        compare_models(list(map(str, outputs)))
    assert "lm_eval --output_path DIR --log_samples" in str(caught.value)
    assert len(str(caught.value)) < 700


def _names(content):
    content["results"]["\x1b[31m"] = {}


def _lists(content):
    content["results"]["words_generate"] = ["exact_match"]


def _text(content):
    content["results"]["words_generate"]["exact_match,first-word"] = "N/A"


def _group_of_itself(content):
    content["group_subtasks"]["words_all"] = ["words_all"]


def _configs(content):
    content["configs"]["words_generate"]["metric_list"] = [3]


@pytest.mark.parametrize("damage", [_names, _lists, _text, _configs])
def test_damaged_results_are_one_error(outputs, damage):
    edit_results(outputs[0], damage)
    done = layerswap("compare", *outputs)
    assert done.exit_code == 2, done.output
    assert "cannot be read as an output of lm-eval" in " ".join(done.output.split())
    assert "\x1b" not in done.output


def test_a_group_that_is_none_leaves_its_tasks(outputs):
    for output in outputs:
        edit_results(output, _group_of_itself)
    compared = compare_models(list(map(str, outputs)))
    assert {"words_choose", "words_pick"} <= {*compared.comparisons["task"]}


def test_an_output_without_samples_says_how_to_get_them(outputs):
    for file in outputs[0].rglob("samples_*"):
        file.unlink()
    done = layerswap("compare", *outputs)
    assert done.exit_code == 2
    assert "--log_samples" in done.output
    shutil.copy(samples_of(outputs[1], "words_pick"), outputs[0])
    done = layerswap("compare", next(outputs[0].glob("samples_*")), outputs[1])
    assert "is not in the same folder" in " ".join(done.output.split())


@pytest.mark.slow
def test_what_the_command_of_lm_eval_writes_today_is_what_the_sample_has(tmp_path):
    write_inputs(tmp_path)
    outputs = [
        lm_eval(tmp_path, "one", "first"),
        lm_eval(tmp_path, "two", "second", limit=8),
        lm_eval(tmp_path, "one", "shots/file.json", "--num_fewshot", "1"),
    ]
    for task in ("words_generate", "words_choose"):
        old, new = (samples_of(place, task) for place in (SAMPLE / "one", outputs[0]))
        keys = [json.loads(file.read_text().splitlines()[0]).keys() for file in (old, new)]
        assert keys[0] == keys[1]
    old, new = (json.loads(results_of(place).read_text()) for place in (SAMPLE / "one", outputs[0]))
    assert old.keys() == new.keys()
    assert old["configs"].keys() == new["configs"].keys()
    tasks = ["words_generate", "words_all"]
    compared = compare_models(list(map(str, outputs[:2])), tasks)
    assert set(compared.comparisons["items"]) == {8, 16}
    (file,) = (tmp_path / "shots").glob("file_*.json")
    shots = compare_models([str(outputs[0]), str(file)], tasks)
    assert any("the number of examples" in warning for warning in shots.warnings)
    assert any("different prompts" in warning for warning in shots.warnings)
    assert layerswap("compare", *outputs[:2], "--tasks", ",".join(tasks)).exit_code == 0
