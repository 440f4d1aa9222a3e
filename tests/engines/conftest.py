"""A random model and tasks of words, made once a session."""

import pytest

from tests.standins.tasks import write_tasks
from tests.standins.word_models import write_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("models") / "random")


@pytest.fixture(scope="session")
def tasks(tmp_path_factory):
    return write_tasks(tmp_path_factory.mktemp("tasks") / "words")
