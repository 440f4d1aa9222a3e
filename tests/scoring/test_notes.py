from ablations.scoring.notes import join_notes


def test_notes_that_say_the_same_of_several_tasks_are_one() -> None:
    notes = ["a: is short", "Percent: of all", "b: is long", "c: is short", "a: is short"]
    assert join_notes(notes) == ["a, c: is short", "Percent: of all", "b: is long"]
    # A sentence with a colon is no note on a task.
    notes = ["Python 3.11: held by the kernel", "no colon here", "Python 3.11: held by the kernel"]
    assert join_notes(notes) == notes[:2]
