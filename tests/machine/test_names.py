import pytest

from ablations.machine.names import printable, spreadsheet_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("soup\tb=1\nünïcode ▒", "soup\tb=1\nünïcode ▒"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\rb\x9b", "a\\x0db\\x9b"),
    ],
)
def test_a_terminal_obeys_nothing(text, shown):
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
        ("@x", "'@x"),
        ("+1", "'+1"),
        ("-1+2", "'-1+2"),
        ("soup", "soup"),
        ("", ""),
    ],
)
def test_a_spreadsheet_computes_nothing(text, cell):
    assert spreadsheet_text(text) == cell
