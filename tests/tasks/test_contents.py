"""What a task is made of: its YAML, what that includes, functions beside it."""

from pathlib import Path

from ablations.tasks.contents import TaskContents


def test_functions_beside_a_task_are_a_part_of_it(tmp_path: Path) -> None:
    included = tmp_path / "_shared.yaml"
    included.write_text("doc_to_text: !function own.text\nnum_fewshot: 1\n")
    (tmp_path / "one.yaml").write_text("task: one\ninclude: _shared.yaml\n")
    (tmp_path / "two.yaml").write_text("task: two\nnum_fewshot: 1\n")
    (tmp_path / "own.py").write_text("def text(doc): return 'x'\n")

    def hashes() -> list[str]:
        contents = TaskContents([tmp_path])
        return [contents.fingerprint(name) for name in ("one", "two")]

    one, two = hashes()
    (tmp_path / "own.py").write_text("def text(doc): return 'y'\n")
    changed, same = hashes()
    assert (changed != one, same == two) == (True, True)
    included.write_text(included.read_text().replace("1", "2"))
    assert hashes()[0] not in (one, changed)
    assert hashes()[1] == two
